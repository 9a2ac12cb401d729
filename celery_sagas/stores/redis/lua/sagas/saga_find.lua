-- uses: clock
-- Find an instance, and the entry of a message. It only reads.
-- KEYS: locks, journal; for each name of the saga: instances, keys
-- ARGV: now (ms, or empty), <property>=<value> (empty: by id), id, digest of step and message id for each name of the step
-- Answers with: a line of the number of the name from 1 (0: none), the bytes of id, record and entry; these one after the other;
-- the owner of the lock, if there is one. One text is read faster than five.
-- - in the place of the bytes of a record, under a name: the key is there, and its instance is not; of an entry: there is none.
local locks, journal = KEYS[1], KEYS[2]
local path, id = ARGV[2], ARGV[3]
local name, record, owner, entry = 0, false, '', false

for at = 3, #KEYS, 2 do
  local found = path == '' and id or redis.call('HGET', KEYS[at + 1], path)
  local stored = found and redis.call('HGET', KEYS[at], found)
  if stored or (found and path ~= '') then
    name, id, record = (at - 1) / 2, found, stored
    break
  end
end

if record then
  local lock = redis.call('HGET', locks, id)
  if lock then
    local ends_at, by = string.match(lock, '^(%d+) (.*)$')
    if by and tonumber(ends_at) > clock(ARGV[1]) then owner = by end
  end
end

for at = 4, #ARGV do
  entry = redis.call('HGET', journal, ARGV[at])
  if entry then break end
end

local lengths = name .. ' ' .. #id .. ' ' .. (record and #record or '-') .. ' ' .. (entry and #entry or '-')
return lengths .. '\n' .. id .. (record or '') .. (entry or '') .. owner
