-- uses: clock many index rows trials removal answers
-- End rows that were published: remove them, or keep them until their message is handled.
-- KEYS: outbox, due, leases, failures, index, answer of the call
-- ARGV: call, now (ms, or empty), token, how long the rows are kept (ms; 0: they are not), at most how long, id of each
-- Answers with: how many rows were removed or kept.
-- A repeat touches nothing, and answers as the first call did.
local token, least, most = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])

-- Make rows due again: each after the longer one of the time and of that since it was tried first.
local function keep(ids, now)
  local since, leased, trials, members = {}, {}, {}, {}
  in_parts(ids, function(...)
    for number, text in ipairs(redis.call('HMGET', failures, ...)) do
      local id, _, tried_at = (select(number, ...)), read_trial(text)
      if tried_at == 0 then
        tried_at = now
        add(members, 0, member_of_trial(now, id))
      end
      add(trials, id, trial(0, tried_at, ''))
      add(since, now + math.max(least, math.min(now - tried_at, most)), id)
      add(leased, id, '- ' .. token)
    end
  end)
  in_parts(members, function(...) redis.call('ZADD', index, ...) end)
  in_parts(trials, function(...) redis.call('HSET', failures, ...) end)
  in_parts(since, function(...) redis.call('ZADD', due, ...) end)
  in_parts(leased, function(...) redis.call('HSET', leases, ...) end)
end

check_rows()
local ended = answered()
if ended then return ended end

local ids = held_by(token, 6)
if least > 0 then
  keep(ids, clock(ARGV[2]))
else
  remove_rows(ids, members_of(ids, rows_of(ids)))
end
return #ids > 0 and remember(#ids) or 0
