-- Register where a saga lives, unless one of its names is registered; its other names follow it.
-- KEYS: meta
-- ARGV: a shard's number or spread (empty: only look), each name of the saga
-- Answers with: the different places that are registered now: one, or none if only looked for. Nothing is registered that
-- contradicts what is there: a spread saga does not move into a shard, nor the other way round.
-- A repeat finds what the first call has registered. It writes only what is missing: a server out of memory can be read.
local chosen, places, known, unknown = ARGV[1], {}, {}, {}
for at = 2, #ARGV do
  local place = redis.call('HGET', KEYS[1], 'saga:' .. ARGV[at])
  if not place then unknown[#unknown + 1] = ARGV[at] end
  if place and not known[place] then
    known[place] = true
    places[#places + 1] = place
  end
end
if chosen == '' or #places > 1 then return places end

local place = places[1] or chosen
if (place == 'spread') == (chosen == 'spread') then
  for _, name in ipairs(unknown) do redis.call('HSET', KEYS[1], 'saga:' .. name, place) end
end
return { place }
