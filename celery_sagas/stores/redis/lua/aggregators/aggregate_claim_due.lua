-- uses: clock many state answers
-- Claim groups that are due, the longest due first: their flushes count as requested.
-- KEYS: groups and due of each aggregator, answer of the call
-- ARGV: call, now (ms, or empty), limit, for how long they count as requested (ms)
-- Answers with: for each group the position of its aggregator, from 0, and its name.
-- A repeat answers with the groups that the first call has claimed: their requests have the call's name.
local now, limit, lease_ms = clock(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

local function due_groups()
  local found = {}
  for key = 1, #KEYS - 1, 2 do
    local rows = redis.call('ZRANGEBYSCORE', KEYS[key + 1], '-inf', now, 'WITHSCORES', 'LIMIT', 0, limit)
    for at = 1, #rows, 2 do found[#found + 1] = { key = key, name = rows[at], since = tonumber(rows[at + 1]) } end
  end
  table.sort(found, function(a, b)
    if a.since ~= b.since then return a.since < b.since end
    if a.key ~= b.key then return a.key < b.key end
    return a.name < b.name
  end)
  for number = #found, limit + 1, -1 do found[number] = nil end
  return found
end

local function claimed_before(ends_at)
  local found = {}
  for key = 1, #KEYS - 1, 2 do
    for _, name in ipairs(redis.call('ZRANGEBYSCORE', KEYS[key + 1], ends_at, ends_at)) do
      local group = read_state(redis.call('HGET', KEYS[key], name))
      if group.requested_by == call then found[#found + 1] = { key = key, name = name } end
    end
  end
  return found
end

local function claim_groups()
  local found, ends_at = due_groups(), now + lease_ms
  for _, each in ipairs(found) do
    local group = read_state(redis.call('HGET', KEYS[each.key], each.name))
    group.requested, group.due, group.requested_by = ends_at, ends_at, call
    redis.call('HSET', KEYS[each.key], each.name, pack_state(group))
    redis.call('ZADD', KEYS[each.key + 1], ends_at, each.name)
  end
  if #found > 0 then remember(ends_at) end
  return found
end

for key = 1, #KEYS - 1, 2 do redis.call('HLEN', KEYS[key]) end
local before, reply = answered(), {}
for _, each in ipairs(before and claimed_before(before) or claim_groups()) do add(reply, (each.key - 1) / 2, each.name) end
return reply
