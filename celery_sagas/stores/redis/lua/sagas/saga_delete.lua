-- uses: clock journal many index outgoing rows trials removal effects place instance tag key_list
-- uses: alternate_keys
-- Commit the end of the instance that was found: it, its keys and tags, and the rows that end with it.
-- KEYS: outbox, due, leases, failures, index, journal, order, heads, completed, instances, locks, listed and keys of
--   its saga
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
local members = { place(updated_at, id) }
for _, path in ipairs(paths) do
  if is_tag(path) then members[#members + 1] = path .. id end
end
if #ended > 0 then check_rows() end
redis.call('LLEN', order) -- it is written last: a server whose memory is full allows what comes after a removal

redis.call('ZREM', listed, unpack(members)) -- first: nothing is written if the key is foreign
redis.call('HDEL', instances, id)
if lock then redis.call('HDEL', locks, id) end
redis.call('HDEL', keys, '#' .. id)
free(id, key)
for _, path in ipairs(paths) do
  if not is_tag(path) then free(id, path) end
end
if #ended > 0 then
  remove_rows(ended, ended_members)
  redis.call('ZREMRANGEBYLEX', index, range_of(of_instance(id)))
end
write_effects()
return 'ok'
