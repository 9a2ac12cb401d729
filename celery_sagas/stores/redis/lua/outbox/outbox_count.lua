-- Count the rows, due or not. It only reads.
-- KEYS: outbox
-- Answers with: how many there are.
return redis.call('HLEN', KEYS[1])
