-- What is kept of a group: <call that requested its flush> <call that inserted last> <items it inserted> <free> <leased>
-- <unresolved> <oldest free number> <its time> <time of the last insertion> <number up to which the trigger has fired> <why>
-- <flush requested until> <paused until> <end of the first lease> <due at, 0: when its next item comes>. Times are ms; -: none.
local STATE = '^(%S+) (%S+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%S+) (%d+) (%d+) (%d+) (%d+)$'

local function read_state(text)
  local requested_by, inserter, inserted, free, leased, unresolved, oldest, oldest_at, last_at, fired_to, fired_why, requested,
    paused, lease_end, due = string.match(text or '', STATE)
  return {
    requested_by = requested_by or '-', inserter = inserter or '-', inserted = tonumber(inserted or 0),
    free = tonumber(free or 0), leased = tonumber(leased or 0), unresolved = tonumber(unresolved or 0),
    oldest = tonumber(oldest or 0), oldest_at = tonumber(oldest_at or 0), last_at = tonumber(last_at or 0),
    fired_to = tonumber(fired_to or 0), fired_why = fired_why or '-', requested = tonumber(requested or 0),
    paused = tonumber(paused or 0), lease_end = tonumber(lease_end or 0), due = tonumber(due or 0),
  }
end

local function pack_state(group)
  return string.format(
    '%s %s %d %d %d %d %d %d %d %d %s %d %d %d %d', group.requested_by, group.inserter, group.inserted,
    group.free, group.leased, group.unresolved, group.oldest, group.oldest_at, group.last_at, group.fired_to, group.fired_why,
    group.requested, group.paused, group.lease_end, group.due
  )
end

-- How many items the group has, whatever their state.
local function buffered(group) return group.free + group.leased + group.unresolved end
