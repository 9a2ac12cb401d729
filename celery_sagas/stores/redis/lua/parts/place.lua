-- The order of pages: each instance stands in listed as <slot of its last commit, 8 hex digits><id>.
local SLOT = 524288 -- ms: 2^SLOT_BITS, see celery_sagas/stores/instances.py
local function place(at, id) return string.format('%08x', math.floor(at / SLOT)) .. id end
