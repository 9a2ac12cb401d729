-- Read entries in a piece of the journal, newest first. It only reads.
-- KEYS: journal, order, heads
-- ARGV: the position before which to begin (empty: the end), how many entries to look at, how many to read, how many names, then
--   names of sagas (none: all), then outcomes (none: all)
-- Answers with: the position before which it began, that of the last entry that was looked at (0: that was all), a time to which
-- was looked back (0: none is known), then position and entry of each that was read.
-- The position of an entry never changes: it is the number of those before it in order, with all that were purged.
-- Code of the layout before purges and does not count it: between two calls, this may have entries come twice.
local journal, order, looks, limit, names = KEYS[1], KEYS[2], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
-- Behind so many bytes of entries a piece ends: a script blocks all other clients.
local MOST_BYTES = 4000000
local sagas, outcomes = {}, {}
for number = 5, #ARGV do (number - 4 <= names and sagas or outcomes)[ARGV[number]] = true end

-- Whether an entry is one of those that are asked for; one that is damaged, is.
local function is_wanted(entry)
  local attempt, subject, step, message, outcome, instance, detail, start =
    string.match(entry, '^%d+ %S+ %S+ (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) %d+\n()')
  if not start then return true end
  local of_saga, of_outcome = start + attempt, start + attempt + subject + step + message
  if of_outcome + outcome + instance + detail ~= #entry + 1 then return true end
  local saga = string.match(string.sub(entry, of_saga, of_saga + subject - 1), '^[^=]*')
  return (not next(sagas) or sagas[saga])
    and (not next(outcomes) or outcomes[string.sub(entry, of_outcome, of_outcome + outcome - 1)])
end

local purged = tonumber(redis.call('HGET', KEYS[3], 'purged') or 0)
local behind = math.min(tonumber(ARGV[1]) or math.huge, purged + redis.call('LLEN', order))
local reply, bytes = { behind, 0, 0 }, 0
if behind <= purged then return reply end
local first = math.max(behind - purged - looks, 0)
local digests = redis.call('LRANGE', order, first, behind - purged - 1)
for number = #digests, 1, -1 do
  local entry, position = redis.call('HGET', journal, digests[number]) or '', purged + first + number - 1
  reply[3] = tonumber(string.match(entry, '^%d+')) or reply[3]
  bytes = bytes + #entry
  if entry ~= '' and is_wanted(entry) then reply[#reply + 1], reply[#reply + 2] = position, entry end
  local has_enough = #reply >= 3 + 2 * limit or bytes > MOST_BYTES
  if position > purged and (number == 1 or (has_enough and reply[3] > 0)) then
    reply[2] = position
    return reply
  end
end
return reply
