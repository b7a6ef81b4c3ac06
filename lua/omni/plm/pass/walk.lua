--- The walk: goes through a program in the order of evaluation, resolves names, and tells groups.lua what it meets.

jit.off(true, true) -- as in parser.lua

local forms = require "omni.plm.pass.forms"
local groups = require "omni.plm.pass.groups"

local expr, stat = {}, {}

---@class omni.plm.walk
---@field frame table of the block (groups.lua)
---@field vars table<string, table|false> variables in scope
---@field undo any[] names and what they meant before, innermost last
---@field depth integer functions around the current point
---@field known table the manifest's tools (tools.lua)
---@field excluded table<string, boolean> tools whose name the program assigns
---@field found table the result

local function evaluate(w, node)
  local visit = expr[node.tag]
  if visit then visit(w, node) end
end

local function evaluate_all(w, nodes, first, last)
  for index = first or 1, last or #nodes do evaluate(w, nodes[index]) end
end

local function declare(w, name)
  local undo, var = w.undo, {}
  undo[#undo + 1] = name
  undo[#undo + 1] = w.vars[name] or false
  w.vars[name] = var
  return var
end

local function leave_scope(w, mark)
  local undo = w.undo
  for index = #undo - 1, mark + 1, -2 do
    w.vars[undo[index]] = undo[index + 1]
    undo[index], undo[index + 1] = nil, nil
  end
end

local function sever(w) groups.sever(w.found, w.frame) end

-- Runs `inside` with a frame of its own.
local function within(w, frame, inside, ...)
  local outer = w.frame
  w.frame = frame
  inside(w, ...)
  groups.sever(w.found, frame)
  w.frame = outer
end

local function run_statements(w, block)
  local frame = w.frame
  for index = 1, #block do
    frame.stmt = index
    local node = block[index]
    stat[node.tag](w, node)
  end
end

local function run_block(w, block, names)
  local mark = #w.undo
  for _, id in ipairs(names or {}) do declare(w, id[1]) end
  within(w, groups.frame(block), run_statements, block)
  leave_scope(w, mark)
end

-- An expression that runs again and again, or not at all.
local function uncertain(w, node, why)
  within(w, groups.frame({}, why), evaluate, node)
end

-- The dotted name of a chain of globals; `_G.` in front means the same.
local function path(w, node)
  if node.tag == "Id" then return not w.vars[node[1]] and node[1] or nil end
  if node.tag ~= "Index" or node[2].tag ~= "String" then return nil end
  local base = path(w, node[1])
  if base == "_G" then return node[2][1] end
  return base and base .. "." .. node[2][1]
end

-- The tool that an expression names by its own name, and why it still is an unknown call.
local function tool_of(w, callee)
  local name
  if callee.tag == "Id" then
    name = callee[1]
    if not w.known.all[name] then return nil end
    if w.vars[name] then return name, "a local hides the tool" end
  elseif callee.tag == "Index" and w.known.ends[callee[2][1]] then
    name = path(w, callee)
    local parts = name and w.known.all[name]
    if not parts or #parts == 1 then return nil end -- _G.tool: an index like others, for all we know
  end
  return name, name and w.excluded[name] and "the program assigns the tool's name" or nil
end

-- A call that is no reading of its tool, for those who ask why.
local function mention(w, node, tool, why)
  local calls = w.found.calls
  calls[#calls + 1] = { tool = tool, line = node[1].line, offset = node.offset, why = why }
end

function expr.Id(w, node) node.var = w.vars[node[1]] or false end

function expr.Index(w, node)
  evaluate(w, node[1])
  evaluate(w, node[2])
end

function expr.Paren(w, node) evaluate(w, node[1]) end

function expr.Table(w, node)
  for _, item in ipairs(node) do
    if item.tag == "Pair" then evaluate_all(w, item) else evaluate(w, item) end
  end
end

function expr.Op(w, node)
  evaluate(w, node[2])
  if not node[3] then return end
  local frame, conditional = w.frame, node[1] == "and" or node[1] == "or"
  local before = frame.maybe
  frame.maybe = before or conditional
  evaluate(w, node[3])
  frame.maybe = before
end

function expr.Dots(w) w.found.reads_varargs = w.found.reads_varargs or w.depth == 0 end

-- The body is a block of its own, run at another time; the closure itself is a value like others.
function expr.Function(w, node)
  local depth = w.depth
  w.depth = depth + 1
  local names = node[1]
  if names[#names] and names[#names].tag == "Dots" then names = { unpack(names, 1, #names - 1) } end
  run_block(w, node[2], names)
  w.depth = depth
end

function expr.Call(w, node)
  local callee = node[1]
  local tool, why = tool_of(w, callee)
  if not tool then evaluate(w, callee) end
  evaluate_all(w, node, 2)
  if tool and not why and w.known.early[tool] then return groups.call(w.found, w.frame, node, tool) end
  if tool then mention(w, node, tool, why or "the tool is not early") end
  if callee[1] == "pcall" and node[2] then
    local guarded = tool_of(w, node[2])
    if guarded then mention(w, node, guarded, "called by pcall") end
  end
  sever(w)
end

function expr.Invoke(w, node)
  evaluate(w, node[1])
  evaluate_all(w, node, 3)
  sever(w)
end

stat.Call, stat.Invoke = expr.Call, expr.Invoke

function stat.Local(w, node)
  if node[2] then evaluate_all(w, node[2]) end
  for _, id in ipairs(node[1]) do groups.write_local(w.frame, declare(w, id[1])) end
end

function stat.Localrec(w, node)
  groups.write_local(w.frame, declare(w, node[1][1][1]))
  evaluate(w, node[2][1])
end

-- Tools that an assignment to this name replaces: the one of that name, and all below it.
local function assign_tools(w, name)
  if not name or not w.known.roots[name:match "^[^.]*"] then return end
  for tool in pairs(w.known.all) do
    if tool == name or tool:sub(1, #name + 1) == name .. "." then w.found.assigned[tool] = true end
  end
end

local function assign(w, target)
  if target.tag == "Id" then
    local var = w.vars[target[1]]
    if var then return groups.write_local(w.frame, var) end
    groups.write_global(w.frame, target[1])
  else
    groups.write_field(w.frame, forms.key(target[2]))
  end
  assign_tools(w, path(w, target))
end

function stat.Set(w, node)
  for _, target in ipairs(node[1]) do
    if target.tag == "Index" then evaluate(w, target) end
  end
  evaluate_all(w, node[2])
  for _, target in ipairs(node[1]) do assign(w, target) end
end

function stat.Return(w, node)
  evaluate_all(w, node)
  sever(w)
end

function stat.Do(w, node)
  sever(w)
  run_block(w, node)
end

-- The first condition is certain to run, and nothing after it.
function stat.If(w, node)
  evaluate(w, node[1])
  sever(w)
  for index = 1, #node do
    if index % 2 == 0 or index == #node then run_block(w, node[index])
    elseif index > 1 then uncertain(w, node[index], "the condition of an elseif: not certain to run") end
  end
end

function stat.While(w, node)
  sever(w)
  uncertain(w, node[1], "the condition of a loop: runs again and again")
  run_block(w, node[2])
end

-- The condition sees the locals of the body.
function stat.Repeat(w, node)
  sever(w)
  local mark = #w.undo
  within(w, groups.frame(node[1]), run_statements, node[1])
  uncertain(w, node[2], "the condition of a loop: runs again and again")
  leave_scope(w, mark)
end

function stat.Fornum(w, node)
  evaluate_all(w, node, 2, #node - 1)
  sever(w)
  run_block(w, node[#node], { node[1] })
end

function stat.Forin(w, node)
  evaluate_all(w, node[2])
  sever(w)
  run_block(w, node[3], node[1])
end

-- Jumps leave the run of statements, and a label is where others arrive.
stat.Goto, stat.Label, stat.Break = sever, sever, sever

-- `x += 1` is luacheck's alone; such a text does not compile.
stat.OpSet = sever

--- Walks through a program.
---@param source string
---@param tree table
---@param known table the manifest's tools
---@param excluded table<string, boolean> tools that are unknown functions in this program
---@return table found calls, groups, bursts in the order of evaluation; sites; reads_varargs; assigned tools
return function(source, tree, known, excluded)
  local found = {
    source = source, calls = {}, groups = {}, bursts = {}, sites = 0, reads_varargs = false, assigned = {},
  }
  run_block({ vars = {}, undo = {}, depth = 0, known = known, excluded = excluded, found = found }, tree)
  return found
end
