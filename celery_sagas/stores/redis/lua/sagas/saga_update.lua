-- uses: clock journal place instance
-- Commit a change of the instance that was found.
-- KEYS: outbox, due, leases, failures, index, journal, order, heads, completed, instances, locks, listed and keys of
--   its saga, keys of each other name
-- ARGV: as parts/effects.lua says, with the numbers of removed keys and tags, of added ones and of cancelled rows; id, version
--   that was found, owner, head and tail of the record, each of those keys as <property>=<value>, and then the name of each of
--   those tags, the ids of those rows; 4 for each row
-- Answers with: ok, handled, version, locked or unique.
-- A repeat finds its own attempt in the journal: ok, and nothing more is written.
local id, version, owner, head, tail = ARGV[14], ARGV[15], ARGV[16], ARGV[17], ARGV[18]
local is_moved

local function write_record()
  redis.call('HSET', instances, id, head .. string.format('%.0f', now) .. tail)
  if lock then redis.call('HDEL', locks, id) end
  if not is_moved then return end
  redis.call('ZREM', listed, place(updated_at, id))
  redis.call('ZADD', listed, 0, place(now, id))
end

local said = handled() or changed(id, version, owner)
if said then return said end
is_moved = updated_at - updated_at % SLOT ~= now - now % SLOT
if is_moved then redis.call('ZCARD', listed) end
if ARGV[5] == '0' and ARGV[6] == '0' and ARGV[7] == '0' and ARGV[8] == '0' then
  check_entry()
  write_entry()
  write_record()
  return 'ok'
end
-- uses: many index outgoing rows trials removal effects tag key_list alternate_keys key_changes
local first_removed, first_added = 19, 19 + ARGV[6]
local first_cancelled = first_added + ARGV[7]
local last_added, last_cancelled = first_cancelled - 1, first_cancelled + ARGV[8] - 1

said = taken(first_added, last_added) or refused_effects()
if said then return said end
local paths, cancelled, members
if last_added >= first_removed then
  redis.call('ZCARD', listed)
  paths = held(id)
end
if last_cancelled >= first_cancelled then cancelled, members = decided_by(id, first_cancelled, last_cancelled) end

write_effects()
write_record()
if paths then change_held(id, paths, first_removed, first_added, last_added) end
if cancelled then remove_rows(cancelled, members) end
return 'ok'
