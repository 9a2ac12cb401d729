-- uses: clock many state trigger group items leases fresh oldest freeing answers
-- Fire the trigger of a group for everything that is free or leased, and request its flush.
-- KEYS: groups, order, due, items, sequence, seen, fresh ids, attempts, free, leases, leased, fresh, answer of the call
-- ARGV: call, now (ms, or empty), group, size, within, idle, lease (ms)
-- Answers with: 1, or 0 if nothing is free or leased.
-- A repeat fires nothing, and answers as the first call did.
check_leases()
local now, group = clock(ARGV[2]), find_group(ARGV[3], fresh, free)
if answered() then return 1 end

local last = last_free(group)
for _, list in ipairs(redis.call('HVALS', leased)) do last = math.max(last, tonumber(string.match(list, '(%d+) %S+$') or 0)) end
if last == 0 then return 0 end

fire_trigger(group, last, 'requested')
group.paused = 0
request(group, now + lease_ms)
save_group(group, now)
return remember(1)
