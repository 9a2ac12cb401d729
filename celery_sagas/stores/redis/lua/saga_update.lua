-- uses: clock many rows removal effects instance
-- Commit a change of the instance that was found.
-- KEYS: outbox, due, leases, failures, index, journal, order, heads, completed, instances, reservations, keys of its saga,
--   keys of each other name
-- ARGV: now (ms, or empty), digest, attempt, saga=key, entry, 1 if completed, instance id of the entry, owner, grace (ms),
--   number of rows, id, version that was found, holder, head and tail of the record, number of removed keys, number of added
--   keys, number of withdrawn rows, each of those keys as <property>=<value>, id of each of those rows; 4 for each row
-- Answers with: ok, handled, version, reserved or unique.
-- A repeat finds its own attempt in the journal: ok, and nothing more is written.
local id, version, holder, head, tail = ARGV[11], ARGV[12], ARGV[13], ARGV[14], ARGV[15]
local first_removed, first_added = 19, 19 + ARGV[16]
local first_withdrawn = first_added + ARGV[17]
local last_added, last_withdrawn = first_withdrawn - 1, first_withdrawn + ARGV[18] - 1

-- Those of the ids in ARGV whose rows are there and are the instance's, and the members of the index about them.
local function decided_by(instance, first, last)
  check_rows()
  local ids, own, rows = {}, {}, {}
  for at = first, last do ids[#ids + 1] = ARGV[at] end
  for number, row in ipairs(rows_of(ids)) do
    local _, _, decider = read_row(row)
    if decider == instance then own[#own + 1], rows[#rows + 1] = ids[number], row end
  end
  return own, members_of(own, rows)
end

local said = handled() or changed(id, version, holder) or taken(first_added, last_added) or refused_effects()
if said then return said end
local paths, kept = last_added >= first_removed and held(id) or {}, {}
local withdrawn, members
if last_withdrawn >= first_withdrawn then withdrawn, members = decided_by(id, first_withdrawn, last_withdrawn) end

redis.call('HSET', instances, id, head .. string.format('%.0f', now) .. tail)
if reservation then redis.call('HDEL', reservations, id) end
if last_added >= first_removed then
  local removed = {}
  for at = first_removed, first_added - 1 do removed[ARGV[at]] = free(id, ARGV[at]) end
  for _, path in ipairs(paths) do
    if not removed[path] then kept[#kept + 1] = path end
  end
  for at = first_added, last_added do
    redis.call('HSET', keys, ARGV[at], id)
    kept[#kept + 1] = ARGV[at]
  end
  note_held(id, kept)
end
if withdrawn then remove_rows(withdrawn, members) end
write_effects()
return 'ok'
