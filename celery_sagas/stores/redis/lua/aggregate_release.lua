-- uses: clock many state gate group items leases fresh oldest freeing attempts keeping ending answers
-- End a lease: its items are free again, but for those that are kept.
-- KEYS: groups, order, due, items, sequence, seen, fresh ids, attempts, free, leases, leased, fresh; if something is kept
--   also kept, unresolved, notes, unread, rejected, rejected ones of each group; answer of the call
-- ARGV: call, now (ms, or empty), group, size, within, idle, lease (ms), token, for how long the ids are remembered (ms, 0: not
--   at all), 1 if an attempt is counted, delay (ms); for each kept item its number, unresolved or rejected, the note
-- Answers with: 1, or 0 if the token has no lease.
-- A repeat changes nothing, and answers as the first call did.
local now, token, remember_ms = clock(ARGV[2]), ARGV[8], tonumber(ARGV[9])
local ends_at = remember_ms > 0 and now + remember_ms or 0

check_leases()
if #ARGV > 11 then check_kept() end
local group = find_group(ARGV[3], fresh, free)
if answered() then return 1 end
if redis.call('HEXISTS', leases, token) == 0 then return 0 end

local numbers, digests = leased_by(token)
local others, _, keeping = divide(numbers, digests, 12)
if ARGV[10] == '1' then count_attempts(others) end
end_lease(group, token)
free_again(group, others)
keep_items(group, keeping, ends_at, now)
group.paused = math.max(group.paused, now + ARGV[11])
mark(group, math.max(group.marked, now + ARGV[11] + lease_ms))
save_group(group, now)
return remember(1)
