-- Get a dead letter. It only reads.
-- KEYS: letters
-- ARGV: id
-- Answers with: the packed letter, or nothing.
return redis.call('HGET', KEYS[1], ARGV[1])
