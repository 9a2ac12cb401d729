-- List dead letters, newest first. It only reads.
-- KEYS: letters, letters by time
-- ARGV: id of the letter that they follow (empty: none), how many at most
-- Answers with: for each letter its id and the packed letter (empty if it is lost).
local first = 0
if ARGV[1] ~= '' then
  local rank = redis.call('ZREVRANK', KEYS[2], ARGV[1])
  if not rank then return {} end
  first = rank + 1
end

local reply = {}
for _, id in ipairs(redis.call('ZREVRANGE', KEYS[2], first, first + ARGV[2] - 1)) do
  reply[#reply + 1] = id
  reply[#reply + 1] = redis.call('HGET', KEYS[1], id) or ''
end
return reply
