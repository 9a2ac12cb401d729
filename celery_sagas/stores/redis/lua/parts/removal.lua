-- Removes outgoing rows, in few commands. Expects many, rows and trials.

-- The packed rows with these ids; false in the place of one that is gone.
local function rows_of(ids)
  local rows = {}
  in_parts(ids, function(...)
    for _, row in ipairs(redis.call('HMGET', outbox, ...)) do rows[#rows + 1] = row end
  end)
  return rows
end

-- What a row says: the digest of the deciding message, 1 if it ends with its instance, and that instance's id; nothing if it is
-- gone.
local function read_row(row)
  local digest, ends, bytes, start = string.match(row or '', '^%S+ (%S+) (%d) (%d+)[^\n]*\n()')
  if digest then return digest, ends, string.sub(row, start, start + bytes - 1) end
end

-- The members of the index about rows.
local function members_of(ids, rows)
  local members = {}
  for number, id in ipairs(ids) do
    local digest, ends, instance = read_row(rows[number])
    if digest then members[#members + 1] = of_cause(digest) .. id end
    if ends == '1' then members[#members + 1] = of_instance(instance) .. digest .. ':' .. id end
  end
  return members
end

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

local function remove_rows(ids, members)
  add_trials(members, ids)
  in_parts(members, function(...) redis.call('ZREM', index, ...) end)
  in_parts(ids, function(...)
    redis.call('HDEL', outbox, ...)
    redis.call('ZREM', due, ...)
    redis.call('HDEL', leases, ...)
    redis.call('HDEL', failures, ...)
  end)
end
