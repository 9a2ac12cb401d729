-- Register where a saga lives, unless one of its names is registered; its other names follow it.
-- KEYS: meta
-- ARGV: a shard's number or all (empty: only look), each name of the saga
-- Answers with: the different shards that are registered now: one, or none if only looked for. Nothing is registered that
-- contradicts what is there: a saga in all shards does not move into one, nor the other way round.
-- A repeat finds what the first call has registered. It writes only what is missing: a server out of memory can be read.
local chosen, shards, known, unknown = ARGV[1], {}, {}, {}
for at = 2, #ARGV do
  local shard = redis.call('HGET', KEYS[1], 'saga:' .. ARGV[at])
  if not shard then unknown[#unknown + 1] = ARGV[at] end
  if shard and not known[shard] then
    known[shard] = true
    shards[#shards + 1] = shard
  end
end
if chosen == '' or #shards > 1 then return shards end

local shard = shards[1] or chosen
if (shard == 'all') == (chosen == 'all') then
  for _, name in ipairs(unknown) do redis.call('HSET', KEYS[1], 'saga:' .. name, shard) end
end
return { shard }
