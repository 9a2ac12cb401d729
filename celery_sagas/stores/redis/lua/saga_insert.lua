-- uses: clock many rows effects instance
-- Commit a new instance.
-- KEYS: outbox, due, leases, failures, index, journal, order, heads, completed, instances, reservations, keys of its saga,
--   keys of each former name
-- ARGV: now (ms, or empty), digest, attempt, saga=key, entry, 1 if completed, instance id of the entry, owner, grace (ms),
--   number of rows, id, head and tail of the record, number of keys, each key as <property>=<value>; 4 for each row
-- Answers with: ok, handled or unique.
-- A repeat finds its own attempt in the journal: ok, and nothing more is written.
local id, head, tail, first, last = ARGV[11], ARGV[12], ARGV[13], 15, 14 + ARGV[14]

local said = handled() or (redis.call('HEXISTS', instances, id) == 1 and 'unique') or taken(first, last) or refused_effects()
if said then return said end

local time, paths = string.format('%.0f', now), {}
redis.call('HSET', instances, id, head .. time .. ' ' .. time .. tail)
for at = first, last do
  redis.call('HSET', keys, ARGV[at], id)
  if at > first then paths[#paths + 1] = ARGV[at] end
end
if #paths > 0 then note_held(id, paths) end
write_effects()
return 'ok'
