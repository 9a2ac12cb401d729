-- The outgoing rows that a removal sends. Expects many, index and outgoing; KEYS[16] to [20]: as KEYS[1] to [5] in
-- parts/rows.lua; ARGV[10] number of rows, and if there are any [11] owner, [12] grace (ms), [13] digest of aggregator and
-- token, and the rows, as in parts/outgoing.lua.
local last_row = ARGV[10] == '0' and 10 or 13 + 4 * ARGV[10]

-- Read from each key, so that a foreign one is noticed before the first write.
local function check_sends()
  if ARGV[10] == '0' then return end
  for _, hash in ipairs({ KEYS[16], KEYS[18], KEYS[19] }) do redis.call('HLEN', hash) end
  for _, set in ipairs({ KEYS[17], KEYS[20] }) do redis.call('ZCARD', set) end
end

local function write_sends(now)
  if ARGV[10] == '0' then return end
  put_rows(14, last_row, { KEYS[16], KEYS[17], KEYS[18], KEYS[20] }, { ARGV[11], now + ARGV[12] }, { ARGV[13] })
end
