-- Outgoing rows. Expects index; KEYS[1] to [5]: outbox, due, leases, failures, index.
-- A row begins with: <due at> <digest of the deciding message> <1 if it ends with its instance> <bytes of instance id>
local outbox, due, leases, failures, index = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]

-- Read from each key, so that a foreign one is noticed before the first write.
local function check_rows()
  redis.call('HLEN', outbox)
  redis.call('ZCARD', due)
  redis.call('HLEN', leases)
  redis.call('HLEN', failures)
  redis.call('ZCARD', index)
end

-- The first and the last member of the index under a prefix, which ends in a colon; a semicolon follows the colon.
local function range_of(prefix) return '[' .. prefix, '(' .. string.sub(prefix, 1, -2) .. ';' end

-- What follows a prefix in the index.
local function under(prefix)
  local rests = redis.call('ZRANGEBYLEX', index, range_of(prefix))
  for number, member in ipairs(rests) do rests[number] = string.sub(member, #prefix + 1) end
  return rests
end

-- A lease is kept as: <call> <token>; the call is empty for the commit that wrote the row, and - once the lease was ended.
local function is_of(lease, token)
  return lease and string.match(lease, '^%S* (.*)$') == token
end

-- The ids in ARGV, from a position on, of rows whose lease is, or was last, this token's.
local function held_by(token, first)
  local ids = {}
  for number, lease in ipairs(redis.call('HMGET', leases, unpack(ARGV, first))) do
    if is_of(lease, token) then ids[#ids + 1] = ARGV[first + number - 1] end
  end
  return ids
end
