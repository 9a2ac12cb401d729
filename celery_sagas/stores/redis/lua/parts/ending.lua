-- The end of a lease. Expects attempts and keeping; the kept items as the last of ARGV: number, kind, note.

-- Divide the items of a lease: numbers and digests of those that are not kept; and what is kept, in the order of ARGV.
local function divide(numbers, digests, first)
  local digest_by, others, others_digests, keeping = {}, {}, {}, {}
  for position, number in ipairs(numbers) do digest_by[number] = digests[position] end
  for at = first, #ARGV, 3 do
    local number = ARGV[at]
    if digest_by[number] then
      keeping[#keeping + 1] = { number = number, digest = digest_by[number], kind = ARGV[at + 1], note = ARGV[at + 2] }
    end
    digest_by[number] = nil
  end
  for _, number in ipairs(numbers) do
    if digest_by[number] then others[#others + 1], others_digests[#others_digests + 1] = number, digest_by[number] end
  end
  return others, others_digests, keeping
end

-- Keep items: unresolved ones stay in the buffer, rejected ones leave it.
local function keep_items(group, keeping, ends_at, now)
  for _, each in ipairs(keeping) do
    if each.kind == 'unresolved' then
      keep_unresolved(group, each.number, each.note, now)
    else
      keep_rejected(group, each.number, each.note, redis.call('HGET', items, each.number) or '', now)
      drop_items({ each.number }, { each.digest }, ends_at)
    end
  end
end
