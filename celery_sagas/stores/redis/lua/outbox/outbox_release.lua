-- uses: clock index rows answers
-- End the lease on rows: they are due again after a delay. Their due time has come, or they could not be leased.
-- KEYS: outbox, due, leases, failures, index, answer of the call
-- ARGV: call, now (ms, or empty), token, delay (ms), id of each row
-- Answers with: how many rows were released.
-- A repeat touches nothing, and answers as the first call did: others may have claimed the rows since.
local token, first = ARGV[3], 5

check_rows()
local released = answered()
if released then return released end

local since, ids = clock(ARGV[2]) + ARGV[4], held_by(token, first)
for _, id in ipairs(ids) do
  redis.call('ZADD', due, since, id)
  redis.call('HSET', leases, id, '- ' .. token)
end
return #ids > 0 and remember(#ids) or 0
