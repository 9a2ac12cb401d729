-- Items that flushes take. Expects many and group.

-- The packed items with these numbers; false in the place of one that is lost.
local function items_of(numbers)
  local packed = {}
  in_parts(numbers, function(...)
    for _, item in ipairs(redis.call('HMGET', items, ...)) do packed[#packed + 1] = item end
  end)
  return packed
end

-- The digest of a packed item, which begins with its time; - if it is damaged.
local function digest_of(packed)
  return string.match(packed or '', '^%d+ (%S+) ') or '-'
end
