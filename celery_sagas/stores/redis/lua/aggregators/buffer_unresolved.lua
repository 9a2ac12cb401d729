-- uses: many
-- List unresolved items. It only reads.
-- KEYS: unread, items, attempts
-- ARGV: the first, as ZRANGEBYLEX takes it, how many at most
-- Answers with: for each what parts/unread.lua says, how often it has failed, packed item (empty if it is lost).
local reply = {}
for _, member in ipairs(redis.call('ZRANGEBYLEX', KEYS[1], ARGV[1], '+', 'LIMIT', 0, ARGV[2])) do
  local number = string.format('%.0f', string.sub(member, -16))
  add(reply, member, tonumber(redis.call('HGET', KEYS[3], number) or 0))
  reply[#reply + 1] = redis.call('HGET', KEYS[2], number) or ''
end
return reply
