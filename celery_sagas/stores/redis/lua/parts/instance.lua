-- An instance. Expects journal; KEYS[10] instances, [11] locks, [12] listed. A record begins with: <version> <schema
-- version> <created at> <updated at>
local instances, locks, listed = KEYS[10], KEYS[11], KEYS[12]
local lock, updated_at

-- 'version' if the instance is not as it was found, 'locked' if another owner's lock lasts, or nil.
local function changed(id, version, owner)
  local record = redis.call('HGET', instances, id)
  local found
  found, updated_at = string.match(record or '', '^(%d+) %d+ %d+ (%d+)')
  if found ~= version then return 'version' end
  lock = redis.call('HGET', locks, id)
  if not lock then return nil end
  local ends_at, by = string.match(lock, '^(%d+) (.*)$')
  if by and by ~= owner and tonumber(ends_at) > now then return 'locked' end
end
