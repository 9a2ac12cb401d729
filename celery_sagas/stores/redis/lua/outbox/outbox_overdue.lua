-- uses: many clock index rows trials glances
-- Read rows that were never tried though they were due before a time, of those that may be claimed soon. It only reads.
-- KEYS: outbox, due, leases, failures, index
-- ARGV: now (ms, or empty), how far to look ahead (ms), at how many rows at most, before when they were due (ms), how many at
--   most
-- Answers with: for each row what parts/glances.lua says.
local soon, looked_at, before, limit = clock(ARGV[1]) + ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local near, reply, found = redis.call('ZRANGEBYSCORE', due, '-inf', soon, 'WITHSCORES', 'LIMIT', 0, looked_at), {}, 0

for at = 1, #near, 2 do
  local id, due_at = near[at], tonumber(string.match(redis.call('HGET', outbox, near[at]) or '', '^%d+'))
  local _, tried_at = trial_of(id)
  local since = due_at and due_at > 0 and due_at or tonumber(near[at + 1])
  if tried_at == 0 and since <= before and add_glance(reply, id) then found = found + 1 end
  if found == limit then break end
end
return reply
