local unread = KEYS[13]
-- uses: clock many state trigger group items leases fresh oldest freeing attempts unread resolving ending answers
-- End a lease: its items are free again, but for the unreadable ones, and for the rejected ones, whose dead letters are kept.
-- KEYS: groups, order, due, items, sequence, seen, fresh ids, attempts, free, leases, leased, fresh; if an item is unreadable or
--   rejected also unread, dead letters, dead letters by time; answer of the call
-- ARGV: call, now (ms, or empty), group, size, within, idle, lease (ms), token, for how long the ids are remembered (ms, 0: not
--   at all), 1 if an attempt is counted, delay (ms), what parts/ending.lua says
-- Answers with: 1, or 0 if the token has no lease.
-- A repeat changes nothing, and answers as the first call did.
local now, token, remember_ms = clock(ARGV[2]), ARGV[8], tonumber(ARGV[9])

check_leases()
check_ending()
local group = find_group(ARGV[3], fresh, free)
if answered() then return 1 end
if redis.call('HEXISTS', leases, token) == 0 then return 0 end

local others, _, rejected, rejected_digests = divide(group, token, 12, now)
if ARGV[10] == '1' then count_attempts(others) end
free_again(group, others)
drop_items(rejected, rejected_digests, now, remember_ms)
group.paused = math.max(group.paused, now + ARGV[11])
request(group, math.max(group.requested, now + ARGV[11] + lease_ms))
save_group(group, now)
return remember(1)
