--- `omnihost check SCRIPT`: checks a pipeline without starting it.

local cli = require "omni.cli"
local graph = require "omni.graph"
local pipeline = require "omni.pipeline"
local run = require "omni.cli.run"

local verb = {}

local function describe(topology)
  local lines = { ("%s: %d stages, no problems"):format(topology.name, #topology.stages) }
  for _, edge in ipairs(topology.edges) do
    lines[#lines + 1] = ("  %s (window %d chunks, budget %d bytes)"):format(
      graph.show(edge), edge.window, edge.budget)
  end
  return table.concat(lines, "\n")
end

--- Prints what was found; exits 1 on problems.
---@param ... string script and arguments
function verb.main(...)
  if (...) == nil then return cli.usage "check needs a script" end
  local chunk, name, arguments = run.load(...)
  local result = chunk(unpack(arguments))
  if not pipeline.is(result) then
    io.stderr:write(("omnihost: %s returns no pipeline\n"):format(name))
    return os.exit(1)
  end
  local topology, problems = result:topology()
  if topology then return print(describe(topology)) end
  io.stderr:write(table.concat(problems, "\n"), "\n")
  io.stderr:write(("omnihost: %d problem%s\n"):format(#problems, #problems == 1 and "" or "s"))
  os.exit(1)
end

return verb
