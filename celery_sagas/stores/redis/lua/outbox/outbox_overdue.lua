-- uses: many clock index rows trials glances
-- Read rows that were never tried though they were due before a time, of those that may be claimed soon. It only reads.
-- KEYS: outbox, due, leases, failures, index
-- ARGV: now (ms, or empty), how far to look ahead (ms), at how many rows at most, before when they were due (ms), how many at
--   most, behind which time (ms; empty: from the beginning) and id
-- Answers with: the time (ms) and the id of the row at which it has stopped, empty at the end; then for each row what
--   parts/glances.lua says.
local soon, looked_at, before, limit = clock(ARGV[1]) + ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])

-- Whether an id stands behind another one, by their bytes: comparing texts asks the server's locale.
local function is_behind(id, other)
  for at = 1, math.min(#id, #other) do
    local one, two = string.byte(id, at), string.byte(other, at)
    if one ~= two then return one > two end
  end
  return #id > #other
end

-- How many rows there are up to a place.
local function count_up_to(at, id)
  if at == '' then return 0 end
  local first, last = redis.call('ZCOUNT', due, '-inf', '(' .. at), redis.call('ZCOUNT', due, '-inf', at)
  while first < last do
    local middle = math.floor((first + last) / 2)
    if is_behind(redis.call('ZRANGE', due, middle, middle)[1], id) then last = middle else first = middle + 1 end
  end
  return first
end

local first, reply, found, at = count_up_to(ARGV[6], ARGV[7]), { '', '' }, 0, 1
local last = math.min(first + looked_at, redis.call('ZCOUNT', due, '-inf', string.format('%.0f', soon))) - 1
local near = first > last and {} or redis.call('ZRANGE', due, first, last, 'WITHSCORES')
while near[at] and found < limit do
  local id, due_at = near[at], tonumber(string.match(redis.call('HGET', outbox, near[at]) or '', '^%d+'))
  local _, tried_at = trial_of(id)
  local since = due_at and due_at > 0 and due_at or tonumber(near[at + 1])
  if tried_at == 0 and since <= before and add_glance(reply, id) then found = found + 1 end
  at = at + 2
end
if found == limit or at > 2 * looked_at then
  reply[1], reply[2] = string.format('%.0f', near[at - 1]), near[at - 2]
end
return reply
