--- The parser behind the pass: luacheck's, fed byte by byte so that its offsets are byte offsets in any encoding.
-- It runs in the host's state. Its grammar is not LuaJIT's, in both directions: text that it refuses is not rewritten,
-- and text that only it accepts fails to compile later.

local parser = {}

local available, luacheck = pcall(require, "luacheck.parser")

-- The source as luacheck wants to see it. Only errors ask for printable text, and nobody reads those.
local Bytes = {}
Bytes.__index = Bytes
local byte = string.byte
function Bytes:get_codepoint(index) return byte(self.bytes, index) end
function Bytes:get_substring(from, to) return self.bytes:sub(from, to) end
Bytes.get_printable_substring = Bytes.get_substring
function Bytes:get_length() return #self.bytes end
function Bytes:find(pattern, from) return self.bytes:find(pattern, from) end

local BOM = "\239\187\191"

--- Parses a program.
---@param source string
---@return table|nil tree blocks and nodes in luacheck's form (tag, line, offset, end_offset), and line_offsets
---@return string? why not
function parser.parse(source)
  if not available then return nil, "the parser (Debian: lua-check) is not installed" end
  -- LuaJIT skips a byte order mark; three spaces keep the offsets.
  local bytes = source:sub(1, 3) == BOM and "   " .. source:sub(4) or source
  local ok, tree, _, _, _, _, line_offsets = pcall(luacheck.parse, setmetatable({ bytes = bytes }, Bytes))
  if not ok then return nil, "the parser does not understand the program" end
  tree.line_offsets = line_offsets
  return tree
end

return parser
