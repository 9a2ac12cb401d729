-- uses: clock many state gate group keeping adding
-- Buffer items of several groups, each group once.
-- KEYS: groups, order, due, items, sequence, seen, fresh ids, names, fresh items of each group; if an item is unresolved also
--   kept, unresolved, notes, unread items of each group
-- ARGV: call, now (ms, or empty), aggregator, size, within, idle, lease (ms), most items, number of groups; for each group: its
--   name, number of items, digest of each, each packed item; if an item is unresolved, what could not read each (empty:
--   nothing)
-- Answers with: for each group how many items are new, 1 if a flush is to be asked for, 1 if it is full.
-- A repeat finds the items, and its call if no other has inserted since: then it answers as the first call did.
local now, most, number_of_groups = clock(ARGV[2]), tonumber(ARGV[8]), tonumber(ARGV[9])
local names, of_unread = KEYS[8], 11 + number_of_groups
local has_unread = #KEYS > of_unread
local additions, reply, total, at = {}, {}, 0, 10

local function read_addition(number)
  local fresh, count = KEYS[8 + number], tonumber(ARGV[at + 1])
  local group = find_group(ARGV[at], fresh)
  local new = group.inserter ~= ARGV[1] and unknown(at + 2, at + 1 + count, now) or {}
  local is_full = most > 0 and #new > 0 and buffered(group) + #new > most
  at, unread = at + 2 + count * (has_unread and 3 or 2), KEYS[of_unread + number]
  if has_unread then check_kept() end
  if group.is_new then redis.call('ZCARD', names) end
  return { group = group, new = is_full and {} or new, count = count, is_full = is_full, fresh = fresh, unread = unread }
end

local function write_addition(addition)
  local group = addition.group
  unread = addition.unread
  if group.is_new then redis.call('ZADD', names, 0, ARGV[3]) end
  write_items(addition, has_unread, now)
  group.inserter, group.inserted = ARGV[1], #addition.new
  ask(group, now)
  save_group(group, now)
end

rejected, counts = nil, nil
if has_unread then kept, unresolved, notes = KEYS[of_unread - 2], KEYS[of_unread - 1], KEYS[of_unread] end
for number = 1, number_of_groups do
  additions[number] = read_addition(number)
  total = total + #additions[number].new
end
if total > 0 then number_before = redis.call('HINCRBY', sequence, 'number', total) - total end
for _, addition in ipairs(additions) do
  local group = addition.group
  local is_again = group.inserter == ARGV[1]
  if not is_again and not addition.is_full and (#addition.new > 0 or not group.is_new) then write_addition(addition) end
  local is_of_this_call = group.inserter == ARGV[1]
  add(reply, is_of_this_call and group.inserted or 0, is_of_this_call and group.asker == ARGV[1] and 1 or 0)
  reply[#reply + 1] = addition.is_full and 1 or 0
end
return reply
