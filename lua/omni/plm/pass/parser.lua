--- The parser behind the pass: luacheck's, fed byte by byte so that its offsets are byte offsets in any encoding.
-- It runs in the host's state. Its grammar is not LuaJIT's, in both directions: text that it refuses is not rewritten,
-- and text that only it accepts fails to compile later.
--
-- Programs differ, and a recursive parser that is compiled for the shape of the last one is slower than an interpreted
-- one. The lexer's loops are the same in all. So all tokens are read first, in one loop that the compiler likes, and
-- the parser, which is kept from it, takes them from there.

local parser = {}

-- The source as luacheck wants to see it. Only errors ask for printable text, and nobody reads those.
local Bytes = {}
Bytes.__index = Bytes
local byte, sub = string.byte, string.sub
function Bytes:get_codepoint(index) return byte(self.bytes, index) end
function Bytes:get_substring(from, to) return sub(self.bytes, from, to) end
Bytes.get_printable_substring = Bytes.get_substring
function Bytes:get_length() return #self.bytes end
function Bytes:find(pattern, from) return self.bytes:find(pattern, from) end

-- What luacheck's parser uses of its lexer, on top of it: the tokens of a source, comments left out.
local function token_list(lexer)
  local next_token = lexer.next_token
  local list = { get_quoted_substring_or_line = lexer.get_quoted_substring_or_line }

  function list.new_state(source)
    local read = source.tokens
    source.tokens = nil
    return read or list.read(source)
  end

  function list.read(source)
    local state = lexer.new_state(source)
    local count, kinds, values, lines, offsets, ends, end_lines = 0, {}, {}, {}, {}, {}, {}
    repeat
      local kind, value, line, offset = next_token(state)
      if kind ~= "short_comment" and kind ~= "long_comment" then
        count = count + 1
        kinds[count], values[count], lines[count], offsets[count] = kind, value or false, line, offset
        ends[count] = state.offset
        if state.line ~= line then end_lines[count] = state.line end
      end
    until kind == "eof" or not kind
    return {
      src = source, line_offsets = state.line_offsets, line_lengths = state.line_lengths, offset = 1, line = 1,
      index = 0, resume = 1, kinds = kinds, values = values, lines = lines, offsets = offsets, ends = ends,
      end_lines = end_lines,
    }
  end

  -- The parser steps back by setting the offset, to the name before the current token.
  function list.next_token(state)
    local index = state.index + 1
    if state.offset ~= state.resume then
      while state.offsets[index] ~= state.offset do index = index - 1 end
    end
    state.index, state.offset, state.line = index, state.ends[index], state.end_lines[index] or state.lines[index]
    state.resume = state.offset
    return state.kinds[index], state.values[index] or nil, state.lines[index], state.offsets[index]
  end
  jit.off(list.next_token)
  return list
end

-- A copy of luacheck's parser of our own, which finds the list of tokens where it looks for the lexer.
local function load_parser()
  local lexer = require "luacheck.lexer"
  local chunk = assert(loadfile(assert(package.searchpath("luacheck.parser", package.path))))
  jit.off(chunk, true)
  local list = token_list(lexer)
  package.loaded["luacheck.lexer"] = list
  local ok, loaded = pcall(chunk, "luacheck.parser")
  package.loaded["luacheck.lexer"] = lexer
  return assert(ok and loaded, loaded), list
end

local available, luacheck, tokens = pcall(load_parser)

local BOM = "\239\187\191"

--- Reads the tokens of a program.
---@param source string
---@return table|nil text for parser.parse; tokens.kinds and tokens.values tell what is in it
---@return string? why not
function parser.read(source)
  if not available then return nil, "the parser (Debian: lua-check) is not installed" end
  -- LuaJIT skips a byte order mark; three spaces keep the offsets.
  local bytes = source:sub(1, 3) == BOM and "   " .. source:sub(4) or source
  local text = setmetatable({ bytes = bytes }, Bytes)
  text.tokens = tokens.read(text)
  return text
end

--- Parses a program.
---@param text table of parser.read, which is used up
---@return table|nil tree blocks and nodes in luacheck's form (tag, line, offset, end_offset), and line_offsets
---@return string? why not
function parser.parse(text)
  local ok, tree, _, _, _, _, line_offsets = pcall(luacheck.parse, text)
  if not ok then return nil, "the parser does not understand the program" end
  tree.line_offsets = line_offsets
  return tree
end

return parser
