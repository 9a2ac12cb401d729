local unread = KEYS[13]
-- uses: clock many state trigger group items leases fresh oldest freeing attempts unread resolving answers
-- Remove the first items of a group, whatever their state; its leases are given up.
-- KEYS: groups, order, due, items, sequence, seen, fresh ids, attempts, free, leases, leased, fresh, unread, answer of the call
-- ARGV: call, now (ms, or empty), group, size, within, idle, lease (ms), for how long ids are remembered (ms, 0: not at all), how
--   many at most, beside those under leases
-- Answers with: how many items were removed.
-- A repeat removes nothing, and answers as the first call did.
local now, remember_ms, limit, removed = clock(ARGV[2]), tonumber(ARGV[8]), tonumber(ARGV[9]), 0

local function drop(numbers, digests)
  if not digests then
    digests = {}
    for position, packed in ipairs(items_of(numbers)) do digests[position] = digest_of(packed) end
  end
  drop_items(numbers, digests, now, remember_ms)
  removed = removed + #numbers
end

check_leases()
redis.call('ZCARD', unread)
local group, again = find_group(ARGV[3], fresh, free), answered()
if again then return again end
for _, token in ipairs(redis.call('HKEYS', leases)) do
  drop(leased_by(token))
  end_lease(group, token)
end

local numbers = first_unread(group.name, 0, limit)
for _, number in ipairs(numbers) do unset_unread(group, number) end
drop(numbers)

if limit > #numbers then
  local first = take_free(group, limit - #numbers)
  drop(first)
  group.free = group.free - #first
end
look_at_oldest(group)
save_group(group, now)
return removed > 0 and remember(removed) or 0
