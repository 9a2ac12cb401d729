-- uses: many index rows trials removal answers
-- Put the next messages into rows that were published: each is due at its time, and under no lease.
-- KEYS: outbox, due, leases, failures, index, answer of the call
-- ARGV: call, token; for each row its id, due at (ms), packed row
-- Answers with: how many rows were changed.
-- A repeat finds no lease of the token, and answers as the first call did.
check_rows()
local before, changed = answered(), 0
if before then return before end

for at = 3, #ARGV, 3 do
  local id = ARGV[at]
  if is_of(redis.call('HGET', leases, id), ARGV[2]) and redis.call('HEXISTS', outbox, id) == 1 then
    redis.call('HSET', outbox, id, ARGV[at + 2])
    redis.call('ZADD', due, ARGV[at + 1], id)
    redis.call('HDEL', leases, id)
    local members = {}
    add_trials(members, { id })
    if members[1] then redis.call('ZREM', index, members[1]) end
    redis.call('HDEL', failures, id)
    changed = changed + 1
  end
end
return changed > 0 and remember(changed) or 0
