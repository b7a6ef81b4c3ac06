--- Stages that are programs in any language: what may be written about them, and how they are run. Such a program
--- speaks the stage protocol on fd 3 itself; with `inline` a worker of ours does, and hands it its data there as well.

local host = require "omni.native.host"
local program = require "omni.program"

local exec = {}

-- The module of the worker that stands between an inline program and the edges.
local INLINE = "omni.stages.inline"

--- What is wrong with how a definition names its program; asked before any process starts.
---@param definition table a stage's definition
---@return string[] problems
function exec.problems(definition)
  if definition.module then return { "has both module and exec: a stage runs one of them" } end
  if #definition.exec == 0 then return { "exec must name a program" } end
  local cwd = definition.cwd or host.facts().script_dir
  if program.find(definition.exec[1], cwd) then return {} end
  return { ('program "%s" is not found'):format(definition.exec[1]) }
end

--- Completes a valid definition: the program runs in the script's folder unless it says otherwise, so that what lies
--- beside the script is found by its name.
---@param definition table
function exec.complete(definition)
  definition.cwd = definition.cwd or host.facts().script_dir
  if not definition.inline then return end
  definition.module, definition.config = INLINE, { command = definition.exec, config = definition.config }
  definition.exec, definition.inline = nil, nil
end

--- The command of a stage's process.
---@param definition table completed
---@return string[]
function exec.command(definition)
  local facts = host.facts()
  local command = definition.exec or { facts.exe, "--worker", facts.script_dir }
  if not definition.cpus then return command end
  return { "taskset", "-c", tostring(definition.cpus), unpack(command) }
end

--- How chunks of an edge are encoded: as JSON and bytes where one of its ends is no process of ours.
---@param stages table[] the topology's
---@param edge table
---@return "buffer"|"json"
function exec.encoding(stages, edge)
  for _, stage in ipairs(stages) do
    if stage.exec and (stage.name == edge.from or stage.name == edge.to) then return "json" end
  end
  return "buffer"
end

return exec
