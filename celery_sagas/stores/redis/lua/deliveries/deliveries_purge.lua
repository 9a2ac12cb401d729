-- uses: clock answers
-- Forget the messages that were not delivered for the longest time.
-- KEYS: deliveries, deliveries by time, answer of the call
-- ARGV: call, now (ms, or empty), age (ms), how many at most
-- Answers with: how many messages were forgotten.
-- A repeat forgets nothing, and answers as the first call did.
redis.call('HLEN', KEYS[1])
local forgotten = answered()
if forgotten then return forgotten end

local before = string.format('(%.0f', clock(ARGV[2]) - ARGV[3])
local digests = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', before, 'LIMIT', 0, ARGV[4])
if #digests == 0 then return 0 end
redis.call('HDEL', KEYS[1], unpack(digests))
redis.call('ZREM', KEYS[2], unpack(digests))
return remember(#digests)
