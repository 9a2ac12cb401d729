-- uses: clock many index rows trials removal answers
-- End rows that were published: remove them, or keep those that stay until their message is handled.
-- KEYS: outbox, due, leases, failures, index, answer of the call
-- ARGV: call, now (ms, or empty), token, how long rows are kept at least and at most (ms; 0: none is), id of each row
-- Answers with: how many rows were removed or kept.
-- A repeat touches nothing, and answers as the first call did.
local KEPT = { scheduled = true, deadline = true }
local token, least, most = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])

-- Make a row due again, after the longer one of the time and of that since it was tried first.
local function keep(id, now)
  local _, before = trial_of(id)
  local tried_at = note_trial(id, 0, before, now, '')
  redis.call('ZADD', due, now + math.max(least, math.min(now - tried_at, most)), id)
  redis.call('HSET', leases, id, '- ' .. token)
end

check_rows()
local ended = answered()
if ended then return ended end

local ids, gone, rows, now = held_by(token, 6), {}, {}, clock(ARGV[2])
for number, row in ipairs(rows_of(ids)) do
  local _, _, _, kind = read_row(row)
  if least > 0 and KEPT[kind] then
    keep(ids[number], now)
  else
    gone[#gone + 1], rows[#rows + 1] = ids[number], row
  end
end
remove_rows(gone, members_of(gone, rows))
return #ids > 0 and remember(#ids) or 0
