-- Adds items. Expects group and keeping. The digests of the items stand in ARGV, each packed item as far behind its digest as
-- there are items in the addition; what could not read it as far again behind that, if has_unread.
local number_before = 0

-- Note which digests in ARGV a key knows: a hash those of buffered items, the sorted set those that are remembered.
local function note_known(known, command, key, first, last, now)
  for from = first, last, 5000 do
    for offset, found in ipairs(redis.call(command, key, unpack(ARGV, from, math.min(from + 4999, last)))) do
      if found and (key ~= seen or tonumber(found) > now) then known[ARGV[from + offset - 1]] = true end
    end
  end
end

-- The positions in ARGV of the digests that are neither buffered nor remembered, each once.
local function unknown(first, last, now)
  local positions, known = {}, {}
  note_known(known, 'HMGET', fresh_ids, first, last, now)
  if redis.call('HLEN', items) > 0 then note_known(known, 'HMGET', items, first, last, now) end
  if redis.call('ZCARD', seen) > 0 then note_known(known, 'ZMSCORE', seen, first, last, now) end
  for position = first, last do
    if not known[ARGV[position]] then positions[#positions + 1] = position end
    known[ARGV[position]] = true
  end
  return positions
end

-- Write a new item that could not be read.
local function write_unresolved(group, number, packed, digest, reader, now)
  redis.call('HSET', items, number, packed, digest, number)
  keep_unresolved(group, number, reader, now)
end

-- Write the new items, with the numbers that come next.
local function write_items(addition, has_unread, now)
  local group, time, fresh, known = addition.group, string.format('%.0f ', now), {}, {}
  for _, position in ipairs(addition.new) do
    number_before = number_before + 1
    local number, packed = string.format('%.0f', number_before), time .. ARGV[position + addition.count]
    local reader = has_unread and ARGV[position + 2 * addition.count] or ''
    if reader == '' then
      add(fresh, number, packed)
      add(known, ARGV[position], number)
    else
      write_unresolved(group, number, packed, ARGV[position], reader, now)
    end
  end
  in_parts(fresh, function(...) redis.call('RPUSH', addition.fresh, ...) end)
  in_parts(known, function(...) redis.call('HSET', fresh_ids, ...) end)
  if #fresh == 0 then return end
  if group.free == 0 then group.oldest, group.oldest_at = tonumber(fresh[1]), now end
  group.free, group.last_at = group.free + #fresh / 2, now
end
