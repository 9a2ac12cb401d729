-- When a group is flushed, as core/aggregators/rules.py says. Expects ARGV[1] call, [4] to [7]: size, within, idle and lease (ms;
-- 0: not at all).
local size, within, idle, lease_ms = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])

-- Why the trigger has fired, or nil.
local function reason_of(group, now)
  if group.free == 0 then return nil end
  if size > 0 and group.free >= size then return 'size' end
  if group.oldest <= group.fired_to then return group.fired_why end
  if within > 0 and group.oldest_at + within <= now then return 'age' end
  if idle > 0 and group.last_at + idle <= now then return 'idle' end
end

-- When the group must be checked again; 0: when its next item comes.
local function due_of(group, now)
  if group.requested > now then return group.requested end
  local at = group.lease_end > 0 and group.lease_end or math.huge
  if reason_of(group, now) then
    at = math.min(at, now)
  elseif group.free > 0 and within > 0 then
    at = math.min(at, group.oldest_at + within)
  end
  if group.free > 0 and idle > 0 then at = math.min(at, group.last_at + idle) end
  return at < math.huge and at or 0
end

-- Request a flush, if the trigger has fired and none is requested; return whether it was.
local function request_flush(group, now)
  if group.requested > now or not reason_of(group, now) then return false end
  group.requested, group.requested_by = now + lease_ms, ARGV[1]
  return true
end
