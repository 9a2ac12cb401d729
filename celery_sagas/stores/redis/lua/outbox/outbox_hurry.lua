-- uses: clock index rows answers
-- Have rows be due now whose time has not come; those under a lease are left alone.
-- KEYS: outbox, due, leases, failures, index, answer of the call
-- ARGV: call, now (ms, or empty), id of each row
-- Answers with: how many rows are due earlier.
-- A repeat touches nothing, and answers as the first call did: others may have claimed the rows since.
check_rows()
local hurried = answered()
if hurried then return hurried end

local now, count = clock(ARGV[2]), 0
for number = 3, #ARGV do
  local id = ARGV[number]
  local at, lease = redis.call('ZSCORE', due, id), redis.call('HGET', leases, id)
  local is_leased = lease and string.sub(lease, 1, 2) ~= '- '
  if at and not is_leased and tonumber(at) > now then
    redis.call('ZADD', due, now, id)
    count = count + 1
  end
end
return count > 0 and remember(count) or 0
