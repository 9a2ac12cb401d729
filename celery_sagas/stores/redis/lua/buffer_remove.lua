-- uses: clock many state gate group leases attempts keeping unkeeping answers
-- Remove the free or unresolved item with an id.
-- KEYS: groups, order, due, items, seen, sequence, attempts, free, leases, leased, kept, unresolved, notes, unread, rejected,
--   rejected ones of each group, answer of the call
-- ARGV: call, now (ms, or empty), group, size, within, idle, lease (ms), digest of the id, for how long it is remembered (ms,
--   0: not)
-- Answers with: -1 if it was removed; else how many items the group has.
-- A repeat finds the item gone, and answers as the first call did.
local now, digest, remember_ms = clock(ARGV[2]), ARGV[8], tonumber(ARGV[9])

check_leases()
check_kept()
local group = find_group(ARGV[3], free)
if answered() then return -1 end
local number = -tonumber(redis.call('ZSCORE', seen, digest) or 0)
if number <= 0 then return buffered(group) end
number = string.format('%.0f', number)
local handle, is_free = redis.call('ZRANGEBYSCORE', unread, number, number)[1], redis.call('ZSCORE', free, number)
if not handle and not is_free then return buffered(group) end

if is_free then
  redis.call('ZREM', free, number)
  group.free = group.free - 1
  look_at_oldest(group, free)
else
  local _, _, _, note = read_kept(handle)
  forget_unresolved(group, handle, note or '')
end
drop_items({ number }, { digest }, remember_ms > 0 and now + remember_ms or 0)
save_group(group, now)
return remember(-1)
