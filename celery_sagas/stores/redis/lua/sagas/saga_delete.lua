-- uses: clock journal many index outgoing rows removal effects instance key_list alternate_keys
-- Commit the end of the instance that was found: it, its keys, and the rows that end with it.
-- KEYS: outbox, due, leases, failures, index, journal, order, heads, completed, instances, locks, keys of its saga
-- ARGV: as parts/effects.lua says; id, version that was found, owner, $key=<key>; 4 for each row
-- Answers with: ok, handled, version, locked or unique.
-- A repeat finds its own attempt in the journal: ok, and nothing more is written.
local id, version, owner, key = ARGV[14], ARGV[15], ARGV[16], ARGV[17]

-- The ids of the rows that end with an instance, and the other members of the index about them.
local function ends_with(instance)
  local ids, members = under(of_instance(instance)), {}
  for number, rest in ipairs(ids) do
    ids[number], members[number] = string.match(rest, ':(.*)'), 'c:' .. rest
  end
  return ids, members
end

local said = handled() or changed(id, version, owner) or refused_effects()
if said then return said end
local paths, ended, ended_members = held(id), ends_with(id)
if #ended > 0 then check_rows() end
redis.call('LLEN', order) -- it is written last: a server whose memory is full allows what comes after a removal

redis.call('HDEL', instances, id)
if lock then redis.call('HDEL', locks, id) end
redis.call('HDEL', keys, '#' .. id)
free(id, key)
for _, path in ipairs(paths) do free(id, path) end
if #ended > 0 then
  remove_rows(ended, ended_members)
  redis.call('ZREMRANGEBYLEX', index, range_of(of_instance(id)))
end
write_effects()
return 'ok'
