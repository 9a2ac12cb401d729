-- Read all switches. It only reads.
-- KEYS: switches
-- Answers with: the names, and the switches in the same order.
return { redis.call('HKEYS', KEYS[1]), redis.call('HVALS', KEYS[1]) }
