-- Tell of which groups kept items are. It only reads.
-- KEYS: kept
-- ARGV: each handle
-- Answers with: for each that is there its handle and its group.
local reply = {}
for _, handle in ipairs(ARGV) do
  local bytes, start = string.match(redis.call('HGET', KEYS[1], handle) or '', '^%a %d+ (%d+)[^\n]*\n()')
  if bytes then
    reply[#reply + 1] = handle
    reply[#reply + 1] = string.sub(redis.call('HGET', KEYS[1], handle), start, start + bytes - 1)
  end
end
return reply
