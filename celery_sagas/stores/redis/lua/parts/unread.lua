-- Unresolved items. Expects their key as unread; items has what they are.
-- It knows each as <bytes of group>:<group>:<number, in 16 digits>, so that those of a group follow each other.
local function unread_as(name, number) return string.format('%d:%s:%016.0f', #name, name, number) end

-- The numbers of the first unresolved items of a group that follow a number.
local function first_unread(name, after, limit)
  local past = string.format('(%d:%s;', #name, name)
  local numbers = redis.call('ZRANGEBYLEX', unread, '(' .. unread_as(name, after), past, 'LIMIT', 0, limit)
  for position, member in ipairs(numbers) do numbers[position] = string.format('%.0f', string.sub(member, -16)) end
  return numbers
end
