-- The outgoing rows of a commit, and its entry. Expects many, rows and journal; ARGV[3] to [5]: owner, grace (ms), number of
-- rows, [13] instance id of the entry; and the rows as the last of ARGV: id, due at (ms), 1 if it ends with its instance, packed
-- row.
local owner, grace, instance_id = ARGV[3], tonumber(ARGV[4]), ARGV[13]
local first_row = #ARGV - 4 * ARGV[5] + 1

-- 'unique' if a row is there already, or nil. Reads from each key that write_effects writes to, but for the order.
local function refused_effects()
  check_entry()
  if first_row > #ARGV then return nil end
  check_rows()
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
  write_entry()
  if first_row <= #ARGV then write_rows() end
end
