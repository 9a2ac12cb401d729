-- A group and its items. Expects many, state and trigger; KEYS[1] to [7]: groups, order, due, items, sequence, seen, fresh
-- ids. Items stand in a list while they are fresh (parts/fresh.lua), then in items: there also the number of each, by its digest.
local groups, order, due, items, seen, fresh_ids = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[6], KEYS[7]

-- Find a group by its name and the keys of its free items; reads from each key that changes with it. Without the second key it
-- reads none of these, nor counts how many items are dead: see parts/fresh.lua.
local function find_group(name, fresh_items, free_items)
  local text, there = redis.call('HGET', groups, name), redis.call('LLEN', fresh_items) / 2
  local group = read_state(text)
  group.name, group.is_new, group.dead = name, not text, 0
  if free_items then
    there = there + redis.call('ZCARD', free_items)
    group.free = math.min(group.free, there)
    group.dead = there - group.free
    for _, key in ipairs({ items, fresh_ids }) do redis.call('HLEN', key) end
    for _, key in ipairs({ due, order, seen }) do redis.call('ZCARD', key) end
  end
  return group
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
