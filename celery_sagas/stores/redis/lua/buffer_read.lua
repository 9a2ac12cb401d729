-- uses: many
-- Read items of a group in the order of insertion, whatever their state. It only reads.
-- KEYS: items, attempts, free, leased, unread
-- ARGV: number of the item that they follow (0: none), how many at most
-- Answers with: for each its number, state, how often it has failed, packed item (empty if it is lost).
local items, attempts, free, leased, unread = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local after, limit, found, reply = tonumber(ARGV[1]), tonumber(ARGV[2]), {}, {}

local function note(number, state)
  if tonumber(number) > after then found[#found + 1] = { number = number, state = state } end
end

local first = string.format('(%.0f', after)
for _, number in ipairs(redis.call('ZRANGEBYSCORE', free, first, '+inf', 'LIMIT', 0, limit)) do note(number, 'free') end
local waiting = redis.call('ZRANGEBYSCORE', unread, first, '+inf', 'WITHSCORES', 'LIMIT', 0, limit)
for at = 2, #waiting, 2 do note(waiting[at], 'unresolved') end
for _, list in ipairs(redis.call('HVALS', leased)) do
  for number in string.gmatch(list, '(%d+) %S+') do note(number, 'leased') end
end
table.sort(found, function(a, b) return tonumber(a.number) < tonumber(b.number) end)

for position = 1, math.min(#found, limit) do
  local number = found[position].number
  add(reply, number, found[position].state)
  add(reply, tonumber(redis.call('HGET', attempts, number) or 0), redis.call('HGET', items, number) or '')
end
return reply
