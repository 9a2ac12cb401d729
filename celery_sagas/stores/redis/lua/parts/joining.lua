-- One item that joins others, and neither fires their trigger nor changes when they are due: as most items do, so that
-- it is worth while to do without functions. Expects call, now, most, number_of_groups; the group is kept as parts/state says.
local is_one = number_of_groups == 1 and ARGV[11] == '1' and #KEYS == 9
local joined = is_one and ARGV[6] == '0' and redis.call('HGET', KEYS[1], ARGV[10])
if joined then
  local size, within, digest = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[12]
  local requested_by, inserter, free, others, leased, unresolved, oldest, oldest_at, rest, fired_to, requested, lease_end, due =
    string.match(joined, '^(%S+) (%S+) %d+ (%d+) ((%d+) (%d+) (%d+) (%d+)) %d+ ((%d+) %S+ (%d+) %d+ (%d+) (%d+))$')
  free, oldest_at, requested, lease_end = tonumber(free or 0), tonumber(oldest_at), tonumber(requested), tonumber(lease_end)
  local is_joining, due_at = false, 0
  if free > 0 and inserter ~= call then
    local is_full, is_waiting = size > 0 and free + 1 >= size, tonumber(oldest) > tonumber(fired_to)
    if within > 0 then due_at = oldest_at + within end
    is_joining = requested > now or not is_full and is_waiting and (within == 0 or due_at > now)
    if lease_end > 0 and (due_at == 0 or lease_end < due_at) then due_at = lease_end end
    if requested > now then due_at = requested end
  end
  if is_joining and due_at == tonumber(due) and (most == 0 or free + leased + unresolved < most)
    and redis.call('LLEN', KEYS[9]) > 0 and redis.call('HEXISTS', KEYS[7], digest) == 0
    and (redis.call('HLEN', KEYS[4]) == 0 or redis.call('HEXISTS', KEYS[4], digest) == 0)
    and (redis.call('ZCARD', KEYS[6]) == 0 or tonumber(redis.call('ZSCORE', KEYS[6], digest) or 0) <= now)
  then
    local number, time = redis.call('HINCRBY', KEYS[5], 'number', 1), string.format('%.0f', now)
    redis.call('RPUSH', KEYS[9], number, time .. ' ' .. ARGV[13])
    redis.call('HSET', KEYS[7], digest, number)
    redis.call('HSET', KEYS[1], ARGV[10], table.concat({ requested_by, call, 1, free + 1, others, time, rest }, ' '))
    return '1 0 0'
  end
end
