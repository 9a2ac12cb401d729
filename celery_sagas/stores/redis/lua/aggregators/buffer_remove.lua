local unread = KEYS[13]
-- uses: clock many state trigger group items leases fresh oldest freeing attempts unread resolving answers
-- Remove the free or unresolved item with an id, or only if it is unresolved.
-- KEYS: groups, order, due, items, sequence, seen, fresh ids, attempts, free, leases, leased, fresh, unread, answer of the call
-- ARGV: call, now (ms, or empty), group, size, within, idle, lease (ms), digest of the id, for how long it is remembered (ms,
--   0: not), 1 if it must be unresolved
-- Answers with: -1 if it was removed; else how many items the group has.
-- A repeat finds the item gone, and answers as the first call did.
local now, digest, remember_ms = clock(ARGV[2]), ARGV[8], tonumber(ARGV[9])

check_leases()
redis.call('ZCARD', unread)
local group = find_group(ARGV[3], fresh, free)
if answered() then return -1 end
local is_fresh, number = redis.call('HEXISTS', fresh_ids, digest) == 1, redis.call('HGET', items, digest)
local is_free = ARGV[10] ~= '1' and (is_fresh or number and redis.call('ZSCORE', free, number))
if not is_free and not (number and unset_unread(group, number)) then return buffered(group) end

if is_free then
  if is_fresh then
    redis.call('HDEL', fresh_ids, digest)
    group.dead = group.dead + 1
  else
    redis.call('ZREM', free, number)
  end
  group.free = group.free - 1
  look_at_oldest(group)
end
drop_items({ number or nil }, { digest }, now, remember_ms)
save_group(group, now)
return remember(-1)
