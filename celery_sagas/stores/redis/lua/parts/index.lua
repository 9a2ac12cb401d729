-- What the index has about each outgoing row: the prefix of the deciding message, then the row's id; if it ends with its
-- instance, the instance's prefix, then the digest of the deciding message, a colon, and the row's id; and if it was tried, that
-- prefix, then when it was tried first (16 digits), a colon, and the row's id.
local TRIED = 't:'
local function of_cause(digest) return 'c:' .. digest .. ':' end
local function of_instance(id) return 'i:' .. #id .. ':' .. id .. ':' end
