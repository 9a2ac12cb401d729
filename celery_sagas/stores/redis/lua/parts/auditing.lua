-- A commit with an entry of the audit: that of another script, and then the entry. Expects clock; the last two of KEYS: audit,
-- order of the audit; the last three of ARGV: id, digest of saga=key, and packed entry. The other script does not see them.
-- An entry is kept as: <at> <digest of saga=key> <bytes of saga> … In the order stand <at, 16 digits><id> and
-- ~<digest><at, 16 digits><id> of each, without scores.
local audit_order, audit = table.remove(KEYS), table.remove(KEYS)
local audited, audited_subject, audited_id = table.remove(ARGV), table.remove(ARGV), table.remove(ARGV)

local function write_audit(at)
  local place = string.format('%016.0f', at) .. audited_id
  redis.call('HSET', audit, audited_id, string.format('%.0f ', at) .. audited_subject .. ' ' .. audited)
  redis.call('ZADD', audit_order, 0, place, 0, '~' .. audited_subject .. place)
end

-- Run the commit of a script; write the entry, if that was made and is no repeat. KEYS[6]: journal; ARGV[1]: now (ms, or empty),
-- [9]: digest of the journal's entry. Reads from both keys, so that a foreign one is noticed before the first write.
local function with_audit(commit)
  local is_repeat, is_known = redis.call('HEXISTS', KEYS[6], ARGV[9]) == 1, redis.call('HEXISTS', audit, audited_id) == 1
  redis.call('ZCARD', audit_order)
  if is_known and not is_repeat then return 'unique' end
  local at = clock(ARGV[1])
  ARGV[1] = string.format('%.0f', at)
  local said = commit()
  if said == 'ok' and not is_repeat then write_audit(at) end
  return said
end
