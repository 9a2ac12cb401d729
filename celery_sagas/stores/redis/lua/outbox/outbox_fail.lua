-- uses: clock index rows answers
-- Count a failed attempt to publish a row, and make it due after a delay.
-- KEYS: outbox, due, leases, failures, index, answer of the call
-- ARGV: call, now (ms, or empty), token, id of the row, error, delay (ms)
-- Answers with: 1 if the row was the token's, else 0.
-- A repeat counts no second attempt, and answers as the first call did.
local id = ARGV[4]
check_rows()
if answered() then return 1 end
if not is_of(redis.call('HGET', leases, id), ARGV[3]) then return 0 end

local attempts = (string.match(redis.call('HGET', failures, id) or '', '^%d+') or 0) + 1
redis.call('HSET', failures, id, string.format('%.0f ', attempts) .. ARGV[5])
redis.call('ZADD', due, clock(ARGV[2]) + ARGV[6], id)
return remember(1)
