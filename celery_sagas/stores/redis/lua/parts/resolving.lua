-- Items become unresolved, or are no longer. Expects unread and group.

local function set_unread(group, number)
  group.unresolved = group.unresolved + redis.call('ZADD', unread, 0, unread_as(group.name, number))
end

-- Forget that an item is unresolved; return whether it was.
local function unset_unread(group, number)
  local was_unread = redis.call('ZREM', unread, unread_as(group.name, number))
  group.unresolved = math.max(group.unresolved - was_unread, 0)
  return was_unread == 1
end
