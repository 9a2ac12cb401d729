-- uses: many index rows trials glances
-- Read rows by their ids. It only reads.
-- KEYS: outbox, due, leases, failures, index
-- ARGV: id of each row
-- Answers with: for each row that is there what parts/glances.lua says.
local reply = {}
for _, id in ipairs(ARGV) do add_glance(reply, id) end
return reply
