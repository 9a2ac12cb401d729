-- Note the name of an app that starts, in the place of the one that was noted last.
-- KEYS: meta
-- ARGV: the call, the name
-- Answers with: the name that was noted last, or an empty text.
-- A repeat finds its own call, and what was noted before that.
-- It writes only what is new: a server that is out of memory can be read.
local call, name = ARGV[1], ARGV[2]
local noted_by, before = (redis.call('HGET', KEYS[1], 'app') or ' '):match('^(%S*) (.*)$')
if noted_by == call then return redis.call('HGET', KEYS[1], 'app:before') or '' end

if before ~= name then redis.call('HSET', KEYS[1], 'app', call .. ' ' .. name, 'app:before', before) end
return before
