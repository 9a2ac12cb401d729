-- uses: answers place tag key_list
-- Move instances from a former name of their saga to its name, with the keys and the tags that they hold.
-- KEYS: instances, keys and listed of the former name, the same of the name, answer of the call
-- ARGV: call, cursor (0: from the beginning), how many at most
-- Answers with: the cursor to go on with (0: that was all; empty: the same, since there were more than were to be moved), how
-- many were moved; id and key of each instance that stays, since one of its keys is taken under the name, or it cannot be read
-- (then without a key).
-- A repeat finds those gone that the first call has moved, and counts them among its own.
local instances, keys, listed, new_instances, new_keys, new_listed = unpack(KEYS)
local moved, limit, is_cut = answered() or 0, tonumber(ARGV[3]), false

-- The key of an instance, what it holds as a list and as keys, its key first, and its members of listed; nothing if it cannot be
-- read.
local function held(id, record)
  local updated_at, bytes, start = string.match(record, '^%d+ %d+ %d+ (%d+) (%d+) %d+ %d+\n()')
  if not bytes then return nil end
  local key, list = string.sub(record, start, start + bytes - 1), redis.call('HGET', keys, '#' .. id) or ''
  local paths, members = { '$key=' .. key }, { place(updated_at, id) }
  for _, path in ipairs(add_listed({}, list)) do
    if is_tag(path) then members[#members + 1] = path .. id else paths[#paths + 1] = path end
  end
  return key, list, paths, members
end

-- True if the instance holds each, and no other has it under the name.
local function are_free(id, paths)
  for _, path in ipairs(paths) do
    if redis.call('HGET', keys, path) ~= id or redis.call('HEXISTS', new_keys, path) == 1 then return false end
  end
  return true
end

local function move(id, record, list, paths, members)
  redis.call('HSET', new_instances, id, record)
  for _, path in ipairs(paths) do redis.call('HSET', new_keys, path, id) end
  if list ~= '' then redis.call('HSET', new_keys, '#' .. id, list) end
  for _, member in ipairs(members) do redis.call('ZADD', new_listed, 0, member) end
  redis.call('HDEL', instances, id)
  redis.call('HDEL', keys, '#' .. id, unpack(paths))
  redis.call('ZREM', listed, unpack(members))
  moved = moved + 1
end

for _, key in ipairs({ instances, keys, new_instances, new_keys }) do redis.call('HLEN', key) end
for _, key in ipairs({ listed, new_listed }) do redis.call('ZCARD', key) end
local scanned, reply = redis.call('HSCAN', instances, ARGV[2], 'COUNT', limit), { '', 0 }
for at = 1, #scanned[2], 2 do
  local id, record = scanned[2][at], scanned[2][at + 1]
  local key, list, paths, members = held(id, record)
  if not key or not are_free(id, paths) then
    reply[#reply + 1], reply[#reply + 2] = id, key or ''
  elseif moved < limit then
    move(id, record, list, paths, members)
  else
    is_cut = true
  end
end
if moved > 0 then remember(moved) end
reply[1], reply[2] = is_cut and '' or scanned[1], moved
return reply
