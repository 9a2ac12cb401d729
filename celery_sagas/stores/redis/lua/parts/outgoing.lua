-- Writes outgoing rows. Expects many and index. A row is four of ARGV: id, due at (ms), 1 if it ends with its instance, packed
-- row.

-- Write the rows in ARGV, from a position to another, in few commands. to: the keys of outbox, due, leases and index; lease:
-- owner and end (ms) of the first lease of those without a due time; by: the digest of the deciding message, and the instance id.
local function put_rows(first, last, to, lease, by)
  local packed, since, leased, members = {}, {}, {}, {}
  for at = first, last, 4 do
    local id, due_since = ARGV[at], tonumber(ARGV[at + 1])
    add(packed, id, ARGV[at + 3])
    add(since, due_since > 0 and due_since or lease[2], id)
    if due_since <= 0 then add(leased, id, ' ' .. lease[1]) end
    add(members, 0, of_cause(by[1]) .. id)
    if ARGV[at + 2] == '1' then add(members, 0, of_instance(by[2]) .. by[1] .. ':' .. id) end
  end
  in_parts(packed, function(...) redis.call('HSET', to[1], ...) end)
  in_parts(since, function(...) redis.call('ZADD', to[2], ...) end)
  in_parts(leased, function(...) redis.call('HSET', to[3], ...) end)
  in_parts(members, function(...) redis.call('ZADD', to[4], ...) end)
end
