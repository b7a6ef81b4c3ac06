--- Groups: what may start where. A group is a run of statements of one block without an unknown call; a frame is the
-- walk through one block. Boundary n of a block stands before its statement n.

jit.off(true, true) -- as in parser.lua

local forms = require "omni.plm.pass.forms"

local groups = {}

local MAX_PENDING = 64 -- futures of a run

--- A frame for a block, or for expressions of which it is not certain that they run once.
---@param block table
---@param never? string why nothing in it is prepared
---@return table frame first boundary of the group, number of the statement, writes by what they hit, calls of the group
function groups.frame(block, never)
  return {
    block = block, never = never, first = 1, stmt = 0, calls = {},
    locals = {}, globals = {}, keys = {}, fields = 1, dynamic = 1,
  }
end

-- The boundary after the last write, inside the group, to anything that the arguments read.
local function earliest(frame, reads)
  local at = math.max(frame.first, reads.keys[1] ~= nil and frame.dynamic or 1)
  for _, var in ipairs(reads.locals) do at = math.max(at, frame.locals[var] or 1) end
  for _, name in ipairs(reads.globals) do at = math.max(at, frame.globals[name] or 1, frame.keys[name] or 1) end
  for _, key in ipairs(reads.keys) do at = math.max(at, frame.keys[key] or 1, frame.globals[key] or 1) end
  return reads.deep and math.max(at, frame.fields) or at
end

-- LuaJIT stamps a call with the line of its `(`; forms where that is not the line of all before it stay as they are.
local function opening(source, node)
  local callee = node[1]
  if callee.tag == "Index" and source:find("[\r\n]", callee.offset) and
    source:sub(callee.offset, callee.end_offset):find "[\r\n]" then
    return nil, "the callee spans lines"
  end
  local _, at, char = source:find("^[ \t]*([%(%{\"'])", callee.end_offset + 1)
  if not at then return nil, "the call does not open beside its callee" end
  if (char == '"' or char == "'") and source:sub(at, node.end_offset):find "[\r\n]" then
    return nil, "the call opens with a string of several lines"
  end
  return at
end

-- Where the call could be prepared, or why nowhere.
local function boundary(source, frame, node)
  if frame.never then return nil, frame.never end
  if frame.maybe then return nil, "on the right of and/or: not certain to run" end
  local why, reads = forms.check(node)
  if why then return nil, why end
  local at = earliest(frame, reads)
  if at > frame.stmt then return nil, "follows an unknown call in the same statement" end
  local open, misplaced = opening(source, node)
  return open and at, misplaced, open
end

--- Takes note of a call of an early tool.
---@param found table the result of the walk
---@param frame table
---@param node table a Call
---@param tool string
function groups.call(found, frame, node, tool)
  local call = { node = node, tool = tool, line = node[1].line, offset = node.offset, stmt = frame.stmt }
  call.boundary, call.why, call.open = boundary(found.source, frame, node)
  found.calls[#found.calls + 1] = call
  if not frame.never then frame.calls[#frame.calls + 1] = call end
end

-- A prepare is worth its while when another starts with it or another call lies between it and its resolve.
local function worthwhile(calls)
  local kept, starting = {}, {}
  for _, call in ipairs(calls) do
    local at = call.boundary
    if at then starting[at] = (starting[at] or 0) + 1 end
  end
  for index, call in ipairs(calls) do
    local at, before = call.boundary, calls[index - 1]
    if at and (starting[at] > 1 or (before and before.stmt >= at)) then
      kept[#kept + 1] = call
    elseif at then
      call.why = "nothing overlaps with it"
    end
  end
  return kept
end

-- No group has more in flight than a run keeps pending: the 65th call starts where the first has its result.
local function prepare(found, frame, call, overtaken)
  local at = math.max(call.boundary, overtaken and overtaken.stmt + 1 or 1)
  if at > call.stmt then
    call.why = "as many calls as a run keeps pending start before it"
    return false
  end
  local start = frame.block[at]
  local burst = found.bursts[start]
  if not burst then
    burst = { offset = start.offset }
    found.bursts[start] = burst
    found.bursts[#found.bursts + 1] = burst
  end
  burst[#burst + 1] = call
  call.at = start.line
  return true
end

--- Ends the group at this point of the walk: the next one begins at the boundary after the current statement.
---@param found table
---@param frame table
function groups.sever(found, frame)
  local calls = frame.calls
  frame.first = frame.stmt + 1
  if #calls == 0 then return end
  frame.calls = {}
  local kept = worthwhile(calls)
  local group = { first = calls[1].line, last = calls[#calls].line, sites = {}, calls = {} }
  for index, call in ipairs(kept) do
    if prepare(found, frame, call, kept[index - MAX_PENDING]) then
      found.sites = found.sites + 1
      call.site, call.group = found.sites, group
      group.sites[#group.sites + 1] = call.site
    end
  end
  if #group.sites > 0 then
    found.groups[#found.groups + 1] = group
    group.number = #found.groups
  end
end

--- A local is declared or assigned by the current statement.
---@param frame table
---@param var table
function groups.write_local(frame, var)
  frame.locals[var] = frame.stmt + 1
end

--- A global is assigned by the current statement.
---@param frame table
---@param name string
function groups.write_global(frame, name)
  frame.globals[name] = frame.stmt + 1
end

--- A field is assigned by the current statement; which table it belongs to is not known.
---@param frame table
---@param key any nil when it is not constant
function groups.write_field(frame, key)
  frame.fields = frame.stmt + 1
  if key == nil then frame.dynamic = frame.stmt + 1 else frame.keys[key] = frame.stmt + 1 end
end

return groups
