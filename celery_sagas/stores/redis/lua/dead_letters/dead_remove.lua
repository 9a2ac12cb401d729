-- uses: answers
-- Remove a dead letter.
-- KEYS: dead letters, dead letters by time, answer of the call
-- ARGV: call, id
-- Answers with: 1 if it was there, else 0.
-- A repeat finds the dead letter gone, and answers as the first call did.
redis.call('ZCARD', KEYS[2])
if answered() then return 1 end
if redis.call('HEXISTS', KEYS[1], ARGV[2]) == 0 then return 0 end

redis.call('HDEL', KEYS[1], ARGV[2])
redis.call('ZREM', KEYS[2], ARGV[2])
return remember(1)
