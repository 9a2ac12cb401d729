-- Ends what keeping began. Expects keeping.

-- Forget that an item is unresolved.
local function forget_unresolved(group, handle, note)
  redis.call('HDEL', kept, handle)
  redis.call('ZREM', unresolved, handle)
  redis.call('ZREM', notes, noted(note, handle))
  redis.call('ZREM', unread, handle)
  group.unresolved = math.max(group.unresolved - 1, 0)
end

-- Forget a rejected item.
local function forget_rejected(group, handle)
  redis.call('HDEL', kept, handle)
  redis.call('ZREM', rejected, handle)
  if redis.call('HINCRBY', counts, group.name, -1) <= 0 then redis.call('HDEL', counts, group.name) end
end
