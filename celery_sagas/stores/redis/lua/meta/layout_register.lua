-- Register the layout of the keys, unless there is one.
-- KEYS: meta
-- ARGV: <version> <oldest version whose code may run on it> <number of shards> (empty: only look)
-- Answers with: the layout that is registered now, or an empty text.
-- A repeat finds what the first call has registered.
-- It writes only what is missing: a server that is out of memory can be read.
local layout = redis.call('HGET', KEYS[1], 'layout')
if layout or ARGV[1] == '' then return layout or '' end
redis.call('HSET', KEYS[1], 'layout', ARGV[1])
return ARGV[1]
