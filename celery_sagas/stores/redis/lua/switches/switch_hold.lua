-- uses: clock auditing
-- Hold a saga or a step, with an entry of the audit.
-- KEYS: switches, audit, order of the audit
-- ARGV: now (ms, or empty), name, packed switch, how many there may be; id, digest of saga=key and packed entry of the audit
-- Answers with: ok; held, if it is held already; full, if so many others are.
-- A repeat finds its own entry: ok, and nothing more is written.
-- A switch is kept as: <at> <bytes of actor> <bytes of reason>, and these texts.
local switches, name = KEYS[1], ARGV[2]

redis.call('ZCARD', audit_order)
if redis.call('HEXISTS', audit, audited_id) == 1 then return 'ok' end
if redis.call('HEXISTS', switches, name) == 1 then return 'held' end
if redis.call('HLEN', switches) >= tonumber(ARGV[4]) then return 'full' end
local at = clock(ARGV[1])
redis.call('HSET', switches, name, string.format('%.0f ', at) .. ARGV[3])
write_audit(at)
return 'ok'
