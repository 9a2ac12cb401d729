-- What an instance holds stands in one list: each alternate key as <bytes>:<property>=<value>, each tag as <bytes>:<its name>.

-- Add what is in a list to others.
local function add_listed(paths, list)
  local bytes, start = nil, 1
  while true do
    bytes, start = string.match(list, '^(%d+):()', start)
    if not bytes then return paths end
    paths[#paths + 1] = string.sub(list, start, start + bytes - 1)
    start = start + bytes
  end
end
