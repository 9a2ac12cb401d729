-- Ends leases whose time is over. Expects freeing and attempts.

-- End the leases whose time is over: their items are free again, with one attempt more.
local function end_expired_leases(group, now)
  if group.lease_end == 0 or group.lease_end > now then return end
  for _, token in ipairs(redis.call('HKEYS', leases)) do
    if tonumber(string.match(redis.call('HGET', leases, token), '^%d+') or 0) <= now then
      local numbers = leased_by(token)
      count_attempts(numbers)
      free_again(group, numbers)
      end_lease(group, token)
    end
  end
end
