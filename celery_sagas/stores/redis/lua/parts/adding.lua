-- Adds items. Expects group and keeping. The digests of the items stand in ARGV, each packed item as far behind its digest as
-- there are items in the addition; what could not read it as far again behind that, if has_unread.
local number_before = 0

-- The positions in ARGV of the digests that are neither buffered nor remembered, each once.
local function unknown(first, last, now)
  local positions, met = {}, {}
  for from = first, last, 5000 do
    for offset, score in ipairs(redis.call('ZMSCORE', seen, unpack(ARGV, from, math.min(from + 4999, last)))) do
      local digest, known_until = ARGV[from + offset - 1], tonumber(score or 0)
      if not met[digest] and known_until >= 0 and known_until <= now then positions[#positions + 1] = from + offset - 1 end
      met[digest] = true
    end
  end
  return positions
end

-- Write the new items, with the numbers that come next.
local function write_items(addition, has_unread, now)
  local group, time, packed, freed, ids = addition.group, string.format('%.0f ', now), {}, {}, {}
  for _, position in ipairs(addition.new) do
    number_before = number_before + 1
    local number, reader = string.format('%.0f', number_before), has_unread and ARGV[position + 2 * addition.count] or ''
    add(packed, number, time .. ARGV[position + addition.count])
    add(ids, -number_before, ARGV[position])
    if reader == '' then add(freed, number, number) else keep_unresolved(group, number, reader, now) end
  end
  in_parts(packed, function(...) redis.call('HSET', items, ...) end)
  in_parts(ids, function(...) redis.call('ZADD', seen, ...) end)
  in_parts(freed, function(...) redis.call('ZADD', addition.free, ...) end)
  if #freed == 0 then return end
  if group.free == 0 then group.oldest, group.oldest_at = tonumber(freed[1]), now end
  group.free, group.last_at = group.free + #freed / 2, now
end
