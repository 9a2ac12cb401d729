-- Take messages, those of the highest priority first, and note each as unacknowledged before it leaves its list.
-- KEYS[1]   hash: tag -> [message, exchange, routing key] in JSON, as kombu writes and restores it
-- KEYS[2]   sorted set: tag -> when the message was taken
-- KEYS[3…]  lists whose last element is next: one for each queue at the highest priority, then at the one below, …
-- ARGV: the most messages, the most bytes, now (seconds), how many lists in a row are taken from in turn
-- Answers with: 1 if the lists are empty, else 0; then for each message its list (position in KEYS), its tag and the message.
-- The tag is empty for a message that could not be noted, since it is not what kombu publishes.
local most, bytes, now, width = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local taken = {0}

local function read(message)
  local properties = cjson.decode(message).properties
  local info = properties.delivery_info
  if info.exchange == nil or info.routing_key == nil then error('no address') end
  return properties.delivery_tag .. '', cjson.encode(info.exchange), cjson.encode(info.routing_key)
end

local function note(message)
  local is_read, tag, exchange, routing_key = pcall(read, message)
  if not is_read then return '' end
  local noted = '[' .. message .. ',' .. exchange .. ',' .. routing_key .. ']'
  -- a message that was routed to several queues has the same tag in each
  while redis.call('HSETNX', KEYS[1], tag, noted) == 0 do tag = tag .. '+' end
  redis.call('ZADD', KEYS[2], now, tag)
  return tag
end

local function take_one(list)
  local message = redis.call('LINDEX', KEYS[list], -1)
  if not message then return false end
  local tag = note(message)
  redis.call('RPOP', KEYS[list])
  for _, value in ipairs({list, tag, message}) do taken[#taken + 1] = value end
  most, bytes = most - 1, bytes - #message
  return true
end

local function take_in_turn(first, last)
  local is_found = true
  while is_found do
    is_found = false
    for list = first, last do
      if most < 1 or bytes < 1 then return end
      is_found = take_one(list) or is_found
    end
  end
end

for first = 3, #KEYS, width do take_in_turn(first, first + width - 1) end
-- what a connection has read is what it is told the changes of
if most > 0 and bytes > 0 and redis.call('EXISTS', unpack(KEYS, 3)) == 0 then taken[1] = 1 end
return taken
