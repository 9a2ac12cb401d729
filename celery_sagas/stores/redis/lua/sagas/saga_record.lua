-- uses: clock journal many index outgoing rows effects
-- Commit a journal entry and rows without an instance.
-- KEYS: outbox, due, leases, failures, index, journal, order, heads, completed
-- ARGV: as parts/effects.lua says; 4 for each row
-- Answers with: ok, handled or unique.
-- A repeat finds its own attempt in the journal: ok, and nothing more is written.
local said = handled() or refused_effects()
if said then return said end

write_effects()
return 'ok'
