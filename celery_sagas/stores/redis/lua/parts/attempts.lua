-- How often the flushes of items have failed; most have no number, and those that are removed lose it. Expects leases.

-- How often each has failed; nothing if none of the group's aggregator has.
local function failures_of(numbers)
  local failures = {}
  if redis.call('HLEN', attempts) == 0 then return failures end
  in_parts(numbers, function(...)
    for _, count in ipairs(redis.call('HMGET', attempts, ...)) do failures[#failures + 1] = count or '0' end
  end)
  return failures
end

-- Count one attempt more on each.
local function count_attempts(numbers)
  local counts = {}
  in_parts(numbers, function(...)
    for _, count in ipairs(redis.call('HMGET', attempts, ...)) do
      add(counts, numbers[#counts / 2 + 1], string.format('%.0f', (count or 0) + 1))
    end
  end)
  in_parts(counts, function(...) redis.call('HSET', attempts, ...) end)
end

-- Remove items that are not fresh; their ids are remembered for a time (ms; 0: not at all).
local function drop_items(numbers, digests, now, remember_ms)
  in_parts(numbers, function(...) redis.call('HDEL', items, ...) end)
  in_parts(digests, function(...) redis.call('HDEL', items, ...) end)
  if redis.call('HLEN', attempts) > 0 then in_parts(numbers, function(...) redis.call('HDEL', attempts, ...) end) end
  local ends = {}
  for _, digest in ipairs(remember_ms > 0 and digests or {}) do add(ends, now + remember_ms, digest) end
  in_parts(ends, function(...) redis.call('ZADD', seen, ...) end)
end
