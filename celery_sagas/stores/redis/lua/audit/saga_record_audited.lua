-- uses: clock auditing
-- Commit a journal entry and rows without an instance, with an entry of the audit.
-- KEYS: those of saga_record; audit, order of the audit
-- ARGV: those of saga_record; id, digest of saga=key and packed entry of the audit
-- Answers with: what saga_record answers with; unique, if there is an entry with this id.
-- A repeat finds its own attempt in the journal: ok, and nothing more is written.
return with_audit(function()
-- runs: saga_record
end)
