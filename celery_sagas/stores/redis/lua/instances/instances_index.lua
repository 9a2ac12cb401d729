-- uses: place
-- Bring instances that code of an earlier layout has written into the order of pages.
-- KEYS: instances, listed
-- ARGV: cursor (0: from the beginning), about how many
-- Answers with: the cursor to go on with (0: that was all).
-- A repeat finds them in it.
redis.call('ZCARD', KEYS[2])
local scanned = redis.call('HSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[2])
for at = 1, #scanned[2], 2 do
  local updated_at = string.match(scanned[2][at + 1], '^%d+ %d+ %d+ (%d+) ')
  if updated_at then redis.call('ZADD', KEYS[2], 0, place(updated_at, scanned[2][at])) end
end
return scanned[1]
