local unread = KEYS[13]
-- uses: clock many state trigger group items leases fresh oldest freeing attempts unread resolving answers
-- Make unresolved items of a group free again, where they stood, and fire its trigger for them.
-- KEYS: groups, order, due, items, sequence, seen, fresh ids, attempts, free, leases, leased, fresh, unread, answer of the call
-- ARGV: call, now (ms, or empty), group, size, within, idle, lease (ms), the number of each
-- Answers with: how many of them were unresolved.
-- A repeat finds none, and answers as the first call did.
local now, numbers = clock(ARGV[2]), {}

check_leases()
redis.call('ZCARD', unread)
local group, again = find_group(ARGV[3], fresh, free), answered()
if again then return again end
for at = 8, #ARGV do
  if unset_unread(group, ARGV[at]) then numbers[#numbers + 1] = ARGV[at] end
end
if #numbers == 0 then return 0 end

group.requested = 0
in_parts(numbers, function(...) redis.call('HDEL', attempts, ...) end)
free_again(group, numbers)
save_group(group, now)
return remember(#numbers)
