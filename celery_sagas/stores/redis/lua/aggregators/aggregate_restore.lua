-- uses: clock many state trigger group items leases fresh oldest freeing answers
-- Put a rejected item back where it stood, remove its dead letter, and fire the trigger for it, unless its id is buffered again.
-- KEYS: groups, order, due, items, sequence, seen, fresh ids, attempts, free, leases, leased, fresh, unread, dead letters,
--   dead letters by time, answer of the call
-- ARGV: call, now (ms, or empty), group, size, within, idle, lease (ms), id of the dead letter, number of the item, its digest,
--   the packed item
-- Answers with: 1, or 0 if its id is buffered again, or the dead letter gone.
-- A repeat finds the dead letter gone, and answers as the first call did.
local now, dead_letters, dead_letters_at = clock(ARGV[2]), KEYS[14], KEYS[15]
local dead_letter, number, digest, packed = ARGV[8], ARGV[9], ARGV[10], ARGV[11]

check_leases()
redis.call('ZCARD', dead_letters_at)
local group = find_group(ARGV[3], fresh, free)
if answered() then return 1 end
if redis.call('HEXISTS', dead_letters, dead_letter) == 0 then return 0 end
if redis.call('HEXISTS', items, digest) + redis.call('HEXISTS', fresh_ids, digest) > 0 then return 0 end

redis.call('HSET', items, number, packed, digest, number)
redis.call('ZREM', seen, digest)
group.requested = 0
free_again(group, { number })
save_group(group, now)
redis.call('HDEL', dead_letters, dead_letter)
redis.call('ZREM', dead_letters_at, dead_letter)
return remember(1)
