-- An instance. Expects journal; KEYS[10] instances, [11] reservations. A record begins with its version.
local instances, reservations = KEYS[10], KEYS[11]
local reservation

-- 'version' if the instance is not as it was found, 'reserved' if another holder's reservation lasts, or nil.
local function changed(id, version, holder)
  local record = redis.call('HGET', instances, id)
  if not record or string.match(record, '^%d+') ~= version then return 'version' end
  reservation = redis.call('HGET', reservations, id)
  if not reservation then return nil end
  local ends_at, by = string.match(reservation, '^(%d+) (.*)$')
  if by and by ~= holder and tonumber(ends_at) > now then return 'reserved' end
end
