-- Remembers the answer of a call whose repeat would answer differently. Expects: ARGV[1] call; the last of KEYS: its answer.
local answer, call = KEYS[#KEYS], ARGV[1]

-- The answer that this call got before, or nil.
local function answered()
  local before = redis.call('GET', answer)
  return before and tonumber(before) or nil
end

-- Remember the answer and return it. A client repeats a call within total_timeout, which is a minute at most.
local function remember(value)
  redis.call('SET', answer, string.format('%.0f', value), 'PX', 60000)
  return value
end
