-- uses: clock many state gate group items leases fresh oldest freeing attempts keeping unkeeping answers
-- Make kept items of a group free again, where they stood, and open its gate for them; but for rejected ones whose id is buffered
-- again.
-- KEYS: groups, order, due, items, sequence, seen, fresh ids, attempts, free, leases, leased, fresh, kept, unresolved,
--   notes, unread, rejected, rejected ones of each group, answer of the call
-- ARGV: call, now (ms, or empty), group, size, within, idle, lease (ms), each handle
-- Answers with: how many are free again.
-- A repeat finds them gone, and answers as the first call did.
local now, numbers = clock(ARGV[2]), {}

check_leases()
check_kept()
local group, again = find_group(ARGV[3], fresh, free), answered()
if again then return again end
for at = 8, #ARGV do
  local kind, number, of, note, item = read_kept(ARGV[at])
  local is_of_group, digest = kind and of == group.name, digest_of(item)
  if is_of_group and kind == 'u' then
    forget_unresolved(group, ARGV[at], note)
    numbers[#numbers + 1] = number
  elseif is_of_group and redis.call('HEXISTS', items, digest) + redis.call('HEXISTS', fresh_ids, digest) == 0 then
    forget_rejected(group, ARGV[at])
    redis.call('HSET', items, number, item, digest, number)
    redis.call('ZREM', seen, digest)
    numbers[#numbers + 1] = number
  end
end
if #numbers == 0 then return 0 end

group.marked = 0
in_parts(numbers, function(...) redis.call('HDEL', attempts, ...) end)
free_again(group, numbers)
save_group(group, now)
return remember(#numbers)
