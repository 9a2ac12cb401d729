-- uses: many clock index rows answers trials
-- Lease rows that are due, the longest due first.
-- KEYS: outbox, due, leases, failures, index, answer of the call
-- ARGV: call, now (ms, or empty), token, limit, lease (ms), digest of each step and message id (none: whatever is due)
-- Answers with: for each row its id, the packed row (empty if it is lost), how often publishing it has failed, and when it was
-- tried first (ms; 0: never).
-- A repeat answers with the rows that the first call has leased: they end with the lease's time, under the call's name.
local now, token, limit, lease = clock(ARGV[2]), ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])

local function due_of_causes()
  local ids, since = {}, {}
  for at = 6, #ARGV do
    for _, id in ipairs(under(of_cause(ARGV[at]))) do
      since[id] = tonumber(redis.call('ZSCORE', due, id) or math.huge)
      if since[id] <= now then ids[#ids + 1] = id end
    end
  end
  table.sort(ids, function(a, b) return since[a] < since[b] or (since[a] == since[b] and a < b) end)
  for number = #ids, limit + 1, -1 do ids[number] = nil end
  return ids
end

local function leased_before(ends_at)
  local ids = {}
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', due, ends_at, ends_at)) do
    if redis.call('HGET', leases, id) == call .. ' ' .. token then ids[#ids + 1] = id end
  end
  return ids
end

local function lease_rows()
  local ids = #ARGV > 5 and due_of_causes() or redis.call('ZRANGEBYSCORE', due, '-inf', now, 'LIMIT', 0, limit)
  for _, id in ipairs(ids) do
    redis.call('ZADD', due, now + lease, id)
    redis.call('HSET', leases, id, call .. ' ' .. token)
  end
  if #ids > 0 then remember(now + lease) end
  return ids
end

check_rows()
local before, reply = answered(), {}
for _, id in ipairs(before and leased_before(before) or lease_rows()) do
  reply[#reply + 1] = id
  reply[#reply + 1] = redis.call('HGET', outbox, id) or ''
  reply[#reply + 1], reply[#reply + 2] = trial_of(id)
end
return reply
