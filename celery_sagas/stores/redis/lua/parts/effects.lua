-- The outgoing rows of a commit, and its entry. Expects many, index, outgoing, rows and journal; ARGV[3] to [5]: owner, grace
-- (ms), number of rows, [13] instance id of the entry; and the rows as the last of ARGV, as in parts/outgoing.lua.
local owner, grace, instance_id = ARGV[3], tonumber(ARGV[4]), ARGV[13]
local first_row = #ARGV - 4 * ARGV[5] + 1

-- 'unique' if a row is there already, or nil. Reads from each key that write_effects writes to, but for the order.
local function refused_effects()
  check_entry()
  if first_row > #ARGV then return nil end
  check_rows()
  for at = first_row, #ARGV, 4 do
    if redis.call('HEXISTS', outbox, ARGV[at]) == 1 then return 'unique' end
  end
end

local function write_effects()
  write_entry()
  if first_row > #ARGV then return end
  put_rows(first_row, #ARGV, { outbox, due, leases, index }, { owner, now + grace }, { digest, instance_id })
end
