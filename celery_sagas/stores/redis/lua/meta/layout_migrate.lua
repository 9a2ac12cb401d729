-- Register a layout of the keys in the place of another.
-- KEYS: meta
-- ARGV: the one that is replaced, the one that replaces it, both as in layout_register.lua
-- Answers with: the layout that is registered now, or an empty text.
-- A repeat finds what the first call has registered.
local layout = redis.call('HGET', KEYS[1], 'layout') or ''
if layout ~= ARGV[1] then return layout end
redis.call('HSET', KEYS[1], 'layout', ARGV[2])
return ARGV[2]
