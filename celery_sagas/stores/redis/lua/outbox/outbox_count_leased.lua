-- uses: many clock index rows trials
-- Count the rows of a message that a process may be publishing. It only reads.
-- KEYS: outbox, due, leases, failures, index
-- ARGV: now (ms, or empty), digest of each step and message id
-- Answers with: how many are under a lease, and have never failed.
local now, leased = clock(ARGV[1]), 0

for at = 2, #ARGV do
  for _, id in ipairs(under(of_cause(ARGV[at]))) do
    local lease = tonumber(redis.call('ZSCORE', due, id) or 0) > now and redis.call('HGET', leases, id)
    local is_leased = lease and string.sub(lease, 1, 2) ~= '- '
    if is_leased and trial_of(id) == 0 then leased = leased + 1 end
  end
end
return leased
