-- Count the dead letters. It only reads.
-- KEYS: letters
-- Answers with: how many there are.
return redis.call('HLEN', KEYS[1])
