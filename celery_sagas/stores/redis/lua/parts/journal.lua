-- The journal's entry of a commit. Expects KEYS[6] to [9]: journal, order, heads, completed; ARGV[1] now (ms, or empty), [2] 1 if
-- completed, [9] to [12]: digest, attempt, saga=key, entry.
-- An entry is kept as: <at> <number> <digest of the key's entry before it, or -> <bytes of attempt> <bytes of saga=key> …
local journal, order, heads, completed = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local now, completes, digest, attempt, subject, entry = clock(ARGV[1]), ARGV[2], ARGV[9], ARGV[10], ARGV[11], ARGV[12]
local newest

-- 'ok' if this attempt has committed before, 'handled' if another has, or nil.
local function handled()
  local known = redis.call('HGET', journal, digest)
  if not known then return nil end
  local bytes, start = string.match(known, '^%S+ %S+ %S+ (%d+)[^\n]*\n()')
  if bytes and string.sub(known, start, start + bytes - 1) == attempt then return 'ok' end
  return 'handled'
end

-- Read from each key that write_entry writes to, but for the order, to which it writes first.
local function check_entry()
  newest = redis.call('HGET', heads, subject)
  if completes == '1' then redis.call('HLEN', completed) end
end

local function write_entry()
  local number, before = string.match(newest or '', '^(%d+) (%S+)$')
  number = string.format('%.0f', (number or 0) + 1)
  redis.call('RPUSH', order, digest)
  redis.call('HSET', journal, digest, string.format('%.0f ', now) .. number .. ' ' .. (before or '-') .. ' ' .. entry)
  redis.call('HSET', heads, subject, number .. ' ' .. digest)
  if completes == '1' then redis.call('HSET', completed, subject, digest) end
end
