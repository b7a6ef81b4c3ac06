--- What runs the fuzzer's programs: the runner with its guests, threads and futures, or the reference in plain Lua.

local rewrite = require "omni.plm.rewrite"
local reference = require "spec.fuzz.reference"
local world = require "spec.fuzz.world"

local hosts = {}

local LANES = 6 -- programs at a time: most of a run is waiting for threads to wake

-- The pass asks a manifest for names and for who may be read early.
local function manifest_of(program)
  if program.for_pass then return program.for_pass end
  local names, early = {}, {}
  for index, tool in ipairs(program.manifest) do names[index], early[tool.name] = tool.name, tool.early end
  program.for_pass = { names = function() return names end, early = function(_, name) return early[name] end }
  return program.for_pass
end

hosts.reference = {
  off = function(program, text) return reference.run(program, text) end,
  on = function(program, text)
    local rewritten, info = rewrite(text, manifest_of(program))
    local report = reference.run(program, rewritten, info)
    for _, call in ipairs(not info.changed and info.calls or {}) do -- a look that was too quick
      if call.hoisted then report.defect = "left alone, but something overlaps" end
    end
    return report, info
  end,
}

-- A few reads take a while, so that some are done before they are asked for, and some are not.
local function inline_tool(state, name, early)
  local function call(ctx, ...)
    local args, version = world.encode_all(select("#", ...), ...), state.version
    if not early then state.version = version + 1 end -- an unknown effect, for all the host knows
    local dice = world.dice(name, args, version)
    if early and dice < 4 then ctx:sleep(dice / 4000) end
    local results = { n = 0 }
    local function keep(message, ...)
      if message then error(message, 0) end
      results.n = select("#", ...)
      for index = 1, results.n do results[index] = (select(index, ...)) end
    end
    keep(world.read(name, args, version))
    return unpack(results, 1, results.n)
  end
  return { call = call, allow_early_read = early }
end

local function open(program)
  local plm = require "omni.plm"
  local state, tools = { version = 0 }, {}
  for _, tool in ipairs(program.manifest) do tools[tool.name] = inline_tool(state, tool.name, tool.early) end
  local manifest = plm.manifest { tools }
  local limits = { seconds = 20, instructions = 2e6, calls = 3000 }
  return { state = state, manifest = manifest, runner = plm.runner { manifest = manifest, limits = limits } }
end

local LIMITS = { EINSTRUCTIONS = true, EMEMORY = true, EDEADLINE = true, ECALLS = true }

-- What may not differ, as texts.
local function comparable(report)
  local shown, calls = {}, {}
  for index = 1, report.results.n or #report.results do shown[index] = world.encode(report.results[index]) end
  for index, call in ipairs(report.logical) do calls[index] = call.tool .. call.args end
  for _, event in ipairs(report.events) do
    if event.logical then calls[#calls + 1] = ("%s %s"):format(event.tool, event.line) end
  end
  local failure = report.error
  return {
    ok = report.ok, results = table.concat(shown, " "), printed = report.printed, logical = table.concat(calls, "\n"),
    error = failure and ("%s line %s tool %s: %s"):format(failure.code, failure.line, failure.tool, failure.message),
    endless = failure ~= nil and LIMITS[failure.code] or nil,
    syntax = failure ~= nil and failure.code == "ESYNTAX" or nil, stats = report.stats,
  }
end

local function run(program, text, method)
  program.open = program.open or open(program)
  program.open.state.version = 0
  local runner, options = program.open.runner, { inputs = world.inputs(), chunkname = "=guest" }
  return comparable(assert(runner[method](runner, text, options)))
end

hosts.runner = {
  off = function(program, text) return run(program, text, "run") end,
  on = function(program, text)
    local report = run(program, text, "run_plm")
    return report, select(2, rewrite(text, program.open.manifest))
  end,
  lanes = function(lane)
    local omni, tasks = require "omni", {}
    for index = 1, LANES do tasks[index] = omni.spawn(lane) end
    for _, task in ipairs(tasks) do task:join() end
  end,
  finish = function(program)
    if program.open then program.open.manifest:close() end
    program.open = nil
  end,
}

return hosts
