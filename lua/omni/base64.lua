--- Base64 (RFC 4648), for bytes that JSON lines carry.

local bit = require "bit"

local base64 = {}

local ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
local CHAR, VALUE = {}, {}
for i = 1, 64 do
  CHAR[i - 1] = ALPHABET:sub(i, i)
  VALUE[ALPHABET:byte(i)] = i - 1
end

local band, rshift, bor, lshift = bit.band, bit.rshift, bit.bor, bit.lshift

--- Bytes as base64, padded.
---@param bytes string
---@return string text
function base64.encode(bytes)
  local out = {}
  for at = 1, #bytes, 3 do
    local a, b, c = bytes:byte(at, at + 2)
    local n = bor(lshift(a, 16), lshift(b or 0, 8), c or 0)
    out[#out + 1] = CHAR[rshift(n, 18)] .. CHAR[band(rshift(n, 12), 63)]
      .. (b and CHAR[band(rshift(n, 6), 63)] or "=") .. (c and CHAR[band(n, 63)] or "=")
  end
  return table.concat(out)
end

--- The bytes of a base64 text.
---@param text string
---@return string|nil bytes nil where it is not base64
function base64.decode(text)
  local body, pads = text:match "^([%w+/]*)(=*)$"
  if not body or #text % 4 ~= 0 or #pads > 2 then return nil end
  local out = {}
  for at = 1, #body, 4 do
    local a, b, c, d = body:byte(at, at + 3)
    local n = bor(lshift(VALUE[a], 18), lshift(VALUE[b or 65], 12), lshift(VALUE[c or 65], 6), VALUE[d or 65])
    local count = d and 3 or c and 2 or 1
    out[#out + 1] = string.char(rshift(n, 16), band(rshift(n, 8), 255), band(n, 255)):sub(1, count)
  end
  return table.concat(out)
end

return base64
