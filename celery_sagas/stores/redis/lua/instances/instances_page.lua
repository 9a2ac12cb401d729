-- uses: place tag
-- Read instances in the order of pages, or those that have a tag, without their states. It only reads.
-- KEYS: instances, listed
-- ARGV: the first bound and the last one, as ZRANGEBYLEX takes them in ascending order and ZREVRANGEBYLEX in descending order, 1
--   if it is ascending, how many at most, bytes of a pending map at most
-- Answers with: for each instance its member of listed, and its record up to the key, or to the pending map if that is no longer;
-- before them, in their form, the last member that was looked at (empty: that was all), and an empty text.
-- A member whose instance is gone, or has another slot, was left by code of an earlier layout, and is passed over.
local instances, listed, limit, most = KEYS[1], KEYS[2], tonumber(ARGV[4]), tonumber(ARGV[5])
-- Behind so many bytes of records a page ends: a script blocks all other clients.
local MOST_BYTES = 4000000
local members

-- What a page shows of an instance; nothing if its slot is not that of the member.
local function glance(record, id, member)
  local updated_at, key, pending, start = string.match(record, '^%d+ %d+ %d+ (%d+) (%d+) (%d+) %d+\n()')
  if not start then return string.sub(record, 1, 100) end -- it is damaged, and refused when it is read
  if not is_tag(member) and place(updated_at, id) ~= member then return nil end
  return string.sub(record, 1, start - 1 + key + (tonumber(pending) <= most and pending or 0))
end

if ARGV[3] == '1' then
  members = redis.call('ZRANGEBYLEX', listed, ARGV[1], ARGV[2], 'LIMIT', 0, limit + 1)
else
  members = redis.call('ZREVRANGEBYLEX', listed, ARGV[1], ARGV[2], 'LIMIT', 0, limit + 1)
end
local reply, bytes = { '', '' }, 0
for number, member in ipairs(members) do
  local id = string.sub(member, 9)
  local record = redis.call('HGET', instances, id)
  local shown = record and glance(record, id, member)
  if shown then reply[#reply + 1], reply[#reply + 2] = member, shown end
  bytes = bytes + #(record or '')
  if number < #members and (number == limit or bytes > MOST_BYTES) then
    reply[1] = member
    break
  end
end
return reply
