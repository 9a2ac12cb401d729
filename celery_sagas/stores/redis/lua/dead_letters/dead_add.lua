-- uses: clock
-- Keep a dead letter.
-- KEYS: dead letters, dead letters by time
-- ARGV: now (ms, or empty), id, packed dead letter
-- Answers with: 1 if it is new, 0 if it was kept before.
-- A repeat finds the dead letter kept, and writes nothing.
redis.call('ZCARD', KEYS[2])
if redis.call('HEXISTS', KEYS[1], ARGV[2]) == 1 then return 0 end

local now = clock(ARGV[1])
redis.call('HSET', KEYS[1], ARGV[2], string.format('%.0f ', now) .. ARGV[3])
redis.call('ZADD', KEYS[2], now, ARGV[2])
return 1
