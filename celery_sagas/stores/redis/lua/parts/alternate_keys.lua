-- The keys of instances. Expects tag and key_list; KEYS[13] keys of the saga, [14…] keys of its other names. The list of the
-- alternate keys and tags that an instance holds stands under #<id>.
local keys = KEYS[13]

-- 'unique' if one of the keys in ARGV is held under one of the saga's names, or nil. Any number of instances may have a tag.
local function taken(first, last)
  for at = first, last do
    for name = 13, #KEYS do
      if not is_tag(ARGV[at]) and redis.call('HEXISTS', KEYS[name], ARGV[at]) == 1 then return 'unique' end
    end
  end
end

local function held(id) return add_listed({}, redis.call('HGET', keys, '#' .. id) or '') end

-- Note which alternate keys and tags the instance holds.
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
