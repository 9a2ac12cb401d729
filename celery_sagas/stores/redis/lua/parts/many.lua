-- Lists that may be longer than what Lua takes as arguments at once.

-- Call a function with the items as its arguments; in several calls if there are too many. Pairs stay together.
local function in_parts(items, act)
  for first = 1, #items, 5000 do
    act(unpack(items, first, math.min(first + 4999, #items)))
  end
end

local function add(list, first, second)
  list[#list + 1] = first
  list[#list + 1] = second
end
