-- Read instances by their ids. It only reads.
-- KEYS: instances
-- ARGV: ids
-- Answers with: the record of each; nothing in the place of one that is not there.
return redis.call('HMGET', KEYS[1], unpack(ARGV))
