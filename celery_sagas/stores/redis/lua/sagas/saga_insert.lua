-- uses: clock journal many index outgoing rows effects instance key_list alternate_keys
-- Commit a new instance.
-- KEYS: outbox, due, leases, failures, index, journal, order, heads, completed, instances, locks, keys of its saga,
--   keys of each former name
-- ARGV: as parts/effects.lua says, with the number of keys; id, head and tail of the record, each key as <property>=<value>; 4
--   for each row
-- Answers with: ok, handled or unique.
-- A repeat finds its own attempt in the journal: ok, and nothing more is written.
local id, head, tail, first, last = ARGV[14], ARGV[15], ARGV[16], 17, 16 + ARGV[6]

local said = handled() or (redis.call('HEXISTS', instances, id) == 1 and 'unique') or taken(first, last) or refused_effects()
if said then return said end

write_effects()
local time, paths = string.format('%.0f', now), {}
redis.call('HSET', instances, id, head .. time .. ' ' .. time .. tail)
for at = first, last do
  redis.call('HSET', keys, ARGV[at], id)
  if at > first then paths[#paths + 1] = ARGV[at] end
end
if #paths > 0 then note_held(id, paths) end
return 'ok'
