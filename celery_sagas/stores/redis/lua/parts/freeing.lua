-- Takes free items, puts them back, and fires the trigger for them. Expects fresh and oldest.

-- Fire the trigger for everything up to a number.
local function fire_trigger(group, number, why)
  if number >= group.fired_to then group.fired_to, group.fired_why = number, why end
end

-- Request a flush, for a time.
local function request(group, ends_at)
  group.requested, group.requested_by = ends_at, ARGV[1]
end

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

-- Drop dead items until the last one is not dead.
local function drop_dead_tail(group)
  while group.dead > 0 do
    local last = redis.call('LRANGE', fresh, -2, -1)
    local digest = digest_of(last[2])
    if digest == '-' or redis.call('HGET', fresh_ids, digest) == last[1] then return end
    redis.call('LTRIM', fresh, 0, -3)
    group.dead = group.dead - 1
  end
end

-- The number of the last free item; 0: there is none.
local function last_free(group)
  drop_dead_tail(group)
  local last = redis.call('ZRANGE', free, -1, -1)[1] or 0
  return math.max(tonumber(last), tonumber(redis.call('LINDEX', fresh, -2) or 0))
end

-- Put items back, and fire the trigger for them.
local function free_again(group, numbers)
  for _, number in ipairs(numbers) do fire_trigger(group, tonumber(number), 'again') end
  put_back(numbers)
  group.free = group.free + #numbers
  look_at_oldest(group)
end
