-- Return when the oldest entry of a piece of the journal was written. It only reads.
-- KEYS: journal, order
-- Answers with: its time in milliseconds, or 0: there is none, or the first ones are damaged.
local LOOKED_AT = 20
for _, digest in ipairs(redis.call('LRANGE', KEYS[2], 0, LOOKED_AT - 1)) do
  local at = string.match(redis.call('HGET', KEYS[1], digest) or '', '^%d+')
  if at then return tonumber(at) end
end
return 0
