-- Read entries of the audit, newest first. It only reads.
-- KEYS: audit, order of the audit
-- ARGV: the bound behind which to begin and the last bound, as ZREVRANGEBYLEX takes them, bytes of a member before the id, how
--   many entries to look at, how many to read, names of sagas (none: all)
-- Answers with: the last member of the order that was looked at (empty: that was all), and an empty text; then member and entry
-- of each that was read.
local audit, order, skipped, looks, limit = KEYS[1], KEYS[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
-- Behind so many bytes of entries a piece ends: a script blocks all other clients.
local MOST_BYTES = 4000000
local sagas = {}
for number = 6, #ARGV do sagas[ARGV[number]] = true end

-- Whether an entry is one of those that are asked for; one that is damaged, is.
local function is_wanted(entry)
  local saga, key, actor, action, reason, instance, detail, start =
    string.match(entry, '^%d+ %S+ (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) %d+\n()')
  if not start or start + saga + key + actor + action + reason + instance + detail ~= #entry + 1 then return true end
  return not next(sagas) or sagas[string.sub(entry, start, start + saga - 1)]
end

local members = redis.call('ZREVRANGEBYLEX', order, ARGV[1], ARGV[2], 'LIMIT', 0, looks + 1)
local reply, bytes = { '', '' }, 0
for number, member in ipairs(members) do
  local entry = redis.call('HGET', audit, string.sub(member, skipped + 1))
  if entry and is_wanted(entry) then reply[#reply + 1], reply[#reply + 2] = member, entry end
  bytes = bytes + #(entry or '')
  if number < #members and (number == looks or #reply >= 2 + 2 * limit or bytes > MOST_BYTES) then
    reply[1] = member
    break
  end
end
return reply
