-- Items under leases. Expects group; KEYS[8] to [11]: attempts, free, leases, leased.
-- A lease is kept as <until, ms> <items> <unresolved items> <1 if there is more> <reason>; what it is on as <number> <digest> ….
local attempts, free, leases, leased = KEYS[8], KEYS[9], KEYS[10], KEYS[11]

-- Read from each key, so that a foreign one is noticed before the first write.
local function check_leases()
  redis.call('HLEN', attempts)
  redis.call('HLEN', leases)
  redis.call('HLEN', leased)
end

-- The numbers of the items under a lease, and their digests.
local function leased_by(token)
  local numbers, digests = {}, {}
  for number, digest in string.gmatch(redis.call('HGET', leased, token) or '', '(%d+) (%S+)') do
    numbers[#numbers + 1], digests[#digests + 1] = number, digest
  end
  return numbers, digests
end

-- Note how many items are under leases, and when the first one ends.
local function look_at_leases(group)
  group.leased, group.lease_end = 0, 0
  for _, lease in ipairs(redis.call('HVALS', leases)) do
    local ends_at, count = string.match(lease, '^(%d+) (%d+) ')
    ends_at = tonumber(ends_at or 1)
    group.leased = group.leased + (count or 0)
    if group.lease_end == 0 or ends_at < group.lease_end then group.lease_end = ends_at end
  end
end

local function end_lease(group, token)
  redis.call('HDEL', leases, token)
  redis.call('HDEL', leased, token)
  look_at_leases(group)
end
