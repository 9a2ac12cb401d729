-- uses: state
-- Count the items of an aggregator, or of one of its groups. It only reads.
-- KEYS: groups, items, fresh ids, unread
-- ARGV: the group; nothing, for all of them
-- Answers with: how many groups have items, how many items are buffered, and unresolved.
local groups, name = KEYS[1], ARGV[1]
if not name then
  local items = redis.call('HLEN', KEYS[2]) / 2 + redis.call('HLEN', KEYS[3])
  return { redis.call('HLEN', groups), items, redis.call('ZCARD', KEYS[4]) }
end

local text = redis.call('HGET', groups, name)
local group = read_state(text)
return { text and 1 or 0, buffered(group), group.unresolved }
