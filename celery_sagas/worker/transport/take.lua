-- Take messages, those of the highest priority first, and note each as unacknowledged before it leaves its list.
-- KEYS[1]   hash: tag -> [message, "", queue] in JSON: by the default exchange kombu restores it to the queue it was taken from,
--           and to no other that its own exchange routes it to
-- KEYS[2]   sorted set: tag -> when the message was taken
-- KEYS[3…]  lists whose last element is next: one for each queue at the highest priority, then at the one below, …
-- ARGV: the most messages, the most bytes, now (seconds), how many lists in a row are taken from in turn, the name of each queue
-- Answers with: the error of a list, else ''; then for each message its list (position in KEYS), its tag and the message.
local most, bytes, now, in_turn = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local taken = {''}

local function tag_of(message)
  return cjson.decode(message).properties.delivery_tag .. ''
end

local function queue_of(list)
  return ARGV[5 + (list - 3) % (#ARGV - 4)]
end

local function note(message, list)
  local is_read, tag = pcall(tag_of, message)
  if not is_read then tag = redis.sha1hex(message) end -- Python may read it
  local noted = '[' .. message .. ',"",' .. cjson.encode(queue_of(list)) .. ']'
  -- a message that was routed to several queues has the same tag in each
  while redis.call('HSETNX', KEYS[1], tag, noted) == 0 do tag = tag .. '+' .. #taken end
  redis.call('ZADD', KEYS[2], now, tag)
  return tag
end

local function take_one(list)
  local message = redis.call('LINDEX', KEYS[list], -1)
  if not message then return false end
  local tag = note(message, list)
  redis.call('RPOP', KEYS[list])
  for _, value in ipairs({list, tag, message}) do taken[#taken + 1] = value end
  most, bytes = most - 1, bytes - #message
  return true
end

-- Take one message of each list, then another one of each that may have more, and so on.
local function take_from(lists)
  local filled = {}
  for _, list in ipairs(lists) do
    if most < 1 or bytes < 1 then return end
    local is_well, is_found = pcall(take_one, list)
    if not is_well then taken[1] = type(is_found) == 'table' and is_found.err or tostring(is_found) end
    if is_well and is_found then filled[#filled + 1] = list end
  end
  if #filled > 0 then return take_from(filled) end
end

-- a script that has written may go on to write where the server has no memory left: taking messages frees it
redis.call('ZREM', KEYS[2], '')
for first = 3, #KEYS, in_turn do
  local lists = {}
  for list = first, first + in_turn - 1 do lists[#lists + 1] = list end
  take_from(lists)
end
return taken
