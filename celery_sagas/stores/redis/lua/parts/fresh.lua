-- Free items: those that no flush has taken yet, and those that have come back. Expects leases; KEYS[12] fresh.
-- The fresh ones stand in a list, as <number>, <packed item>, …, so that taking the first ones costs the same however many
-- follow. One that was removed by its id is dead: it stands there, and is not in fresh ids, until it is the first or the last.
local fresh = KEYS[12]
-- By number, what was fresh until this call: packed items and digests.
local packed_by, digest_by = {}, {}

-- The first fresh items as they stand in the list, and the digest of each.
local function first_fresh(limit)
  local found, digests = redis.call('LRANGE', fresh, 0, 2 * limit - 1), {}
  for at = 2, #found, 2 do digests[at / 2] = digest_of(found[at]) end
  return found, digests
end

-- Drop dead items until none is among the first.
local function drop_dead(group, limit)
  while group.dead > 0 do
    local found, digests = first_fresh(limit)
    local numbers, live = {}, {}
    in_parts(digests, function(...)
      for _, number in ipairs(redis.call('HMGET', fresh_ids, ...)) do numbers[#numbers + 1] = number end
    end)
    for at = #digests, 1, -1 do
      if digests[at] == '-' or numbers[at] == found[2 * at - 1] then add(live, found[2 * at], found[2 * at - 1]) end
    end
    if #live == #found then return end
    redis.call('LTRIM', fresh, #found, -1)
    in_parts(live, function(...) redis.call('LPUSH', fresh, ...) end)
    group.dead = group.dead - (#found - #live) / 2
  end
end

-- Move the first fresh items to the others, and add their numbers.
local function take_fresh(numbers, limit)
  local found, digests = first_fresh(limit)
  local moved = {}
  for position, digest in ipairs(digests) do
    local number = found[2 * position - 1]
    numbers[#numbers + 1], packed_by[number], digest_by[number] = number, found[2 * position], digest
    add(moved, digest, number)
  end
  redis.call('LTRIM', fresh, #found, -1)
  in_parts(found, function(...) redis.call('HSET', items, ...) end)
  in_parts(digests, function(...) redis.call('HDEL', fresh_ids, ...) end)
  in_parts(moved, function(...) redis.call('HSET', items, ...) end)
end
