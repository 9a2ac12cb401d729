-- Items that are kept for other code, or for people. Expects many; KEYS[5] sequence, [13] to [18]: kept, unresolved, notes,
-- unread items of the group, rejected, rejected ones of each group. Each has a number of its own, which grows with the time.
-- One is kept as: <u: unresolved, or r: rejected> <item's number> <bytes of group> <bytes of note> <bytes of packed item>\n….
local sequence, kept, unresolved, notes, unread, rejected, counts =
  KEYS[5], KEYS[13], KEYS[14], KEYS[15], KEYS[16], KEYS[17], KEYS[18]

-- Read from each key, so that a foreign one is noticed before the first write.
local function check_kept()
  redis.call('HLEN', sequence)
  redis.call('HLEN', kept)
  for _, key in ipairs({ unresolved, notes, unread, rejected }) do redis.call('ZCARD', key) end
  if counts then redis.call('HLEN', counts) end
end

local function next_handle(now)
  local last = tonumber(redis.call('HGET', sequence, 'kept') or 0)
  local handle = string.format('%.0f', math.max(last + 1, now * 1000))
  redis.call('HSET', sequence, 'kept', handle)
  return handle
end

-- The member of the notes about an unresolved item: items with one note stand together.
local function noted(note, handle) return #note .. ':' .. note .. ':' .. handle end

local function write_kept(handle, kind, number, group, note, item)
  local line = string.format('%s %s %d %d %d\n', kind, number, #group, #note, #item)
  redis.call('HSET', kept, handle, line .. group .. note .. item)
end

-- What is kept under a handle: kind, number, group, note and packed item; nothing if it is gone.
local function read_kept(handle)
  local text = redis.call('HGET', kept, handle) or ''
  local kind, number, bytes, more, _, start = string.match(text, '^(%a) (%d+) (%d+) (%d+) (%d+)\n()')
  if not kind then return nil end
  local note, item = start + bytes, start + bytes + more
  return kind, number, string.sub(text, start, note - 1), string.sub(text, note, item - 1), string.sub(text, item)
end

local function keep_unresolved(group, number, note, now)
  local handle = next_handle(now)
  write_kept(handle, 'u', number, group.name, note, '')
  redis.call('ZADD', unresolved, handle, handle)
  redis.call('ZADD', notes, 0, noted(note, handle))
  redis.call('ZADD', unread, number, handle)
  group.unresolved = group.unresolved + 1
end

local function keep_rejected(group, number, note, item, now)
  local handle = next_handle(now)
  write_kept(handle, 'r', number, group.name, note, item)
  redis.call('ZADD', rejected, handle, handle)
  redis.call('HINCRBY', counts, group.name, 1)
end
