-- uses: clock
-- Read the entries that began an instance, in a piece of the journal, newest first. It only reads.
-- KEYS: journal, order
-- ARGV: now (ms, or empty), age (ms), how many entries were looked at before, how many to look at
-- Answers with: how many entries were looked at in all (0: that was all), then those that began an instance.
-- An entry that is committed between two calls may be answered twice, and hides none.
local since, before, limit = clock(ARGV[1]) - ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local reply, digests = { 0 }, redis.call('LRANGE', KEYS[2], -before - limit, -before - 1)
for position = #digests, 1, -1 do
  local entry = redis.call('HGET', KEYS[1], digests[position])
  local at, version = string.match(entry or '', '^(%d+) [^\n]* (%d+)\n')
  if at and tonumber(at) < since then return reply end
  if version == '1' then reply[#reply + 1] = entry end
end
if #digests == limit then reply[1] = before + limit end
return reply
