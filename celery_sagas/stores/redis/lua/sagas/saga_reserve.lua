-- uses: clock
-- Reserve an instance for a holder, whatever its version.
-- KEYS: instances, reservations
-- ARGV: now (ms, or empty), id, holder, for how long (ms; 0 ends the holder's reservation)
-- Answers with: 1 if the holder has it now, else 0.
-- A repeat is the same holder's: it begins the time anew.
local instances, reservations = KEYS[1], KEYS[2]
local now, id, holder, duration = clock(ARGV[1]), ARGV[2], ARGV[3], tonumber(ARGV[4])

if redis.call('HEXISTS', instances, id) == 0 then return 0 end
local ends_at, by = string.match(redis.call('HGET', reservations, id) or '', '^(%d+) (.*)$')
if by and by ~= holder and tonumber(ends_at) > now then return 0 end

if duration > 0 then
  redis.call('HSET', reservations, id, string.format('%.0f ', now + duration) .. holder)
else
  redis.call('HDEL', reservations, id)
end
return 1
