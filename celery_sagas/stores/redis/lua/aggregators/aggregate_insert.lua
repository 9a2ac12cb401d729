-- uses: clock
-- Buffer items of several groups, each group once.
-- KEYS: groups, order, due, items, sequence, seen, fresh ids, names, fresh items of each group; if an item is unreadable also
--   unread
-- ARGV: call, now (ms, or empty), aggregator, size, within, idle, lease (ms), most items, number of groups; for each group: its
--   name, number of items, digest of each, each packed item, after a ! if it is unreadable
-- Answers with: for each group how many items are new, 1 if the caller must ask for a flush, 1 if it is full; spaces in between.
-- A repeat finds the items, and its call if no other has inserted since: then it answers as the first call did.
local call, now, most, number_of_groups = ARGV[1], clock(ARGV[2]), tonumber(ARGV[8]), tonumber(ARGV[9])
-- uses: joining many state trigger group
local sequence, names, unread = KEYS[5], KEYS[8], KEYS[9 + number_of_groups]
-- uses: unread resolving adding
if unread then redis.call('ZCARD', unread) end

local found, reply, total, at = {}, {}, 0, 10
for number = 1, number_of_groups do
  local group = find_group(ARGV[at], KEYS[8 + number])
  group.position, group.count = number, tonumber(ARGV[at + 1])
  group.new = group.inserter ~= call and unknown(at + 2, at + 1 + group.count) or {}
  group.is_full = most > 0 and #group.new > 0 and buffered(group) + #group.new > most
  if group.is_full then group.new = {} end
  redis.call('ZCARD', due)
  if group.is_new then
    redis.call('ZCARD', order)
    redis.call('ZCARD', names)
  end
  found[number], total, at = group, total + #group.new, at + 2 + 2 * group.count
end

local last = total > 0 and redis.call('HINCRBY', sequence, 'number', total) - total
for _, group in ipairs(found) do
  if group.inserter ~= call and not group.is_full and (#group.new > 0 or not group.is_new) then
    if group.is_new then redis.call('ZADD', names, 0, ARGV[3]) end
    write_items(group, last)
    last = last and last + #group.new
    group.inserter, group.inserted = call, #group.new
    request_flush(group, now)
    save_group(group, now)
  end
  local is_of_this_call = group.inserter == call
  add(reply, is_of_this_call and group.inserted or 0, is_of_this_call and group.requested_by == call and 1 or 0)
  reply[#reply + 1] = group.is_full and 1 or 0
end
return table.concat(reply, ' ')
