-- uses: many clock index rows answers trials
-- Count a failed attempt to publish a row, and make it due after a delay.
-- KEYS: outbox, due, leases, failures, index, answer of the call
-- ARGV: call, now (ms, or empty), token, id of the row, error, delay (ms)
-- Answers with: 1 if the row was the token's, else 0.
-- A repeat counts no second attempt, and answers as the first call did.
local id = ARGV[4]
check_rows()
if answered() then return 1 end
if not is_of(redis.call('HGET', leases, id), ARGV[3]) then return 0 end

local now, attempts, tried_at = clock(ARGV[2]), trial_of(id)
if tried_at == 0 then redis.call('ZADD', index, 0, member_of_trial(now, id)) end
redis.call('HSET', failures, id, trial(attempts + 1, tried_at > 0 and tried_at or now, ARGV[5]))
redis.call('ZADD', due, now + ARGV[6], id)
redis.call('HSET', leases, id, '- ' .. ARGV[3])
return remember(1)
