-- uses: many
-- List unresolved items that bear another note than a reader's. It only reads.
-- KEYS: kept, items, notes
-- ARGV: note of the reader, how many at most
-- Answers with: for each its handle, what is kept, the packed item (empty if it is lost).
local reply, limit, prefix = {}, tonumber(ARGV[2]), #ARGV[1] .. ':' .. ARGV[1]
local before = redis.call('ZRANGEBYLEX', KEYS[3], '-', '(' .. prefix .. ':', 'LIMIT', 0, limit)
local after = redis.call('ZRANGEBYLEX', KEYS[3], '[' .. prefix .. ';', '+', 'LIMIT', 0, limit - #before)

for _, members in ipairs({ before, after }) do
  for _, member in ipairs(members) do
    local handle = string.match(member, '%d+$') or ''
    local text = redis.call('HGET', KEYS[1], handle) or ''
    add(reply, handle, text)
    reply[#reply + 1] = redis.call('HGET', KEYS[2], string.match(text, '^u (%d+) ') or '') or ''
  end
end
return reply
