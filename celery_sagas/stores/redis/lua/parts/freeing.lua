-- Takes free items, and puts them back. Expects fresh.

-- Take the numbers of the first free items, in their order: as many as there are, up to a limit, or some more.
local function take_free(group, limit)
  drop_dead(group, limit)
  local numbers, first = redis.call('ZRANGE', free, 0, limit - 1), redis.call('LINDEX', fresh, 0)
  if #numbers > 0 then redis.call('ZREMRANGEBYRANK', free, 0, #numbers - 1) end
  if first and (#numbers < limit or tonumber(first) < tonumber(numbers[limit])) then
    local is_mixed = #numbers > 0
    take_fresh(numbers, limit)
    if is_mixed then table.sort(numbers, function(a, b) return tonumber(a) < tonumber(b) end) end
  end
  return numbers
end

-- Put items back where they stood.
local function put_back(numbers)
  local members = {}
  for _, number in ipairs(numbers) do add(members, number, number) end
  in_parts(members, function(...) redis.call('ZADD', free, ...) end)
end

-- The number of the last free item; 0: there is none.
local function last_free()
  local last = redis.call('ZRANGE', free, -1, -1)[1] or 0
  return math.max(tonumber(last), tonumber(redis.call('LINDEX', fresh, -2) or 0))
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

-- Put items back, and open the gate for them.
local function free_again(group, numbers)
  for _, number in ipairs(numbers) do open_gate(group, tonumber(number), 'again') end
  put_back(numbers)
  group.free = group.free + #numbers
  look_at_oldest(group)
end
