-- Finds the oldest free item. Expects fresh.

-- Drop dead items until the first one is not dead; reads few, and more only while they are dead.
local function drop_dead_heads(group)
  local limit = 1
  while group.dead > 0 do
    local found, digests = first_fresh(limit)
    local count = 0
    while count < #digests and digests[count + 1] ~= '-' do
      if redis.call('HGET', fresh_ids, digests[count + 1]) == found[2 * count + 1] then break end
      count = count + 1
    end
    if count > 0 then redis.call('LTRIM', fresh, 2 * count, -1) end
    group.dead = group.dead - count
    if count < #digests or count == 0 then return end
    limit = math.min(2 * limit, 500)
  end
end

-- Note which of the free items is the oldest. Where the state of the group counts none, what is there is counted.
local function look_at_oldest(group)
  drop_dead_heads(group)
  local first, packed = redis.call('ZRANGE', free, 0, 0)[1], nil
  local head = redis.call('LINDEX', fresh, 0)
  if head and (not first or tonumber(head) < tonumber(first)) then first, packed = head, redis.call('LINDEX', fresh, 1) end
  if group.free <= 0 then group.free = first and redis.call('LLEN', fresh) / 2 + redis.call('ZCARD', free) or 0 end
  if first and tonumber(first) == group.oldest then return end
  group.oldest, group.oldest_at = tonumber(first or 0), 0
  packed = packed or first and redis.call('HGET', items, first) or ''
  group.oldest_at = tonumber(string.match(packed, '^%d+') or 0)
end
