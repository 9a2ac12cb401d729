-- Count the instances, or those that have a tag. It only reads.
-- KEYS: instances, listed
-- ARGV: the first bound and the last one of the tag, as ZLEXCOUNT takes them; nothing, for all instances
-- Answers with: how many there are.
if not ARGV[1] then return redis.call('HLEN', KEYS[1]) end
return redis.call('ZLEXCOUNT', KEYS[2], ARGV[1], ARGV[2])
