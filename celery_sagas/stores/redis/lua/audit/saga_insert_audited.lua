-- uses: clock auditing
-- Commit a new instance, with an entry of the audit.
-- KEYS: those of saga_insert; audit, order of the audit
-- ARGV: those of saga_insert; id, digest of saga=key and packed entry of the audit
-- Answers with: what saga_insert answers with; unique, if there is an entry with this id.
-- A repeat finds its own attempt in the journal: ok, and nothing more is written.
return with_audit(function()
-- runs: saga_insert
end)
