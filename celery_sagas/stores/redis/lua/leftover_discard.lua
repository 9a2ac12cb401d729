-- uses: clock many state gate group items leases fresh attempts keeping unkeeping answers
-- Remove kept items of a group for good.
-- KEYS: groups, order, due, items, sequence, seen, fresh ids, attempts, free, leases, leased, fresh, kept, unresolved,
--   notes, unread, rejected, rejected ones of each group, answer of the call
-- ARGV: call, now (ms, or empty), group, size, within, idle, lease (ms), for how long ids are remembered (ms, 0: not at all),
--   each handle
-- Answers with: how many there were.
-- A repeat finds them gone, and answers as the first call did.
local now, remember_ms, discarded = clock(ARGV[2]), tonumber(ARGV[8]), 0

check_leases()
check_kept()
local group, again = find_group(ARGV[3], fresh, free), answered()
if again then return again end
for at = 9, #ARGV do
  local kind, number, of, note = read_kept(ARGV[at])
  if kind and of == group.name then
    discarded = discarded + 1
    if kind == 'u' then
      local digest = digest_of(redis.call('HGET', items, number))
      forget_unresolved(group, ARGV[at], note)
      drop_items({ number }, { digest }, remember_ms > 0 and now + remember_ms or 0)
    else
      forget_rejected(group, ARGV[at])
    end
  end
end
if discarded == 0 then return 0 end

save_group(group, now)
return remember(discarded)
