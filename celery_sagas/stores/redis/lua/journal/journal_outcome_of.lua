-- Read the newest completions of keys. It only reads.
-- KEYS: journal, completed
-- ARGV: saga=key for each name of the saga
-- Answers with: the entries that there are.
local reply = {}
for _, subject in ipairs(ARGV) do
  local digest = redis.call('HGET', KEYS[2], subject)
  local entry = digest and redis.call('HGET', KEYS[1], digest)
  if entry then reply[#reply + 1] = entry end
end
return reply
