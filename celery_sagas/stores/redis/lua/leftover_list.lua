-- uses: many
-- List kept items, the first that was kept first. It only reads.
-- KEYS: kept, items, unresolved or rejected
-- ARGV: first handle, as ZRANGEBYSCORE takes it, how many at most
-- Answers with: for each its handle, what is kept, the packed item if that is buffered (empty: it is not, or what is kept is
--   lost).
local reply = {}
for _, handle in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], ARGV[1], '+inf', 'LIMIT', 0, ARGV[2])) do
  local text = redis.call('HGET', KEYS[1], handle) or ''
  local number = string.match(text, '^u (%d+) ')
  add(reply, handle, text)
  reply[#reply + 1] = number and redis.call('HGET', KEYS[2], number) or ''
end
return reply
