-- List the aggregators that have ever buffered anything here. It only reads.
-- KEYS: names
-- Answers with: their names.
return redis.call('ZRANGE', KEYS[1], 0, -1)
