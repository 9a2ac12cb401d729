-- uses: many keeping
-- Note on unresolved items that a reader cannot read them either.
-- KEYS: kept, unresolved, notes
-- ARGV: note of the reader, each handle
-- Answers with: on how many it was noted.
-- A repeat notes the same again, on those that are there.
kept, unresolved, notes, unread, rejected, counts, sequence = KEYS[1], KEYS[2], KEYS[3], nil, nil, nil, KEYS[1]
check_kept()

local noted_on = 0
for at = 2, #ARGV do
  local kind, number, group, note = read_kept(ARGV[at])
  if kind == 'u' then
    redis.call('ZREM', notes, noted(note, ARGV[at]))
    redis.call('ZADD', notes, 0, noted(ARGV[1], ARGV[at]))
    write_kept(ARGV[at], kind, number, group, ARGV[1], '')
    noted_on = noted_on + 1
  end
end
return noted_on
