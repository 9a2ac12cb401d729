-- uses: many index rows trials glances
-- Read rows that were tried, those first that were tried the longest time ago.
-- KEYS: outbox, due, leases, failures, index
-- ARGV: the first bound and the last one, as ZRANGEBYLEX takes them, but for their beginning, how many at most
-- Answers with: for each row what parts/glances.lua says.
-- A repeat answers alike. A row that code of an earlier layout has removed, or changed, is taken out of the order.
local limit, reply, found, first = tonumber(ARGV[3]), {}, 0, ARGV[1]
repeat
  local members = redis.call('ZRANGEBYLEX', index, first, ARGV[2], 'LIMIT', 0, limit - found)
  for _, member in ipairs(members) do
    local id, _, tried_at = string.sub(member, #TRIED + 18), trial_of(string.sub(member, #TRIED + 18))
    if tried_at ~= tonumber(string.sub(member, #TRIED + 1, #TRIED + 16)) or redis.call('HEXISTS', outbox, id) == 0 then
      redis.call('ZREM', index, member)
    elseif add_glance(reply, id) then
      found = found + 1
    end
    first = '(' .. member
  end
until #members == 0 or found == limit
return reply
