-- The change of what an instance holds. Expects tag, instance and alternate_keys.

-- Free the keys in ARGV from a position to another, and give the instance those that follow; its tags likewise. paths: what it
-- held before.
local function change_held(id, paths, first_removed, first_added, last_added)
  local replaced, kept = {}, {}
  for at = first_removed, first_added - 1 do
    local path = ARGV[at]
    if is_tag(path) then redis.call('ZREM', listed, path .. id) end
    replaced[path] = is_tag(path) or free(id, path)
  end
  for at = first_added, last_added do
    local path = ARGV[at]
    if is_tag(path) then redis.call('ZADD', listed, 0, path .. id) else redis.call('HSET', keys, path, id) end
    replaced[path] = true
  end
  for _, path in ipairs(paths) do
    if not replaced[path] then kept[#kept + 1] = path end
  end
  for at = first_added, last_added do kept[#kept + 1] = ARGV[at] end
  note_held(id, kept)
end
