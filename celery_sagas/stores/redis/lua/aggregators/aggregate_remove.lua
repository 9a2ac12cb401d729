local unread = KEYS[13]
-- uses: clock many state trigger group items leases fresh oldest freeing attempts unread resolving ending answers
-- uses: index outgoing sends
-- End a lease: remove its items, but for the unreadable ones, keep the dead letters of the rejected ones, and send something.
-- KEYS: groups, order, due, items, sequence, seen, fresh ids, attempts, free, leases, leased, fresh; if an item is unreadable or
--   rejected, or if something is sent, also unread, dead letters, dead letters by time; if something is sent also outbox, its due
--   times, leases, failures and index; answer of the call
-- ARGV: call, now (ms, or empty), group, size, within, idle, lease (ms), token, for how long the ids are remembered (ms, 0: not
--   at all), what parts/sends.lua says, what parts/ending.lua says
-- Answers with: 1 if the caller must ask for a flush, 0 if not, -1 if the token has no lease.
-- A repeat changes nothing, and answers as the first call did.
local now, token, remember_ms = clock(ARGV[2]), ARGV[8], tonumber(ARGV[9])

check_leases()
check_ending()
check_sends()
local group, again = find_group(ARGV[3], fresh, free), answered()
if again then return again end
if redis.call('HEXISTS', leases, token) == 0 then return -1 end

local gone, gone_digests, rejected, rejected_digests = divide(group, token, last_row + 1, now)
drop_items(gone, gone_digests, now, remember_ms)
drop_items(rejected, rejected_digests, now, remember_ms)
write_sends(now)
local needs_flush = request_flush(group, now)
save_group(group, now)
return remember(needs_flush and 1 or 0)
