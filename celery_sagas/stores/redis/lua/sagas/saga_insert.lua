-- uses: clock journal place instance tag key_list alternate_keys
-- Commit a new instance.
-- KEYS: outbox, due, leases, failures, index, journal, order, heads, completed, instances, locks, listed and keys of
--   its saga, keys of each former name
-- ARGV: as parts/effects.lua says, with the number of keys and tags; id, head and tail of the record, its key and each
--   alternate key as <property>=<value>, the name of each tag; 4 for each row
-- Answers with: ok, handled or unique.
-- A repeat finds its own attempt in the journal: ok, and nothing more is written.
local id, head, tail, first, last = ARGV[14], ARGV[15], ARGV[16], 17, 16 + ARGV[6]

local function write_instance()
  local time, paths = string.format('%.0f', now), {}
  redis.call('HSET', instances, id, head .. time .. ' ' .. time .. tail)
  redis.call('HSET', keys, ARGV[first], id)
  redis.call('ZADD', listed, 0, place(now, id))
  for at = first + 1, last do
    local path = ARGV[at]
    if is_tag(path) then redis.call('ZADD', listed, 0, path .. id) else redis.call('HSET', keys, path, id) end
    paths[#paths + 1] = path
  end
  if #paths > 0 then note_held(id, paths) end
  return 'ok'
end

local said = handled() or (redis.call('HEXISTS', instances, id) == 1 and 'unique') or taken(first, last)
if said then return said end
redis.call('ZCARD', listed)
if ARGV[5] == '0' then
  check_entry()
  write_entry()
  return write_instance()
end
-- uses: many index outgoing rows effects
said = refused_effects()
if said then return said end

write_effects()
return write_instance()
