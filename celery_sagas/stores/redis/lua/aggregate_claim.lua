-- uses: clock many state gate group leases attempts ended
-- Lease the first free items of a group to a token, if its gate is open.
-- KEYS: groups, order, due, items, seen, sequence, attempts, free, leases, leased
-- ARGV: call, now (ms, or empty), group, size, within, idle, lease (ms), token, most items, failures of an item before its
--   batches become smaller
-- Answers with: nothing if the gate is closed, or the group pauses; else the reason, how many items are unresolved, 1 if there is
--   more to flush, the numbers of the items, how often each has failed (empty: none has), each packed item (empty if it is lost).
-- A repeat finds the token's lease, and answers with it.
local now, token, limit, tries = clock(ARGV[2]), ARGV[8], tonumber(ARGV[9]), tonumber(ARGV[10])

-- How many items may be in one batch with one that has failed so often.
local function allowed(failed) return math.floor(limit / 2 ^ math.max((failed or 0) - tries + 1, 0)) end

-- How many of the first items a flush takes.
local function taken(numbers, failures)
  if #failures == 0 then return math.min(#numbers, math.max(allowed(0), 1)) end
  local most = limit
  for position = 1, #numbers do
    most = math.min(most, allowed(failures[position]))
    if position > 1 and position > most then return position - 1 end
  end
  return #numbers
end

local function lease_items(group, reason)
  if reason == 'age' or reason == 'idle' then open_gate(group, tonumber(redis.call('ZRANGE', free, -1, -1)[1]), reason) end
  local numbers = redis.call('ZRANGE', free, 0, limit - 1)
  local count, words = taken(numbers, failures_of(numbers)), {}
  for number = #numbers, count + 1, -1 do numbers[number] = nil end
  for position, packed in ipairs(items_of(numbers)) do add(words, numbers[position], digest_of(packed)) end
  redis.call('ZREMRANGEBYRANK', free, 0, count - 1)
  redis.call('HSET', leased, token, table.concat(words, ' '))
  group.free = group.free - count
  look_at_oldest(group, free)
  local line = string.format('%.0f %d %.0f %d %s', now + lease_ms, count, group.unresolved, ask(group, now) and 1 or 0, reason)
  redis.call('HSET', leases, token, line)
  look_at_leases(group)
end

check_leases()
local group = find_group(ARGV[3], free)
if group.is_new then return {} end
if redis.call('HEXISTS', leases, token) == 0 then
  if group.paused > now then return {} end
  give_up_ended(group, now)
  group.marked = 0
  local reason = reason_of(group, now)
  if reason then lease_items(group, reason) end
  save_group(group, now)
  if not reason then return {} end
end

local numbers = leased_by(token)
local unresolved, is_more, reason = string.match(redis.call('HGET', leases, token), '^%d+ %d+ (%d+) (%d) (.+)$')
local reply = { reason or '', tonumber(unresolved or 0), tonumber(is_more or 0) }
add(reply, table.concat(numbers, ' '), table.concat(failures_of(numbers), ' '))
for _, packed in ipairs(items_of(numbers)) do reply[#reply + 1] = packed or '' end
return reply
