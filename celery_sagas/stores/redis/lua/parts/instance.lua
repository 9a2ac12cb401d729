-- An instance and its keys. Expects KEYS[10] instances, [11] reservations, [12] keys of its saga, [13…] keys of the saga's other
-- names. A record begins with its version; the alternate keys it holds stand under #<id>, each as <bytes>:<property>=<value>.
local instances, reservations, keys = KEYS[10], KEYS[11], KEYS[12]
local reservation

-- 'version' if the instance is not as it was found, 'reserved' if another holder's reservation lasts, or nil.
local function changed(id, version, holder)
  local record = redis.call('HGET', instances, id)
  if not record or string.match(record, '^%d+') ~= version then return 'version' end
  reservation = redis.call('HGET', reservations, id)
  if not reservation then return nil end
  local ends_at, by = string.match(reservation, '^(%d+) (.*)$')
  if by and by ~= holder and tonumber(ends_at) > now then return 'reserved' end
end

-- 'unique' if one of the keys in ARGV is held under one of the saga's names, or nil.
local function taken(first, last)
  for at = first, last do
    for name = 12, #KEYS do
      if redis.call('HEXISTS', KEYS[name], ARGV[at]) == 1 then return 'unique' end
    end
  end
end

local function held(id)
  local list, paths, bytes, start = redis.call('HGET', keys, '#' .. id) or '', {}, nil, 1
  while true do
    bytes, start = string.match(list, '^(%d+):()', start)
    if not bytes then return paths end
    paths[#paths + 1] = string.sub(list, start, start + bytes - 1)
    start = start + bytes
  end
end

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
