-- A tag is named ~<digest, 7 bytes>, as no property and no slot begins; it stands in listed as <name><id> of each instance.
local function is_tag(path) return string.byte(path) == 126 end
