-- Count the instances under names of sagas. It only reads.
-- KEYS: instances of each name
-- Answers with: how many there are under each.
local counts = {}
for number, instances in ipairs(KEYS) do counts[number] = redis.call('HLEN', instances) end
return counts
