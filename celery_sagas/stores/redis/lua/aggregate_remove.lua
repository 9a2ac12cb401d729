-- uses: clock many state gate group items leases fresh oldest freeing attempts keeping ending answers
-- End a lease: remove its items, but for those that are kept.
-- KEYS: groups, order, due, items, sequence, seen, fresh ids, attempts, free, leases, leased, fresh; if something is kept
--   also kept, unresolved, notes, unread, rejected, rejected ones of each group; answer of the call
-- ARGV: call, now (ms, or empty), group, size, within, idle, lease (ms), token, for how long the ids are remembered (ms, 0: not
--   at all); for each kept item its number, unresolved or rejected, the note
-- Answers with: 1 if a flush is to be asked for, 0 if not, -1 if the token has no lease.
-- A repeat changes nothing, and answers as the first call did.
local now, token, remember_ms = clock(ARGV[2]), ARGV[8], tonumber(ARGV[9])
local ends_at = remember_ms > 0 and now + remember_ms or 0

check_leases()
if #ARGV > 9 then check_kept() end
local group, again = find_group(ARGV[3], fresh, free), answered()
if again then return again end
if redis.call('HEXISTS', leases, token) == 0 then return -1 end

local numbers, digests = leased_by(token)
local gone, gone_digests, keeping = divide(numbers, digests, 10)
end_lease(group, token)
drop_items(gone, gone_digests, ends_at)
keep_items(group, keeping, ends_at, now)
local is_open = ask(group, now)
save_group(group, now)
return remember(is_open and 1 or 0)
