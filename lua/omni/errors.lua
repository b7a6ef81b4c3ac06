--- What was raised, as text that can cross to another process: stages are free to raise anything.

local json = require "omni.json"

local errors = {}

local LIMIT = 64 * 1024
local CUT = " ... (cut)"

-- The characters of UTF-8 beyond ASCII.
local CHARACTERS = {
  "^[\194-\223][\128-\191]", "^\224[\160-\191][\128-\191]", "^[\225-\236\238\239][\128-\191][\128-\191]",
  "^\237[\128-\159][\128-\191]", "^\240[\144-\191][\128-\191][\128-\191]",
  "^[\241-\243][\128-\191][\128-\191][\128-\191]", "^\244[\128-\143][\128-\191][\128-\191]",
}

local function character(bytes, at)
  for _, pattern in ipairs(CHARACTERS) do
    local found = bytes:match(pattern, at)
    if found then return found end
  end
end

-- Bytes that are not ASCII, with those that are no part of a character as \xNN.
local function escape(bytes)
  local parts, at = {}, 1
  while at <= #bytes do
    local good = character(bytes, at)
    parts[#parts + 1] = good or ("\\x%02X"):format(bytes:byte(at))
    at = at + (good and #good or 1)
  end
  return table.concat(parts)
end

-- The beginning of a text, without a character that would be torn.
local function cut(text) return (text:sub(1, LIMIT):gsub("[\194-\244][\128-\191]*$", "")) end

local function raw_text(err)
  if type(err) == "table" and type(err.message) == "string" then return err.message end
  local text = tostring(err)
  return type(text) == "string" and text or nil
end

--- What an error says, whatever was raised. Never raises: the text is UTF-8, other bytes are written as \xNN, and it
--- is cut at 64 KiB.
---@param err any a string, a table with a `message`, or anything that tostring takes
---@return string text
---@return string|nil code "ECODE" where the text begins with one
function errors.text_of(err)
  local ok, text = pcall(raw_text, err)
  if not ok or not text then text = ("something that has no text (a %s)"):format(type(err)) end
  local whole = text
  if #text > LIMIT then text = cut(text) end
  if not json.encode(text) then text = text:gsub("[\128-\255]+", escape) end
  if #text > LIMIT then text = cut(text) end
  if #whole > LIMIT then text = text .. CUT end
  return text, text:match "^(E[A-Z0-9]+): "
end

return errors
