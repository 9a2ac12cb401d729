-- uses: clock many state trigger group items leases fresh
-- Restart the time of a lease.
-- KEYS: groups, order, due, items, sequence, seen, fresh ids, attempts, free, leases, leased, fresh
-- ARGV: call, now (ms, or empty), group, size, within, idle, lease (ms), token
-- Answers with: 1 if the token has the lease, else 0.
-- A repeat is the same token's: it restarts the time.
check_leases()
local now, token, group = clock(ARGV[2]), ARGV[8], find_group(ARGV[3], fresh, free)
local lease = redis.call('HGET', leases, token)
if not lease then return 0 end

local rest = string.match(lease, ' .*$') or ''
redis.call('HSET', leases, token, string.format('%.0f', now + lease_ms) .. rest)
look_at_leases(group)
save_group(group, now)
return 1
