-- Count the dead letters. It only reads.
-- KEYS: dead letters
-- Answers with: how many there are.
return redis.call('HLEN', KEYS[1])
