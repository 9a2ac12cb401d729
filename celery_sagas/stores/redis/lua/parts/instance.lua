-- An instance. Expects journal; KEYS[10] instances, [11] locks. A record begins with its version.
local instances, locks = KEYS[10], KEYS[11]
local lock

-- 'version' if the instance is not as it was found, 'locked' if another owner's lock lasts, or nil.
local function changed(id, version, owner)
  local record = redis.call('HGET', instances, id)
  if not record or string.match(record, '^%d+') ~= version then return 'version' end
  lock = redis.call('HGET', locks, id)
  if not lock then return nil end
  local ends_at, by = string.match(lock, '^(%d+) (.*)$')
  if by and by ~= owner and tonumber(ends_at) > now then return 'locked' end
end
