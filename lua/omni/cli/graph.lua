--- `omnihost graph SCRIPT`: draws a pipeline, as DOT for graphviz or as Mermaid.

local check = require "omni.check"
local cli = require "omni.cli"
local graph = require "omni.graph"
local pipeline = require "omni.pipeline"
local run = require "omni.cli.run"

local verb = {}

local HELP = [[
Usage: omnihost graph [--format dot|mermaid] SCRIPT [ARGUMENT...]

Draws the pipeline that a script returns, without starting it.

  --format dot        for graphviz (default): omnihost graph p.lua | dot -Tsvg >p.svg
  --format mermaid    for Markdown
]]

-- What an edge's line says: its ports where they are named, its limits where they are not the usual ones.
local function edge_label(edge)
  local parts = {}
  if edge.from_port ~= graph.OUTPUT or edge.to_port ~= graph.INPUT then
    parts[1] = ("%s to %s"):format(edge.from_port, edge.to_port)
  end
  if edge.window ~= graph.WINDOW then parts[#parts + 1] = ("window %d"):format(edge.window) end
  if edge.budget ~= graph.BUDGET then parts[#parts + 1] = ("budget %d"):format(edge.budget) end
  return table.concat(parts, ", ")
end

local function stage_label(stage)
  local runs = stage.module or table.concat(stage.exec or {}, " ")
  if stage.module == "omni.stages.filter" then runs = table.concat(stage.config.command or {}, " ") end
  return runs, stage.replicas > 1 and (" x%d"):format(stage.replicas) or ""
end

local function quoted(text)
  return '"' .. text:gsub('[\\"]', "\\%0"):gsub("\n", "\\n") .. '"'
end

local format = {}

function format.dot(topology)
  local lines = { ("digraph %s {"):format(quoted(topology.name)), "  rankdir=LR;", "  node [shape=box];" }
  lines[#lines + 1] = '  "host:in" [label="requests", shape=plaintext];'
  lines[#lines + 1] = '  "host:out" [label="results", shape=plaintext];'
  for _, stage in ipairs(topology.stages) do
    local runs, replicas = stage_label(stage)
    lines[#lines + 1] = ("  %s [label=%s];"):format(quoted(stage.name), quoted(stage.name .. replicas .. "\n" .. runs))
  end
  for _, edge in ipairs(topology.edges) do
    local from = edge.from == graph.HOST and "host:in" or edge.from
    local to = edge.to == graph.HOST and "host:out" or edge.to
    local label = edge_label(edge)
    local attributes = label ~= "" and (" [label=%s]"):format(quoted(label)) or ""
    lines[#lines + 1] = ("  %s -> %s%s;"):format(quoted(from), quoted(to), attributes)
  end
  lines[#lines + 1] = "}"
  return table.concat(lines, "\n")
end

-- Mermaid has its own way to write what could end a label.
local function entity(text)
  return '"' .. text:gsub('[#&<>"\n]', function(c) return ("#%d;"):format(c:byte()) end) .. '"'
end

-- Stages by number, for some names are words of the language: "end".
function format.mermaid(topology)
  local lines, ids = { "flowchart LR", '  requests(["requests"])', '  results(["results"])' }, {}
  for i, stage in ipairs(topology.stages) do
    local runs, replicas = stage_label(stage)
    ids[stage.name] = "s" .. i
    lines[#lines + 1] = ("  s%d[%s]"):format(i, entity(("%s%s: %s"):format(stage.name, replicas, runs)))
  end
  for _, edge in ipairs(topology.edges) do
    local label = edge_label(edge)
    local arrow = label ~= "" and (" -->|%s| "):format(entity(label)) or " --> "
    lines[#lines + 1] = ("  %s%s%s"):format(ids[edge.from] or "requests", arrow, ids[edge.to] or "results")
  end
  return table.concat(lines, "\n")
end

local FORMATS = check.sorted_keys(format)

-- The format and what is left of the arguments.
local function parse(first, ...)
  if first == "-h" or first == "--help" then
    io.stdout:write(HELP)
    return os.exit(0)
  end
  if first ~= "--format" then return "dot", first, ... end
  local name = ...
  if not format[name] then
    cli.usage(("graph: --format must be one of %s, not %s%s"):format(table.concat(FORMATS, ", "), tostring(name),
      check.hint(name, FORMATS)))
  end
  return name, select(2, ...)
end

local function draw(kind, ...)
  if (...) == nil then return cli.usage "graph needs a script" end
  local chunk, name, arguments = run.load(...)
  local result = chunk(unpack(arguments))
  if not pipeline.is(result) then
    io.stderr:write(("omnihost: %s returns no pipeline\n"):format(name))
    return os.exit(1)
  end
  local topology, problems = result:topology()
  if topology then return print(format[kind](topology)) end
  io.stderr:write(table.concat(problems, "\n"), "\n")
  os.exit(1)
end

--- Prints the drawing; exits 1 where there is no pipeline or it has problems.
---@param ... string options, script and its arguments
function verb.main(...)
  return draw(parse(...))
end

return verb
