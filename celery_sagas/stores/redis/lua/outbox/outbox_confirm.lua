-- uses: many index rows removal answers
-- Remove rows that were published.
-- KEYS: outbox, due, leases, failures, index, answer of the call
-- ARGV: call, token, id of each row
-- Answers with: how many rows were removed.
-- A repeat finds the rows gone, and answers as the first call did.
check_rows()
local removed = answered()
if removed then return removed end

local ids = held_by(ARGV[2], 3)
remove_rows(ids, members_of(ids, rows_of(ids)))
return #ids > 0 and remember(#ids) or 0
