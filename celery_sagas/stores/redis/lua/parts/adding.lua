-- Adds items. Expects many, group and resolving, call and now. The digests of the items stand in ARGV, each packed item as far
-- behind its digest as there are items in the addition.

-- Note which digests in ARGV a key knows: a hash those of buffered items, the sorted set those that are remembered.
local function note_known(known, command, key, first, last)
  for from = first, last, 5000 do
    for offset, found in ipairs(redis.call(command, key, unpack(ARGV, from, math.min(from + 4999, last)))) do
      if found and (key ~= seen or tonumber(found) > now) then known[ARGV[from + offset - 1]] = true end
    end
  end
end

-- The positions in ARGV of the digests that are neither buffered nor remembered, each once.
local function unknown(first, last)
  local positions, known = {}, {}
  note_known(known, 'HMGET', fresh_ids, first, last)
  if redis.call('HLEN', items) > 0 then note_known(known, 'HMGET', items, first, last) end
  if redis.call('ZCARD', seen) > 0 then note_known(known, 'ZMSCORE', seen, first, last) end
  for position = first, last do
    if not known[ARGV[position]] then positions[#positions + 1] = position end
    known[ARGV[position]] = true
  end
  return positions
end

-- Write the new items of a group, the first with the number after this one.
local function write_items(group, number)
  local time, fresh, known = string.format('%.0f ', now), {}, {}
  for at, position in ipairs(group.new) do
    local own, digest, packed = string.format('%.0f', number + at), ARGV[position], ARGV[position + group.count]
    if string.byte(packed) == 33 then
      redis.call('HSET', items, own, time .. string.sub(packed, 2), digest, own)
      set_unread(group, own)
    else
      add(fresh, own, time .. packed)
      add(known, digest, own)
    end
  end
  if #fresh == 0 then return end
  in_parts(fresh, function(...) redis.call('RPUSH', KEYS[8 + group.position], ...) end)
  in_parts(known, function(...) redis.call('HSET', fresh_ids, ...) end)
  if group.free == 0 then group.oldest, group.oldest_at = tonumber(fresh[1]), now end
  group.free, group.last_at = group.free + #fresh / 2, now
end
