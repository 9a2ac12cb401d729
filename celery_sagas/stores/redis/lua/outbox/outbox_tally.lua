-- uses: clock index rows
-- Count rows. It only reads.
-- KEYS: outbox, due, leases, failures, index
-- ARGV: now (ms, or empty)
-- Answers with: how many are due, when the longest due one became so (ms; 0: none is), and how many were tried.
local now = clock(ARGV[1])
local count = redis.call('ZCOUNT', due, '-inf', now)
local oldest = count > 0 and redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')[2] or 0
return { count, tonumber(oldest), redis.call('ZLEXCOUNT', index, range_of(TRIED)) }
