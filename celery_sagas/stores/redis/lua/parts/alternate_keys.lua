-- The keys of instances. Expects key_list; KEYS[12] keys of the saga, [13…] keys of its other names. The list of the alternate
-- keys that an instance holds stands under #<id>.
local keys = KEYS[12]

-- 'unique' if one of the keys in ARGV is held under one of the saga's names, or nil.
local function taken(first, last)
  for at = first, last do
    for name = 12, #KEYS do
      if redis.call('HEXISTS', KEYS[name], ARGV[at]) == 1 then return 'unique' end
    end
  end
end

local function held(id) return add_listed({}, redis.call('HGET', keys, '#' .. id) or '') end

-- Note which alternate keys the instance holds.
local function note_held(id, paths)
  if #paths == 0 then return redis.call('HDEL', keys, '#' .. id) end
  local list = {}
  for number, path in ipairs(paths) do list[number] = #path .. ':' .. path end
  redis.call('HSET', keys, '#' .. id, table.concat(list))
end

-- Free a key, if the instance holds it; return whether it did.
local function free(id, path)
  return redis.call('HGET', keys, path) == id and redis.call('HDEL', keys, path) == 1
end
