-- From here on nothing is generated (source: tests/dissect/src/wireshark.lua). Tested with Wireshark 4.0.

local STAMP_UNIT_NS = 64

local metaroce = Proto(ROOT, "metaroce, RDMA over UDP")

metaroce.prefs.ports = Pref.range("UDP ports", PORTS,
  "Ports of endpoints: METAROCE_PORT_BASE and METAROCE_PORTS of the hosts", 65535)
metaroce.prefs.checksums = Pref.bool("Verify checksums", true, "Compute the CRC32C of each packet")

local experts = {
  length = ProtoExpert.new(ROOT .. ".bad_length", "Bad length", expert.group.MALFORMED, expert.severity.ERROR),
  value = ProtoExpert.new(ROOT .. ".undefined_value", "Undefined value", expert.group.MALFORMED, expert.severity.ERROR),
  version = ProtoExpert.new(ROOT .. ".unknown_version", "Unknown version", expert.group.UNDECODED, expert.severity.WARN),
  checksum = ProtoExpert.new(ROOT .. ".bad_checksum", "Bad checksum", expert.group.CHECKSUM, expert.severity.ERROR),
  cut = ProtoExpert.new(ROOT .. ".cut", "Cut off by the capture", expert.group.UNDECODED, expert.severity.NOTE),
  again = ProtoExpert.new(ROOT .. ".sent_again", "Retransmission", expert.group.SEQUENCE, expert.severity.NOTE),
}
metaroce.experts = experts

-- Fields ------------------------------------------------------------------------------------------------------------

local function proto_field(field)
  local key, label, bits = field.key, field.label, field.bits
  if field.kind == "gid" then
    return ProtoField.ipv6(key, label)
  end
  local show = base.DEC
  if field.kind == "hex" or field.kind == "checksum" or field.kind == "flags" then
    show = base.HEX
  end
  if bits < 8 then
    local mask = (2 ^ bits - 1) * 2 ^ (8 - bits - field.bit % 8)
    return ProtoField.uint8(key, label, show, field.values, mask)
  end
  local makers = {
    [8] = ProtoField.uint8, [16] = ProtoField.uint16, [24] = ProtoField.uint24,
    [32] = ProtoField.uint32, [64] = ProtoField.uint64,
  }
  return makers[bits](key, label, show, field.values)
end

local all_fields = {}
local raw_fields = {}

local function register(field)
  all_fields[#all_fields + 1] = field
  return field
end

for _, layout in pairs(LAYOUTS) do
  for _, field in ipairs(layout.fields) do
    field.proto = register(proto_field(field))
    for _, flag in ipairs(field.flags or {}) do
      flag.proto = register(ProtoField.bool(field.key .. "." .. flag.key, flag.name, 8, nil, flag.mask))
    end
  end
  for _, follow in ipairs(layout.follow) do
    if follow.raw and not raw_fields[follow.raw] then
      raw_fields[follow.raw] = register(ProtoField.bytes(follow.raw, follow.label))
    end
  end
end
local segments_field = register(ProtoField.uint32(ROOT .. ".packets", "packets in this datagram"))
metaroce.fields = all_fields

-- Checksums ---------------------------------------------------------------------------------------------------------

-- Wireshark has one of these libraries, depending on its version of Lua. Results may be negative: see `unsigned`.
local bits = bit32 or bit
local bxor, band, rshift = bits.bxor, bits.band, bits.rshift

local function unsigned(number)
  return number % 4294967296
end

local crc_table = {}
for byte = 0, 255 do
  local value = byte
  for _ = 1, 8 do
    local low = band(value, 1)
    value = rshift(value, 1)
    if low == 1 then value = bxor(value, 0x82F63B78) end
  end
  crc_table[byte] = value
end

-- CRC32C of the bytes first to last (from 1) of a string, those at blank to blank + 3 counted as 0.
local function crc32c(text, first, last, blank)
  local crc = 0xFFFFFFFF
  for at = first, last do
    local byte = 0
    if at < blank or at > blank + 3 then byte = text:byte(at) end
    crc = bxor(rshift(crc, 8), crc_table[band(bxor(crc, byte), 0xFF)])
  end
  return unsigned(bxor(crc, 0xFFFFFFFF))
end

local function number_at(text, first, count)
  local number = 0
  for at = first, first + count - 1 do number = number * 256 + text:byte(at) end
  return number
end

local function seal_for(text, first)
  local byte = text:byte(first)
  if not byte or math.floor(byte / 16) ~= VERSION then return nil end
  return SEALS[byte % 16]
end

-- What the checksum says about the bytes first to last of a string: "right" and the length without padding, "wrong",
-- or nil where they are of no known version and type, or too short to have one.
local function seal_of(text, first, last)
  local seal = seal_for(text, first)
  local bytes = last - first + 1
  if not seal or bytes < seal.least then return nil end
  local covered, length = bytes, bytes
  if seal.headers then
    length = seal.headers + number_at(text, first + seal.length_at, 2)
    if length > bytes then return nil end
    local whole = band(text:byte(first + seal.flags_at), seal.payload_flag) ~= 0
    covered = whole and length or seal.headers
  end
  local at = seal.front and first + seal.front or last + 1 - seal.back
  if crc32c(text, first, first + covered - 1, at) == number_at(text, at, 4) then
    return "right", length
  end
  return "wrong"
end

-- Bytes of each packet but the last of a datagram that the kernel sent or merged: where the next one begins, there is
-- a right checksum.
local function segment_bytes(text)
  local total = #text
  local state, length = seal_of(text, 1, total)
  if state == "right" and length == total then return total end
  local least = state == "right" and length or SHORTEST_PACKET_BYTES
  local looks = 0
  local function is_packet(start, bytes)
    if not seal_for(text, start + 1) then return false end
    looks = looks + 1
    return looks <= SEGMENT_LOOKS_MAX and seal_of(text, start + 1, math.min(start + bytes, total)) == "right"
  end
  local function any_from(first, bytes)
    for start = first, total - 1, bytes do
      if is_packet(start, bytes) then return true end
    end
    return false
  end
  local likely = least
  while likely < total and text:byte(likely + 1) == 0 do likely = likely + 1 end
  if state == "right" and any_from(likely, likely) then return likely end
  for bytes = least, total - SHORTEST_PACKET_BYTES do
    if is_packet(bytes, bytes) then return bytes end
  end
  for bytes = least, total - SHORTEST_PACKET_BYTES do
    if any_from(2 * bytes, bytes) then return bytes end
  end
  return total
end

-- Walking the tables ------------------------------------------------------------------------------------------------

-- Bits of a packet as a number, up to 32 of them; nil where the packet ends before.
local function bits_at(packet, bit_at, count)
  local first = math.floor(bit_at / 8)
  local bytes = math.ceil((bit_at % 8 + count) / 8)
  if first + bytes > packet.length then return nil end
  return packet.tvb(first, bytes):bitfield(bit_at % 8, count)
end

local function is_there(packet, field)
  for _, condition in ipairs(field.when or {}) do
    local value = bits_at(packet, condition.bit, condition.bits)
    if not value or (condition.values[value] or false) ~= condition.holds then return false end
  end
  return true
end

local function number_of(packet, layout, name, start)
  for _, field in ipairs(layout.fields) do
    if field.name == name then return bits_at(packet, 8 * start + field.bit, field.bits) end
  end
end

local function problem(packet, tree, which, text)
  if packet.is_cut and which == "length" then which = "cut" end
  tree:add_proto_expert_info(experts[which], text)
  packet.problems = packet.problems + 1
end

local function flag_words(field, value)
  local words = {}
  for _, flag in ipairs(field.flags) do
    if band(value, flag.mask) ~= 0 then words[#words + 1] = flag.name end
  end
  return table.concat(words, "+")
end

-- What its kind adds to the number of a field.
local function remark(field, value)
  if field.kind == "stamp" then return string.format(" (%.6f s)", value * STAMP_UNIT_NS / 1e9) end
  if field.kind == "ack_delay" then
    return value == 0xFFFF and " (no sample)" or string.format(" (%d ns)", value * STAMP_UNIT_NS)
  end
  if field.kind == "grant" then return value == 0xFFFFFFFF and " (no limit)" or " KiB/s" end
  if field.kind == "flags" and value ~= 0 then return " " .. flag_words(field, value) end
  return field.unit and " " .. field.unit
end

local function brief_of(field, value)
  if field.kind == "flags" then
    local words = flag_words(field, value)
    return words ~= "" and words or nil
  end
  local text = tostring(value)
  if field.kind == "choice" then text = field.values[value] or "unknown" end
  if field.kind == "hex" then text = string.format("0x%0" .. math.ceil(field.bits / 4) .. "x", value) end
  return field.name .. "=" .. text
end

local function add_field(packet, field, start, tree, words)
  local first = start + math.floor(field.bit / 8)
  local bytes = math.ceil((field.bit % 8 + field.bits) / 8)
  local range = packet.tvb(first, bytes)
  local item = tree:add(field.proto, range)
  if field.kind == "gid" then
    if field.brief then words[#words + 1] = field.name .. "=" .. tostring(range:ipv6()) end
    return
  end
  if field.bits > 32 then return end
  local value = bits_at(packet, 8 * start + field.bit, field.bits)
  local text = remark(field, value)
  if text then item:append_text(text) end
  for _, flag in ipairs(field.flags or {}) do item:add(flag.proto, range) end
  if field.kind == "checksum" and packet.seal then
    item:append_text(packet.seal == "right" and " [correct]" or " [incorrect]")
  end
  if field.kind == "choice" and not field.open and not field.values[value] then
    problem(packet, item, "value", field.label .. " has the undefined value " .. value)
  end
  if field.brief == "headline" then
    words.headline = field.values[value] or "unknown"
  elseif field.brief then
    words[#words + 1] = brief_of(field, value)
  end
end

local function add_raw(packet, follow, at, finish, tree)
  if at < finish then tree:add(raw_fields[follow.raw], packet.tvb(at, finish - at)) end
end

local walk

local follows = {}

function follows.choose(packet, layout, follow, start, at, finish, tree, words)
  local value = number_of(packet, layout, follow.by, start)
  local chosen = value and follow.cases[value]
  return chosen and walk(packet, chosen, at, finish, tree, words)
end

follows["repeat"] = function(packet, layout, follow, start, at, finish, tree, words)
  local count = number_of(packet, layout, follow.count, start)
  if count > follow.most then
    problem(packet, tree, "length", count .. " of them, " .. follow.most .. " are allowed")
    return nil
  end
  for _ = 1, count do
    at = walk(packet, follow.layout, at, finish, tree, words)
    if not at then return nil end
  end
  return at
end

function follows.body(packet, layout, follow, start, at, finish, tree, words)
  local wanted, left = number_of(packet, layout, follow.length, start), finish - at
  local body_end = at + math.min(wanted, left)
  local known = follow.cases[number_of(packet, layout, follow.by, start)]
  local read = at
  if known and wanted > 0 then read = walk(packet, known, at, body_end, tree, words) end
  if read then add_raw(packet, follow, read, body_end, tree) end
  if wanted > left then
    problem(packet, tree, "length", wanted .. " bytes should follow, " .. left .. " do")
    return nil
  end
  return body_end
end

function follows.items(packet, _, follow, _, at, finish, tree, words)
  local items_end = finish - follow.tail_bytes
  if items_end < at then
    problem(packet, tree, "length", follow.tail_bytes .. " bytes should follow, " .. finish - at .. " do")
    return nil
  end
  if at == items_end then problem(packet, tree, "length", "no item") end
  while at < items_end do
    at = walk(packet, follow.layout, at, items_end, tree, words)
    if not at then return nil end
  end
  return at
end

function follows.one(packet, _, follow, _, at, finish, tree, words)
  return walk(packet, follow.layout, at, finish, tree, words)
end

function follows.rest(packet, _, follow, _, at, finish, tree)
  add_raw(packet, follow, at, finish, tree)
  return finish
end

-- Shows a layout and what follows it, from byte at, not beyond finish. Returns where it ended; nil if that cannot be told.
walk = function(packet, name, at, finish, tree, words)
  local layout, left = LAYOUTS[name], finish - at
  local own = {}
  if layout.bytes > 0 then
    tree = tree:add(metaroce, packet.tvb(at, math.min(layout.bytes, left)), layout.title)
  end
  for _, field in ipairs(layout.fields) do
    if field.bit + field.bits <= 8 * left and is_there(packet, field) then
      add_field(packet, field, at, tree, own)
    end
  end
  -- The headers come one after the other, behind what they say the packet is; blocks and bodies of items stand in brackets.
  if name == "base" or name == "data" then
    words.headline = own.headline or words.headline
    for _, word in ipairs(own) do words[#words + 1] = word end
  elseif name == "item" then
    words[#words + 1] = own.headline
  elseif #own > 0 then
    words[#words + 1] = "[" .. table.concat(own, " ") .. "]"
  end
  if left < layout.bytes then
    problem(packet, tree, "length", layout.bytes .. " bytes should follow, " .. left .. " do")
    return nil
  end
  local next_at = at + layout.bytes
  for _, follow in ipairs(layout.follow) do
    next_at = follows[follow.what](packet, layout, follow, at, next_at, finish, tree, words)
    if not next_at then return nil end
  end
  return next_at
end

-- Datagrams ---------------------------------------------------------------------------------------------------------

-- Shows one packet and returns a line about it.
local function dissect_packet(tvb, text, is_cut, root)
  local packet = { tvb = tvb, length = tvb:len(), is_cut = is_cut, problems = 0 }
  local tree = root:add(metaroce, tvb())
  if metaroce.prefs.checksums and not is_cut then packet.seal = seal_of(text, 1, #text) end
  local words = {}
  if packet.length > 0 then walk(packet, "base", 0, packet.length, tree, words) end
  local version = bits_at(packet, 0, 4)
  if version and version ~= VERSION then
    problem(packet, tree, "version", "version " .. version .. " is not known")
  end
  if packet.seal == "wrong" then problem(packet, tree, "checksum", "the CRC32C is wrong") end
  local line = (words.headline or "?") .. " " .. table.concat(words, " ")
  if line:find("retransmission", 1, true) then tree:add_proto_expert_info(experts.again) end
  if is_cut then
    line = "[cut] " .. line
  elseif packet.problems > 0 then
    line = "[malformed] " .. line
  end
  tree:set_text("metaroce, " .. line)
  return line
end

function metaroce.dissector(tvb, pinfo, root)
  local length = tvb:len()
  if length == 0 then return 0 end
  local text = tvb:raw(0, length)
  local segment = segment_bytes(text)
  local count = math.ceil(length / segment)
  local first, last
  if count > 1 then root:add(segments_field, tvb(), count):set_generated() end
  for at = 0, length - 1, segment do
    local bytes = math.min(segment, length - at)
    local is_cut = at + bytes == length and tvb:reported_len() > length
    last = dissect_packet(tvb(at, bytes):tvb(), text:sub(at + 1, at + bytes), is_cut, root)
    first = first or last
  end
  pinfo.cols.protocol = ROOT
  pinfo.cols.info = count > 1 and count .. " packets: " .. first .. " ... " .. last or first
  return length
end

-- Elsewhere than on the ports of the preference only what has a right checksum is taken.
local function heuristic(tvb, pinfo, root)
  local length = tvb:len()
  if length < SHORTEST_PACKET_BYTES then return false end
  local first = tvb:raw(0, 1):byte()
  if math.floor(first / 16) ~= VERSION or not SEALS[first % 16] then return false end
  local text = tvb:raw(0, length)
  local segment = segment_bytes(text)
  if seal_of(text, 1, segment) ~= "right" then return false end
  metaroce.dissector(tvb, pinfo, root)
  return true
end

local udp_ports = DissectorTable.get("udp.port")
local registered = PORTS
udp_ports:add(registered, metaroce)
function metaroce.prefs_changed()
  if metaroce.prefs.ports ~= registered then
    if registered ~= "" then udp_ports:remove(registered, metaroce) end
    registered = metaroce.prefs.ports
    if registered ~= "" then udp_ports:add(registered, metaroce) end
  end
end
metaroce:register_heuristic("udp", heuristic)
