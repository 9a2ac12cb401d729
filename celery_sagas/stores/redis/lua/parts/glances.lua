-- Rows as operators see them. Expects rows and trials.

-- Add to a list what a row says, but for its payload: id, due at, attempts, tried at, available at, leased until (ms; 0: it is
-- under no lease), error, instance id, kind, message id, task, step and cause; nothing if it is gone, or damaged.
local function add_glance(list, id)
  local row = redis.call('HGET', outbox, id) or ''
  local line, start = string.match(row, '^([^\n]*)\n()')
  if not line then return false end
  local words, texts = {}, {}
  for word in string.gmatch(line, '%S+') do words[#words + 1] = word end
  for number = 4, 10 do
    local bytes = tonumber(words[number]) or 0
    if number ~= 8 then texts[#texts + 1] = string.sub(row, start, start + bytes - 1) end
    start = start + bytes
  end
  local available_at, lease = redis.call('ZSCORE', due, id) or '0', redis.call('HGET', leases, id)
  local attempts, tried_at = trial_of(id)
  local error = string.match(redis.call('HGET', failures, id) or '', '^%S+ (.*)$') or ''
  local is_leased = lease and string.sub(lease, 1, 2) ~= '- '
  for _, word in ipairs({ id, words[1], attempts, string.format('%.0f', tried_at), string.format('%.0f', available_at),
    string.format('%.0f', is_leased and available_at or 0), error }) do
    list[#list + 1] = word
  end
  for _, text in ipairs(texts) do list[#list + 1] = text end
  return true
end
