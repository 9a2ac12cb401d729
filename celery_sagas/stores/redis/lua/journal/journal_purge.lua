-- uses: clock answers
-- Remove the oldest entries.
-- KEYS: journal, order, heads, completed, answer of the call
-- ARGV: call, now (ms, or empty), age (ms), how many at most
-- Answers with: how many entries were removed.
-- A repeat removes nothing, and answers as the first call did.
local journal, order, heads, completed = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local before, removed = clock(ARGV[2]) - ARGV[3], 0

-- Remove what points at the newest entry, or at the newest completion, of a key, if it is this one.
local function forget(digest, entry)
  local attempt, subject, start = string.match(entry, '^%S+ %S+ %S+ (%d+) (%d+)[^\n]*\n()')
  if not attempt then return end
  subject = string.sub(entry, start + attempt, start + attempt + subject - 1)
  if string.match(redis.call('HGET', heads, subject) or '', ' (%S+)$') == digest then redis.call('HDEL', heads, subject) end
  if redis.call('HGET', completed, subject) == digest then redis.call('HDEL', completed, subject) end
end

local again = answered()
if again then return again end
redis.call('HLEN', heads)
redis.call('HLEN', completed)
redis.call('HLEN', journal)
local walked = 0
for _, digest in ipairs(redis.call('LRANGE', order, 0, ARGV[4] - 1)) do
  local entry = redis.call('HGET', journal, digest)
  if entry and (tonumber(string.match(entry, '^%d+')) or 0) >= before then break end
  if entry then
    forget(digest, entry)
    removed = removed + redis.call('HDEL', journal, digest)
  end
  walked = walked + 1
end
redis.call('LTRIM', order, walked, -1)
if redis.call('LLEN', order) == 0 then
  redis.call('HDEL', heads, 'purged')
elseif walked > 0 then
  redis.call('HINCRBY', heads, 'purged', walked)
end
return removed > 0 and remember(removed) or 0
