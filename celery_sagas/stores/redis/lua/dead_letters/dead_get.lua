-- Get a dead letter. It only reads.
-- KEYS: dead letters
-- ARGV: id
-- Answers with: the packed dead letter, or nothing.
return redis.call('HGET', KEYS[1], ARGV[1])
