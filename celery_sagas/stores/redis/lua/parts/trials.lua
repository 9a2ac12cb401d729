-- Rows that were tried: published and kept, or failed. Expects many, index and rows.
-- What is noted of one: <attempts that have failed>@<when it was tried first, ms> <error>; code of an earlier layout has left out
-- the time.

-- How often publishing a row has failed, and when it was tried first (ms; 0: never).
local function read_trial(text)
  local attempts, at = string.match(text or '', '^(%d+)@?(%d*) ')
  return tonumber(attempts) or 0, tonumber(at) or 0
end

local function trial_of(id) return read_trial(redis.call('HGET', failures, id)) end

local function member_of_trial(at, id) return string.format('%s%016.0f:%s', TRIED, at, id) end

local function trial(attempts, tried_at, error) return string.format('%.0f@%.0f ', attempts, tried_at) .. error end

-- Add the members of the index about when rows were tried first.
local function add_trials(members, ids)
  if redis.call('HLEN', failures) == 0 then return end
  in_parts(ids, function(...)
    for number, text in ipairs(redis.call('HMGET', failures, ...)) do
      local at = string.match(text or '', '^%d+@(%d+) ')
      if at then members[#members + 1] = member_of_trial(at, (select(number, ...))) end
    end
  end)
end
