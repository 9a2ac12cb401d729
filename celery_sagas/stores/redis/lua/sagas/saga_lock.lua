-- uses: clock
-- Lock an instance for an owner, whatever its version.
-- KEYS: instances, locks
-- ARGV: now (ms, or empty), id, owner, for how long (ms; 0 ends the owner's lock)
-- Answers with: 1 if the owner has it now, else 0.
-- A repeat is the same owner's: it restarts the time.
local instances, locks = KEYS[1], KEYS[2]
local now, id, owner, duration = clock(ARGV[1]), ARGV[2], ARGV[3], tonumber(ARGV[4])

if redis.call('HEXISTS', instances, id) == 0 then return 0 end
local ends_at, by = string.match(redis.call('HGET', locks, id) or '', '^(%d+) (.*)$')
if by and by ~= owner and tonumber(ends_at) > now then return 0 end

if duration > 0 then
  redis.call('HSET', locks, id, string.format('%.0f ', now + duration) .. owner)
else
  redis.call('HDEL', locks, id)
end
return 1
