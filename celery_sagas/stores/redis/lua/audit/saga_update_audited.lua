-- uses: clock auditing
-- Commit a change of the instance that was found, with an entry of the audit.
-- KEYS: those of saga_update; audit, order of the audit
-- ARGV: those of saga_update; id, digest of saga=key and packed entry of the audit
-- Answers with: what saga_update answers with; unique, if there is an entry with this id.
-- A repeat finds its own attempt in the journal: ok, and nothing more is written.
return with_audit(function()
-- runs: saga_update
end)
