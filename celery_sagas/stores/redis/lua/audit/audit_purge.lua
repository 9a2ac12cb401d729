-- uses: clock answers
-- Remove the oldest entries of the audit.
-- KEYS: audit, order of the audit, answer of the call
-- ARGV: call, now (ms, or empty), age (ms), how many at most
-- Answers with: how many entries were removed.
-- A repeat removes nothing, and answers as the first call did.
local audit, order, before = KEYS[1], KEYS[2], math.max(clock(ARGV[2]) - ARGV[3], 0)

local again = answered()
if again then return again end
local places = redis.call('ZRANGEBYLEX', order, '-', string.format('(%016.0f', before), 'LIMIT', 0, ARGV[4])
if #places == 0 then return 0 end

local ids, members = {}, {}
for number, place in ipairs(places) do ids[number] = string.sub(place, 17) end
for number, entry in ipairs(redis.call('HMGET', audit, unpack(ids))) do
  local subject = string.match(entry or '', '^%d+ (%S+) ')
  members[#members + 1] = places[number]
  if subject then members[#members + 1] = '~' .. subject .. places[number] end
end
redis.call('HDEL', audit, unpack(ids))
redis.call('ZREM', order, unpack(members))
return remember(#places)
