--- The pass: rewrites a guest program so that reads which are certain to happen start early. README.md explains it.
--
-- What the rewritten text looks like (host/lib/guest_prepare.c runs it; this comment is the contract between the two):
--
--   local a = get(x) local b = db.get("u:" .. id)                                        the source
--   local P,R=...;P(1,x,id);local a = get(R(1,x)) local b = db.get(R(2,"u:" .. id))      the text
--
-- Text is only ever inserted, and never a newline: each token of the source stays on its line.
--
-- * `local P,R=...;` stands before the first statement and the chunk is called with the two helpers. Their names do not
--   occur in the source, so the guest can neither see nor shadow them.
-- * `P(k, v1, v2, ...);` prepares the calls of boundary k. The values are plain locals of the guest; plan[k] says how
--   the arguments are made of them. P returns nothing, raises nothing and runs no code of the guest's.
-- * `tool(R(site, args...))` is the call in place. R gives back its arguments and notes the site, and the tool itself,
--   which is called next because nothing stands between, takes the note and with it the handle of that site. So the
--   callee is evaluated and called by the guest as ever: a missing tool, a function put in its place, a tail call, the
--   line and the names in messages are those of the source.
-- * Handles live in the host, one slot for each site, and never in locals: a group holds no unknown call, so that one
--   activation of it is over before the next begins. P cancels what an abandoned activation left in the slots it fills.
--   An error that a tool delivers at a site cancels the slots after it, up to `last`, the last site of its group.
--
-- sites[i] = { tool = "db.get", path = { "db", "get" }, line = 1, group = 1, last = 2 }, numbered through each group in
-- the order of evaluation.
-- plan[k] is, for each call of the boundary, `S<site>,<n>,<bytes>:` and as many bytes of postfix code, which leave n
-- values, the arguments, on a stack:
--
--   s<len>:<bytes>  a string        n<len>:<text>  a number (%.17g)         z t f   nil, true, false
--   v<i>:           the i-th value  g<len>:<name>  a global by raw read
--   i               pops a key and a table, pushes the value by raw read
--   . + - *         pop two strings or numbers, push the result
--   {               pushes a new table;  =  pops a value and a key and sets them in the table below
--
-- An operation that could run code or raise (a table with a metatable, an operand of another type) declines: its site
-- is not prepared, and the call in place is an ordinary one.

local parser = require "omni.plm.pass.parser"
local walk = require "omni.plm.pass.walk"
local emit = require "omni.plm.pass.emit"
local tools = require "omni.plm.pass.tools"

-- A longer program is not rewritten: the pass runs on the loop of the script that starts it, and must not hold it up.
local MAX_BYTES = 64 * 1024

---@class omni.plm.rewrite_info
---@field changed boolean whether the text differs from the source
---@field reason? string why nothing was hoisted
---@field sites table[] what R's first argument means
---@field plan string[] what P's first argument means
---@field calls table[] each tool call: line, column, tool, hoisted, at (the line of its prepare), site, why (not)
---@field groups table[] groups that hoist something: first and last line, sites, calls (indices into calls)

-- Who runs programs does not ask for `calls` and `groups`; they are made when somebody does.
local Lazy = {}
function Lazy.__index(info, key)
  if key ~= "calls" and key ~= "groups" then return nil end
  local fill = rawget(info, "_fill")
  info.calls, info.groups, info._fill = {}, {}, nil
  if fill then fill(info) end
  return info[key]
end

local function describe(info, found, line_offsets)
  info.groups = info.changed and found.groups or {}
  for index, call in ipairs(found.calls) do
    info.calls[index] = {
      line = call.line, column = call.offset - line_offsets[call.line] + 1, tool = call.tool,
      hoisted = call.site ~= nil, at = call.at, site = call.site, why = call.why,
    }
    if call.site then call.group.calls[#call.group.calls + 1] = index end
  end
end

local function new_info(info, found, tree)
  if found then
    local line_offsets = tree.line_offsets
    for _, call in ipairs(found.calls) do call.node = nil end -- the tree is not kept for this
    info._fill = function(self) describe(self, found, line_offsets) end
  end
  return setmetatable(info, Lazy)
end

local function unchanged(source, reason, found, tree)
  return source, new_info({ changed = false, reason = reason, sites = {}, plan = {} }, found, tree)
end

-- All or nothing: where the text cannot be had, no call is hoisted.
local function decline(source, found, tree, reason)
  for _, call in ipairs(found.calls) do
    if call.site then call.site, call.at, call.why = nil, nil, reason end
  end
  return unchanged(source, reason, found, tree)
end

local function compiles(text) return load(text, "=guest", "t") ~= nil end

-- An assignment to a tool's name may stand anywhere, so it is only known when all has been walked; then walk again.
local function analyse(source, tree, known)
  local found = walk(source, tree, known, {})
  if next(found.assigned) then found = walk(source, tree, known, found.assigned) end
  return found
end

local function attempt(source, known, read)
  local tree, why = parser.parse(read)
  if not tree then return unchanged(source, why) end
  local found = analyse(source, tree, known)
  if found.sites == 0 then return decline(source, found, tree, "nothing overlaps") end
  if found.reads_varargs then return decline(source, found, tree, "the main function reads ...") end
  local text, sites, plan = emit(source, tree, found, known)
  if not (compiles(source) and compiles(text)) then return decline(source, found, tree, "the text does not compile") end
  return text, new_info({ changed = true, sites = sites, plan = plan }, found, tree)
end

-- Nesting that LuaJIT does not limit (a chain of ten thousand operators) overflows the stack of the walk.
local function guarded(source, known, read)
  local ok, text, info = pcall(attempt, source, known, read)
  if not ok then return unchanged(source, "the pass gave up: " .. tostring(text)) end
  return text, info
end

-- The calls of a program in which no two can overlap, for those who ask.
local function look_closer(info, source, known)
  info._fill = function(self)
    local read = parser.read(source)
    if read then self.calls = select(2, guarded(source, known, read)).calls end
  end
end

--- Rewrites a guest program.
---@param source string text in Lua
---@param manifest omni.plm.Manifest anything with names() and early(name)
---@return string text the source itself where nothing overlaps
---@return omni.plm.rewrite_info info
local function rewrite(source, manifest)
  local known = tools.of(manifest)
  if #source > MAX_BYTES then return unchanged(source, "the program is longer than 64 KiB") end
  if known:twice(source) then
    local read, why = parser.read(source)
    if not read then return unchanged(source, why) end
    if known:together(read.tokens) then return guarded(source, known, read) end
  end
  local _, info = unchanged(source, "no two calls of early tools can overlap")
  look_closer(info, source, known)
  return source, info
end

return rewrite
