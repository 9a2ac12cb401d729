-- uses: place tag
-- Correct what code of an earlier layout has left in the order of pages and in tags: an instance that has ended, or that stands
-- in the place of an earlier slot.
-- KEYS: instances, listed
-- ARGV: the member to go on behind (empty: from the beginning), how many at most
-- Answers with: the last member that was looked at (empty: that was all).
-- A repeat finds these gone, and looks at as many others behind them.
local instances, listed, limit = KEYS[1], KEYS[2], tonumber(ARGV[2])

-- The member that an instance should have in the place of this one; nothing if it has ended, this one if it cannot be read.
local function right(member)
  local id = string.sub(member, 9)
  if is_tag(member) then return redis.call('HEXISTS', instances, id) == 1 and member end
  local record = redis.call('HGET', instances, id)
  local updated_at = string.match(record or '', '^%d+ %d+ %d+ (%d+) ')
  return record and (updated_at and place(updated_at, id) or member)
end

redis.call('HLEN', instances)
local members = redis.call('ZRANGEBYLEX', listed, ARGV[1] == '' and '-' or '(' .. ARGV[1], '+', 'LIMIT', 0, limit)
for _, member in ipairs(members) do
  local other = right(member)
  if other ~= member then
    redis.call('ZREM', listed, member)
    if other then redis.call('ZADD', listed, 0, other) end
  end
end
return #members == limit and members[limit] or ''
