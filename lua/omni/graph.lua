--- The shape of a pipeline: what its edges say, whether they make a graph that can run, and the order of its parts.
--- Edges lead from an output port of a stage to an input port of another; `host` is the outer end.

local check = require "omni.check"

local graph = {}

-- The outer end of the first and last edges: the host, which sends the requests' data and receives the outputs.
graph.HOST = "host"
-- The ports of an edge that names none.
graph.INPUT, graph.OUTPUT = "input", "output"

-- The limits of an edge that names none: chunks unread per request, bytes unread on the edge.
graph.WINDOW, graph.BUDGET = 16, 64 * 1024 * 1024

local EDGE = {
  window = { type = "integer", default = graph.WINDOW, check = function(v) return v >= 1, "must be 1 or more" end },
  budget = { type = "integer", default = graph.BUDGET, check = function(v) return v >= 1, "must be 1 or more" end },
}

local STAGE_NAME, PORT_NAME = "^%a[%w_%-]*$", "^%a[%w_]*$"

--- Tells whether a stage may be called so.
---@param name string
---@return boolean
function graph.valid_name(name)
  return name ~= graph.HOST and name:find(STAGE_NAME) ~= nil and #name <= 64
end

--- Tells whether a port may be called so.
---@param name string
---@return boolean
function graph.valid_port(name)
  return name:find(PORT_NAME) ~= nil and #name <= 64
end

-- "stage.port" or "stage".
local function parse_end(text, default)
  local stage, port = text:match "^%s*([^%s%.]+)%.([^%s%.]+)%s*$"
  stage = stage or text:match "^%s*([^%s%.]+)%s*$"
  if not stage or not stage:find(STAGE_NAME) then return nil end
  if port and not graph.valid_port(port) then return nil end
  return stage, port or default
end

--- Reads an edge as a script writes it: `thinker.text -> judge.input`; ports may be left out.
---@param text string
---@return {from: string, from_port: string, to: string, to_port: string}|nil ends nil when it is written wrongly
function graph.parse(text)
  local left, right = text:match "^(.-)%->(.*)$"
  if not left then return nil end
  local from, from_port = parse_end(left, graph.OUTPUT)
  local to, to_port = parse_end(right, graph.INPUT)
  if not from or not to then return nil end
  return { from = from, from_port = from_port, to = to, to_port = to_port }
end

--- An edge as a script would write it.
---@param edge table
---@return string
function graph.show(edge)
  local from = edge.from_port == graph.OUTPUT and edge.from or edge.from .. "." .. edge.from_port
  local to = edge.to_port == graph.INPUT and edge.to or edge.to .. "." .. edge.to_port
  return from .. " -> " .. to
end

-- What is wrong with one end of an edge.
local function end_problem(name, port, list, default, by_name, names)
  if name == graph.HOST then
    return port ~= default and ('the host has no port "%s"'):format(port) or nil
  end
  local declared = by_name[name]
  if not declared then return ('there is no stage "%s"%s'):format(name, check.hint(name, names)) end
  local ports = type(declared.definition) == "table" and declared.definition[list]
  if type(ports) ~= "table" or port == default then return nil end
  for _, known in ipairs(ports) do
    if known == port then return nil end
  end
  return ('stage "%s" has no port "%s" among its %s%s'):format(name, port, list, check.hint(port, ports))
end

local function check_edge(declared, by_name, names, report)
  local problems = {}
  problems[1] = end_problem(declared.from, declared.from_port, "outputs", graph.OUTPUT, by_name, names)
  problems[#problems + 1] = end_problem(declared.to, declared.to_port, "inputs", graph.INPUT, by_name, names)
  if declared.from == graph.HOST and declared.to == graph.HOST then problems[1] = "it passes no stage" end
  for _, text in ipairs(problems) do report(text) end
end

local function before(a, b)
  for _, key in ipairs { "from", "from_port", "to", "to_port" } do
    if a[key] ~= b[key] then return a[key] < b[key] end
  end
  return false
end

--- The edges of a declaration in their order, with their problems reported.
---@param list table[] {from, from_port, to, to_port, options, origin}, or {text, origin} where it was written wrongly
---@param by_name table<string, table> the stages
---@param problems table has add(origin, text)
---@return table[] edges {from, from_port, to, to_port, window, budget, origin}, those that may be reasoned about
function graph.edges(list, by_name, problems)
  local edges, seen, names = {}, {}, check.sorted_keys(by_name)
  for _, declared in ipairs(list) do
    if declared.text then
      local text = 'edge "%s": write it as "stage -> stage" or "stage.port -> stage.port"'
      problems:add(declared.origin, text:format(declared.text))
    else
      local shown, before_it = graph.show(declared), #problems
      local where = ('edge "%s"'):format(shown)
      local found, edge = check.problems(declared.options, EDGE, where)
      for _, problem in ipairs(found) do problems:add(declared.origin, problem) end
      check_edge(declared, by_name, names, function(text) problems:add(declared.origin, where .. ": " .. text) end)
      if seen[shown] then
        problems:add(declared.origin, ("%s: is declared twice (first at %s)"):format(where, seen[shown]))
      end
      seen[shown] = seen[shown] or declared.origin or "?"
      for _, key in ipairs { "from", "from_port", "to", "to_port", "origin" } do edge[key] = declared[key] end
      if #problems == before_it then edges[#edges + 1] = edge end
    end
  end
  table.sort(edges, before)
  return edges
end

-- Stages in an order in which each comes after those that it reads from; those on cycles and behind them are missing.
-- `feeders` lists the stages that each reads from.
local function topology_order(names, edges)
  local pending, readers, feeders, order, ready = {}, {}, {}, {}, {}
  for _, name in ipairs(names) do pending[name], readers[name], feeders[name] = 0, {}, {} end
  for _, edge in ipairs(edges) do
    if pending[edge.from] and pending[edge.to] then
      pending[edge.to] = pending[edge.to] + 1
      table.insert(readers[edge.from], edge.to)
      table.insert(feeders[edge.to], edge.from)
    end
  end
  for _, name in ipairs(names) do
    if pending[name] == 0 then ready[#ready + 1] = name end
  end
  while #ready > 0 do
    table.sort(ready)
    local name = table.remove(ready, 1)
    order[#order + 1] = name
    for _, reader in ipairs(readers[name]) do
      pending[reader] = pending[reader] - 1
      if pending[reader] == 0 then ready[#ready + 1] = reader end
    end
  end
  return order, pending, feeders
end

-- A stage without an order reads from another such stage, so that going back from it ends in a cycle.
local function find_cycle(name, pending, feeders)
  local path, at = {}, {}
  while not at[name] do
    table.insert(path, name)
    at[name] = #path
    for _, feeder in ipairs(feeders[name]) do
      if pending[feeder] > 0 then
        name = feeder
        break
      end
    end
  end
  local cycle = { name }
  for i = #path, at[name], -1 do cycle[#cycle + 1] = path[i] end
  return cycle
end

local function report_cycles(names, edges, pending, feeders, problems)
  local told = {}
  for _, name in ipairs(names) do
    local cycle = pending[name] > 0 and find_cycle(name, pending, feeders)
    if cycle and not told[cycle[1]] then
      local origin
      for _, member in ipairs(cycle) do told[member] = true end
      for _, edge in ipairs(edges) do
        if edge.from == cycle[#cycle - 1] and edge.to == cycle[#cycle] then origin = edge.origin end
      end
      problems:add(origin, ("the edges form a cycle: %s"):format(table.concat(cycle, " -> ")))
    end
  end
end

-- Stages that no edge connects with the first one's: nothing could ever reach them together with the others.
local function report_unreachable(stages, names, edges, problems)
  local part, queue = {}, {}
  local function reach(name)
    if part[name] then return end
    part[name] = true
    queue[#queue + 1] = name
  end
  reach(edges[1] and edges[1].from or names[1])
  while #queue > 0 do
    local name = table.remove(queue)
    for _, edge in ipairs(edges) do
      if edge.from == name then reach(edge.to) end
      if edge.to == name then reach(edge.from) end
    end
  end
  for _, name in ipairs(names) do
    if not part[name] then
      local text = 'stage "%s" is unreachable: no edge connects it with the rest of the pipeline'
      problems:add(stages[name].origin, text:format(name))
    end
  end
end

-- Ports that a stage says it has and that lead nowhere.
local function report_unused(stage, edges, problems)
  for _, list in ipairs { "inputs", "outputs" } do
    local side = list == "inputs" and "to" or "from"
    for _, port in ipairs(stage.definition[list] or {}) do
      local used = false
      for _, edge in ipairs(edges) do
        used = used or edge[side] == stage.name and edge[side .. "_port"] == port
      end
      if not used then
        local text = 'stage "%s": no edge uses its port "%s" (of its %s)'
        problems:add(stage.origin, text:format(stage.name, port, list))
      end
    end
  end
end

--- Checks what valid stages and edges make together.
---@param by_name table<string, table> stages as declared
---@param edges table[] from `graph.edges`
---@param problems table has add(origin, text)
---@param whole boolean all stages and edges are valid in themselves: what is missing may be told, too
---@return string[] order stage names, each after those that it reads from
function graph.check(by_name, edges, problems, whole)
  local names = check.sorted_keys(by_name)
  local order, pending, feeders = topology_order(names, edges)
  if #order < #names then report_cycles(names, edges, pending, feeders, problems) end
  if whole and #names > 0 then
    report_unreachable(by_name, names, edges, problems)
    for _, name in ipairs(names) do report_unused(by_name[name], edges, problems) end
  end
  return order
end

--- Adds the host's own edges: into each stage that nobody feeds, out of each that nobody reads. Edges get their
--- numbers.
---@param stages table[]
---@param edges table[]
function graph.complete(stages, edges)
  local fed, read = {}, {}
  for _, edge in ipairs(edges) do
    fed[edge.to], read[edge.from] = true, true
    edge.origin = nil
  end
  local function add(from, to)
    edges[#edges + 1] = {
      from = from, from_port = graph.OUTPUT, to = to, to_port = graph.INPUT,
      window = graph.WINDOW, budget = graph.BUDGET,
    }
  end
  for _, stage in ipairs(stages) do
    if not fed[stage.name] then add(graph.HOST, stage.name) end
    if not read[stage.name] then add(stage.name, graph.HOST) end
  end
  for id, edge in ipairs(edges) do edge.id = id end
end

return graph
