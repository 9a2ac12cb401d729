local unread = KEYS[5]
-- uses: many unread
-- Read items of a group in the order of insertion, whatever their state. It only reads.
-- KEYS: items, attempts, free, leased, unread, fresh, fresh ids
-- ARGV: number of the item that they follow (0: none), how many at most, group
-- Answers with: for each its number, state (fresh: free, and in the list), how often it has failed, packed item (empty if it is
--   lost).
local items, attempts, free, leased, fresh, fresh_ids = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[6], KEYS[7]
local after, limit, found, reply = tonumber(ARGV[1]), tonumber(ARGV[2]), {}, {}

local function note(number, state, packed)
  if tonumber(number) > after then found[#found + 1] = { number = number, state = state, packed = packed } end
end

-- How many fresh items do not follow.
local function skipped()
  local low, high = 0, after > 0 and redis.call('LLEN', fresh) / 2 or 0
  while low < high do
    local middle = math.floor((low + high) / 2)
    if tonumber(redis.call('LINDEX', fresh, 2 * middle)) > after then high = middle else low = middle + 1 end
  end
  return low
end

-- Note the first fresh items that follow, but for those that were removed by their ids.
local function note_fresh()
  local position = skipped()
  repeat
    local rows = redis.call('LRANGE', fresh, 2 * position, 2 * (position + limit) - 1)
    for at = 1, #rows, 2 do
      local digest = string.match(rows[at + 1], '^%d+ (%S+) ')
      if not digest or redis.call('HGET', fresh_ids, digest) == rows[at] then note(rows[at], 'fresh', rows[at + 1]) end
    end
    position = position + limit
  until #found >= limit or #rows < 2 * limit
end

note_fresh()
local first = string.format('(%.0f', after)
for _, number in ipairs(redis.call('ZRANGEBYSCORE', free, first, '+inf', 'LIMIT', 0, limit)) do note(number, 'free') end
for _, number in ipairs(first_unread(ARGV[3], after, limit)) do note(number, 'unresolved') end
for _, list in ipairs(redis.call('HVALS', leased)) do
  for number in string.gmatch(list, '(%d+) %S+') do note(number, 'leased') end
end
table.sort(found, function(a, b) return tonumber(a.number) < tonumber(b.number) end)

for position = 1, math.min(#found, limit) do
  local each = found[position]
  local failed = redis.call('HGET', attempts, each.number)
  add(reply, each.number, each.state)
  add(reply, tonumber(failed or 0), each.packed or redis.call('HGET', items, each.number) or '')
end
return reply
