-- Read a piece of a key's history, newest entry first. It only reads.
-- KEYS: journal, heads
-- ARGV: saga=key, number and digest of the entry to begin with (0: the newest), how many at most
-- Answers with: number and digest of the entry to go on with (0: that was all), then the entries.
-- The number distinguishes an entry from one that was committed under its digest later, after the first was purged.
local number, digest, limit = tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
if number == 0 then
  local newest, newest_digest = string.match(redis.call('HGET', KEYS[2], ARGV[1]) or '', '^(%d+) (%S+)$')
  number, digest = tonumber(newest) or 0, newest_digest or ''
end

local reply = { 0, '' }
while number > 0 and #reply < limit + 2 do
  local entry = redis.call('HGET', KEYS[1], digest)
  local found, before = string.match(entry or '', '^%S+ (%d+) (%S+) ')
  if entry and found and tonumber(found) ~= number then entry = nil end
  if not entry then return reply end
  reply[#reply + 1] = entry
  number, digest = before and before ~= '-' and number - 1 or 0, before or ''
end
if number > 0 then reply[1], reply[2] = number, digest end
return reply
