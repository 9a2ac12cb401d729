-- The end of a lease. Expects attempts and resolving; KEYS[14] dead letters, [15] dead letters by time; the last of ARGV: how
-- many items are unreadable, the number of each, then for each rejected item its number, its dead letter's id, and the packed
-- dead letter.
local dead_letters, dead_letters_at = KEYS[14], KEYS[15]

-- Read from each key, so that a foreign one is noticed before the first write.
local function check_ending()
  if not dead_letters then return end
  redis.call('ZCARD', unread)
  redis.call('HLEN', dead_letters)
  redis.call('ZCARD', dead_letters_at)
end

-- End a lease, and leave its unreadable items unresolved; return numbers and digests of the others, then of the rejected ones,
-- whose dead letters are kept.
local function divide(group, token, first, now)
  local numbers, digests = leased_by(token)
  local rejected_from, of = first + 1 + ARGV[first], {}
  end_lease(group, token)
  for at = first + 1, rejected_from - 1 do of[ARGV[at]] = 'unreadable' end
  for at = rejected_from, #ARGV, 3 do of[ARGV[at]] = at end
  local others, others_digests, rejected, rejected_digests = {}, {}, {}, {}
  for position, number in ipairs(numbers) do
    local at = of[number]
    if at == 'unreadable' then
      set_unread(group, number)
    elseif at then
      redis.call('HSET', dead_letters, ARGV[at + 1], string.format('%.0f ', now) .. ARGV[at + 2])
      redis.call('ZADD', dead_letters_at, now, ARGV[at + 1])
      rejected[#rejected + 1], rejected_digests[#rejected_digests + 1] = number, digests[position]
    else
      others[#others + 1], others_digests[#others_digests + 1] = number, digests[position]
    end
  end
  return others, others_digests, rejected, rejected_digests
end
