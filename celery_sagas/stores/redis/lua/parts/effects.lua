-- What every commit writes beside the instance. Expects KEYS[6] to [9] after those of the rows, ARGV[1] to [10], and the rows
-- as the last of ARGV: id, due at (ms), 1 if it ends with its instance, packed row.
-- An entry is kept as: <at> <number> <digest of the key's entry before it, or -> <bytes of attempt> <bytes of saga=key> …
local journal, order, heads, completed = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local now, digest, attempt, subject, entry = clock(ARGV[1]), ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local completes, instance_id, owner, grace, rows = ARGV[6], ARGV[7], ARGV[8], tonumber(ARGV[9]), tonumber(ARGV[10])
local first_row = #ARGV - 4 * rows + 1
local newest

-- 'ok' if this attempt has committed before, 'handled' if another has, or nil.
local function handled()
  local known = redis.call('HGET', journal, digest)
  if not known then return nil end
  local bytes, start = string.match(known, '^%S+ %S+ %S+ (%d+)[^\n]*\n()')
  if bytes and string.sub(known, start, start + bytes - 1) == attempt then return 'ok' end
  return 'handled'
end

-- 'unique' if a row is there already, or nil. Reads from each key that write_effects writes to.
local function refused_effects()
  redis.call('LLEN', order)
  newest = redis.call('HGET', heads, subject)
  if completes == '1' then redis.call('HLEN', completed) end
  if rows > 0 then check_rows() end
  for at = first_row, #ARGV, 4 do
    if redis.call('HEXISTS', outbox, ARGV[at]) == 1 then return 'unique' end
  end
end

-- Write all rows in few commands.
local function write_rows()
  local packed, since, leased, members = {}, {}, {}, {}
  for at = first_row, #ARGV, 4 do
    local id, due_since = ARGV[at], tonumber(ARGV[at + 1])
    add(packed, id, ARGV[at + 3])
    add(since, due_since > 0 and due_since or now + grace, id)
    if due_since <= 0 then add(leased, id, ' ' .. owner) end
    add(members, 0, of_cause(digest) .. id)
    if ARGV[at + 2] == '1' then add(members, 0, of_instance(instance_id) .. digest .. ':' .. id) end
  end
  in_parts(packed, function(...) redis.call('HSET', outbox, ...) end)
  in_parts(since, function(...) redis.call('ZADD', due, ...) end)
  in_parts(leased, function(...) redis.call('HSET', leases, ...) end)
  in_parts(members, function(...) redis.call('ZADD', index, ...) end)
end

local function write_effects()
  local number, before = string.match(newest or '', '^(%d+) (%S+)$')
  number = string.format('%.0f', (number or 0) + 1)
  redis.call('HSET', journal, digest, string.format('%.0f ', now) .. number .. ' ' .. (before or '-') .. ' ' .. entry)
  redis.call('RPUSH', order, digest)
  redis.call('HSET', heads, subject, number .. ' ' .. digest)
  if completes == '1' then redis.call('HSET', completed, subject, digest) end
  if rows > 0 then write_rows() end
end
