-- A group and its items. Expects many, state and gate; KEYS[1] to [5]: groups, order, due, items, seen.
local groups, order, due, items, seen = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]

-- Find a group by its name and the key of its free items; reads from each key that changes with it.
local function find_group(name, free_items)
  local text = redis.call('HGET', groups, name)
  local group = read_state(text)
  group.name, group.is_new, group.free = name, not text, redis.call('ZCARD', free_items)
  redis.call('ZCARD', due)
  redis.call('HLEN', items)
  redis.call('ZCARD', order)
  return group
end

-- Note which of the free items is the oldest.
local function look_at_oldest(group, free_items)
  local first = redis.call('ZRANGE', free_items, 0, 0)[1]
  if first and tonumber(first) == group.oldest then return end
  group.oldest, group.oldest_at = tonumber(first or 0), 0
  if first then group.oldest_at = tonumber(string.match(redis.call('HGET', items, first) or '', '^%d+') or 0) end
end

-- Keep a group as it is now, with its due time; or forget it, if it has no items.
local function save_group(group, now)
  local before = group.due
  group.due = buffered(group) > 0 and due_of(group, now) or 0
  if group.due > 0 and group.due ~= before then redis.call('ZADD', due, group.due, group.name) end
  if group.due == 0 and before > 0 then redis.call('ZREM', due, group.name) end
  if buffered(group) > 0 then
    if group.is_new then redis.call('ZADD', order, 0, group.name) end
    redis.call('HSET', groups, group.name, pack_state(group))
  elseif not group.is_new then
    redis.call('ZREM', order, group.name)
    redis.call('HDEL', groups, group.name)
  end
end

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

-- Remember the ids of removed items until a time; 0: forget them.
local function remember_ids(digests, ends_at)
  local ends = {}
  for _, digest in ipairs(ends_at > 0 and digests or {}) do add(ends, ends_at, digest) end
  in_parts(ends, function(...) redis.call('ZADD', seen, ...) end)
  if ends_at == 0 then in_parts(digests, function(...) redis.call('ZREM', seen, ...) end) end
end
