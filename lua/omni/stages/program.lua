--- A stage that runs each chunk as a guest program against tools.
---
---   config = { tools = { "tools.shop" }, plm = true, limits = { seconds = 10, … }, chunkname = "agent.lua" }
---
--- A chunk is the program's text, or a table { source = text, inputs = value }. What goes on is a table: { ok = true,
--- results = [ … ], printed = } or { ok = false, error = { message =, code =, line =, tool = }, printed = }. A
--- program that fails is an answer like another; the request goes on.

local check = require "omni.check"
local json = require "omni.json"
local plm = require "omni.plm"

local program = {}

local CONFIG = {
  tools = { type = "strings", check = function(v) return #v > 0, "must name a tool module" end },
  plm = { type = "boolean", default = true },
  limits = { type = { "table", "nil" } },
  chunkname = { type = "string", default = "program.lua" },
}

local CHUNK = { source = { type = "string" }, inputs = { type = { "any", "nil" } } }

-- Raises what is wrong with the tools or the limits.
local function runner_of(config)
  local manifest = plm.manifest(config.tools)
  local ok, runner = pcall(plm.runner, { manifest = manifest, limits = config.limits })
  if ok then return runner, manifest end
  manifest:close()
  error(runner, 0)
end

--- What is wrong with a configuration; asked before any process starts.
---@param config table
---@return string[] problems
function program.problems(config)
  local problems, checked = check.problems(config, CONFIG, "config")
  if #problems > 0 then return problems end
  local ok, why, manifest = pcall(runner_of, checked)
  if not ok then return { tostring(why) } end
  manifest:close()
  return {}
end

function program.open(config)
  local checked = check.table(config, CONFIG, "config")
  local runner, manifest = runner_of(checked)
  return { runner = runner, manifest = manifest, early = checked.plm, chunkname = checked.chunkname }
end

local function read(chunk)
  if type(chunk) == "string" then return chunk, nil end
  local problems = check.problems(chunk, CHUNK, "a chunk for a program")
  if #problems > 0 then error("EINVAL: " .. table.concat(problems, "; "), 0) end
  return chunk.source, chunk.inputs
end

local function answer(report)
  if not report.ok then return { ok = false, error = report.error, printed = report.printed } end
  local results = {}
  for i = 1, report.results.n do results[i] = report.results[i] == nil and json.null or report.results[i] end
  return { ok = true, results = json.array(results), printed = report.printed }
end

function program.run(self, request, input, emit)
  local running
  request:on_end(function()
    if running then running:cancel() end
  end)
  for chunk in input do
    local source, inputs = read(chunk)
    local why
    running, why = self.runner:start(source, { inputs = inputs, chunkname = self.chunkname }, self.early)
    local report = running and running:wait() or error(why, 0)
    running = nil
    emit(answer(report))
  end
end

function program.close(self) self.manifest:close() end

return program
