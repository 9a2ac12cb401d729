-- What a flush takes. Expects fresh; ARGV[9] most items, [10] failures of an item before its batches become smaller.
local limit, tries = tonumber(ARGV[9]), tonumber(ARGV[10])

-- How many items may be in one batch with one that has failed so often.
local function allowed(failed) return math.floor(limit / 2 ^ math.max((failed or 0) - tries + 1, 0)) end

-- How many of the first items a flush takes.
local function taken(numbers, failures)
  if #failures == 0 then return math.min(#numbers, math.max(allowed(0), 1)) end
  local most = limit
  for position = 1, #numbers do
    most = math.min(most, allowed(failures[position]))
    if position > 1 and position > most then return position - 1 end
  end
  return #numbers
end

-- The packed items with these numbers, those that were fresh until now without reading them again.
local function read_items(numbers)
  local others, packed = {}, {}
  for _, number in ipairs(numbers) do
    if not packed_by[number] then others[#others + 1] = number end
  end
  for position, item in ipairs(items_of(others)) do packed_by[others[position]] = item end
  for position, number in ipairs(numbers) do packed[position] = packed_by[number] end
  return packed
end
