-- uses: clock many state trigger group items leases fresh oldest freeing attempts batch ended
-- Lease the first free items of a group to a token, if its trigger has fired.
-- KEYS: groups, order, due, items, sequence, seen, fresh ids, attempts, free, leases, leased, fresh
-- ARGV: call, now (ms, or empty), group, size, within, idle, lease (ms), token, most items, failures of an item before its
--   batches become smaller
-- Answers with: nothing if the trigger has not fired, or the group pauses; else the reason, how many items are unresolved, 1 if
--   there is more to flush, the numbers of the items, how often each has failed (empty: none has), each packed item (empty if it
--   is lost).
-- A repeat finds the token's lease, and answers with it.
local now, token = clock(ARGV[2]), ARGV[8]

local function lease_items(group, reason)
  if reason == 'age' or reason == 'idle' then fire_trigger(group, last_free(group), reason) end
  local numbers, others, words = take_free(group, limit), {}, {}
  local count = taken(numbers, failures_of(numbers))
  for position = #numbers, count + 1, -1 do others[#others + 1], numbers[position] = numbers[position], nil end
  put_back(others)
  local packed = read_items(numbers)
  for position, number in ipairs(numbers) do add(words, number, digest_by[number] or digest_of(packed[position])) end
  redis.call('HSET', leased, token, table.concat(words, ' '))
  group.free = group.free - count
  look_at_oldest(group)
  local is_more = request_flush(group, now) and 1 or 0
  local line = string.format('%.0f %d %.0f %d %s', now + lease_ms, count, group.unresolved, is_more, reason)
  redis.call('HSET', leases, token, line)
  look_at_leases(group)
  return numbers, packed
end

check_leases()
local group, numbers, packed = find_group(ARGV[3], fresh, free), nil, nil
if group.is_new then return {} end
if redis.call('HEXISTS', leases, token) == 0 then
  if group.paused > now then return {} end
  end_expired_leases(group, now)
  group.requested = 0
  local reason = reason_of(group, now)
  if reason then numbers, packed = lease_items(group, reason) end
  save_group(group, now)
  if not reason then return {} end
end

numbers = numbers or leased_by(token)
local unresolved, is_more, reason = string.match(redis.call('HGET', leases, token), '^%d+ %d+ (%d+) (%d) (.+)$')
local reply = { reason or '', tonumber(unresolved or 0), tonumber(is_more or 0) }
add(reply, table.concat(numbers, ' '), table.concat(failures_of(numbers), ' '))
for _, item in ipairs(packed or items_of(numbers)) do reply[#reply + 1] = item or '' end
return reply
