-- uses: clock answers
-- Forget ids of removed items whose time has passed.
-- KEYS: seen, answer of the call
-- ARGV: call, now (ms, or empty), how many at most
-- Answers with: how many ids were forgotten.
-- A repeat forgets nothing, and answers as the first call did.
redis.call('ZCARD', KEYS[1])
local forgotten = answered()
if forgotten then return forgotten end

local digests = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', clock(ARGV[2]), 'LIMIT', 0, ARGV[3])
if #digests == 0 then return 0 end
redis.call('ZREM', KEYS[1], unpack(digests))
return remember(#digests)
