-- List dead letters, newest first. It only reads.
-- KEYS: dead letters, dead letters by time
-- ARGV: id of the dead letter that they follow (empty: none); where it is not here, what is too new to follow, as ZCOUNT takes it
--   (empty: nothing); how many at most
-- Answers with: for each dead letter its id and the packed dead letter (empty if it is lost).
local rank = redis.call('ZREVRANK', KEYS[2], ARGV[1])
local first = rank and rank + 1 or ARGV[2] ~= '' and redis.call('ZCOUNT', KEYS[2], ARGV[2], '+inf') or 0

local reply = {}
for _, id in ipairs(redis.call('ZREVRANGE', KEYS[2], first, first + ARGV[3] - 1)) do
  reply[#reply + 1] = id
  reply[#reply + 1] = redis.call('HGET', KEYS[1], id) or ''
end
return reply
