-- uses: clock answers
-- Count one more delivery of a message.
-- KEYS: deliveries, deliveries by time, answer of the call
-- ARGV: call, now (ms, or empty), digest of step and message id
-- Answers with: how many there are with this one.
-- A repeat counts nothing, and answers as the first call did.
redis.call('ZCARD', KEYS[2])
local counted = answered()
if counted then return counted end

counted = redis.call('HINCRBY', KEYS[1], ARGV[3], 1)
redis.call('ZADD', KEYS[2], clock(ARGV[2]), ARGV[3])
return remember(counted)
