-- uses: many state
-- List groups that have items, in the order of their names. It only reads.
-- KEYS: groups, order
-- ARGV: first name, as ZRANGEBYLEX takes it, how many at most
-- Answers with: for each its name, how many items are free, leased and unresolved, when it is due (ms; 0: when its next item
--   comes).
local reply, names = {}, redis.call('ZRANGEBYLEX', KEYS[2], ARGV[1], '+', 'LIMIT', 0, ARGV[2])
for _, name in ipairs(names) do
  local group = read_state(redis.call('HGET', KEYS[1], name))
  add(reply, name, group.free)
  add(reply, group.leased, group.unresolved)
  reply[#reply + 1] = group.due
end
return reply
