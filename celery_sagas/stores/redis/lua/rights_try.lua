-- Run every command that the scripts use, so that a right that is missing shows before anything is consumed.
-- KEYS: a hash, a sorted set, a list and a string that nothing else uses
-- Answers with: nothing.
-- A repeat does the same; nothing is left behind.
local hash, zset, list, text = KEYS[1], KEYS[2], KEYS[3], KEYS[4]

redis.call('TIME')
redis.call('HSET', hash, 'field', '')
redis.call('HGET', hash, 'field')
redis.call('HMGET', hash, 'field')
redis.call('HINCRBY', hash, 'number', 0)
redis.call('HEXISTS', hash, 'field')
redis.call('HLEN', hash)
redis.call('HKEYS', hash)
redis.call('HVALS', hash)
redis.call('ZADD', zset, 0, 'member')
redis.call('ZCARD', zset)
redis.call('ZSCORE', zset, 'member')
redis.call('ZMSCORE', zset, 'member')
redis.call('ZRANGE', zset, 0, 0)
redis.call('ZRANGEBYLEX', zset, '-', '+')
redis.call('ZRANGEBYSCORE', zset, 0, 0)
redis.call('ZREVRANGE', zset, 0, 0)
redis.call('ZREVRANK', zset, 'member')
redis.call('RPUSH', list, 'item')
redis.call('LLEN', list)
redis.call('LRANGE', list, 0, 0)
redis.call('SET', text, '', 'XX')
redis.call('GET', text)
redis.call('HDEL', hash, 'field', 'number')
redis.call('ZREMRANGEBYLEX', zset, '(member', '+')
redis.call('ZREM', zset, 'member')
redis.call('ZREMRANGEBYRANK', zset, 0, -1)
redis.call('LTRIM', list, 1, 0)
