-- uses: clock auditing
-- Release a saga or a step, with an entry of the audit.
-- KEYS: switches, audit, order of the audit
-- ARGV: now (ms, or empty), name; id, digest of saga=key and packed entry of the audit
-- Answers with: ok; free, if it is not held.
-- A repeat finds its own entry: ok, and nothing more is written.
local switches, name = KEYS[1], ARGV[2]

redis.call('ZCARD', audit_order)
if redis.call('HEXISTS', audit, audited_id) == 1 then return 'ok' end
if redis.call('HDEL', switches, name) == 0 then return 'free' end
write_audit(clock(ARGV[1]))
return 'ok'
