--- Runners: guest programs against the tools of a manifest, inside of limits.
--
-- A guest is semi-trusted code, such as an agent writes: it has a Lua state, a thread, a memory cap and a deadline of
-- its own, and an environment that is an allow-list. Code that is hostile needs a process of its own.

local check = require "omni.check"
local json = require "omni.json"
local native = require "omni.native.guest"
local rewrite = require "omni.plm.rewrite"
local run = require "omni.plm.run"
local sched = require "omni.native.sched"

local M = {}

-- ---- limits ----

local UNITS = { [""] = 1, K = 2 ^ 10, M = 2 ^ 20, G = 2 ^ 30 }

-- Bytes of a number, or of "64M"; nil for anything else.
local function bytes(value)
  if type(value) == "number" then return value >= 0 and value < 2 ^ 53 and math.floor(value) or nil end
  local digits, unit = tostring(value):upper():match "^(%d+%.?%d*)([KMG]?)I?B?$"
  return digits and math.floor(tonumber(digits) * UNITS[unit]) or nil
end

local function is_size(value) return bytes(value) ~= nil, 'must be bytes, as a number or as "64M"' end

local LIMITS = {
  memory = { type = { "number", "string" }, default = "64M", check = is_size },
  output = { type = { "number", "string" }, default = "1M", check = is_size },
  seconds = { type = "positive", default = 10 },
  instructions = { type = "positive", default = 1e9 },
  calls = { type = "integer", default = 1000, check = function(n) return n >= 1, "must be at least 1" end },
  pending = { type = "integer", default = 64, check = function(n) return n >= 1, "must be at least 1" end },
}

---@class omni.plm.Limits
---@field memory? number|string bytes that a program's state may hold ("64M"); give it twice what it needs at once
---@field seconds? number from its start (10)
---@field instructions? number of the virtual machine (1e9)
---@field calls? integer tool calls (1000)
---@field pending? integer reads that are prepared and not yet claimed (64)
---@field output? number|string bytes of print that are kept ("1M")

--- The names of the limits, sorted.
M.LIMIT_NAMES = check.sorted_keys(LIMITS)

---@class omni.plm.Runner
---@field manifest omni.plm.Manifest
---@field limits omni.plm.Limits
local Runner = {}
Runner.__index = Runner

local RUNNER = {
  manifest = {
    type = "table",
    check = function(m) return m._native ~= nil and m.tool_id ~= nil, "must be made by plm.manifest" end,
  },
  limits = { type = { "table", "nil" } },
}

--- A runner of guest programs.
---@param options { manifest: omni.plm.Manifest, limits?: omni.plm.Limits }
---@return omni.plm.Runner
function M.new(options)
  local checked = check.table(options, RUNNER, "plm.runner")
  local limits = check.table(checked.limits or {}, LIMITS, "plm.runner: limits")
  limits.memory, limits.output = bytes(limits.memory), bytes(limits.output)
  local tools = {}
  for i, name in ipairs(checked.manifest:names()) do
    tools[i] = { name = name, id = checked.manifest:tool_id(name) }
  end
  return setmetatable({ manifest = checked.manifest, limits = limits, _tools = tools }, Runner)
end

-- ---- a program ----

local OPTIONS = { inputs = { type = "any" }, chunkname = { type = "string" } }

---@class omni.plm.ProgramOptions
---@field inputs? any what the program finds in its global `inputs` ({})
---@field chunkname? string name of its file, for messages ("guest.lua")

---@class omni.plm.Program a guest program that was started
local Program = {}
Program.__index = Program

local function read_source(source, where)
  check.argument(source, "string", where .. ": argument 1 (source)")
  return source
end

local function read_inputs(inputs, where)
  if inputs == nil then return nil end
  local text, why = json.encode(inputs)
  if not text then check.misuse(("%s: inputs cannot be sent: %s"):format(where, why)) end
  return text
end

-- What the pass made of a source; the last one is kept, for programs are run again and again.
local function rewritten(self, source)
  local last = self._last
  if not last or last.source ~= source then
    local text, info = rewrite(source, self.manifest)
    last = { source = source, text = text, info = info }
    self._last = last
  end
  return last.text, last.info
end

-- The pass's sites, with tools by number.
local function site_list(self, info)
  local numbers, sites = {}, {}
  for i, tool in ipairs(self._tools) do numbers[tool.name] = i end
  for i, site in ipairs(info.sites) do
    sites[i] = { tool = numbers[site.tool], line = site.line, last = site.last }
  end
  return sites
end

--- Starts a program without waiting for it.
---@param source string Lua text
---@param options? omni.plm.ProgramOptions
---@param early boolean whether reads may start early (PLM on)
---@return omni.plm.Program|nil program
---@return string? message
---@return string? code
function Runner:start(source, options, early)
  local where = early and "runner:run_plm" or "runner:run"
  read_source(source, where)
  local o = check.options(options, OPTIONS, where)
  local inputs, chunk = read_inputs(o.inputs, where), o.chunkname or "guest.lua"
  local began = sched.now()
  local text, info = source, nil
  if early then text, info = rewritten(self, source) end
  local limits, now = self.limits, sched.now()
  local opened, why, code = run.open {
    manifest = self.manifest, enabled = early and info.changed, calls = limits.calls, pending = limits.pending,
    deadline = now + limits.seconds,
  }
  if not opened then return nil, why, code end
  local changed = early and info.changed
  local guest
  guest, why, code = native.start {
    source = text, chunk = chunk:find "^[@=]" and chunk or "@" .. chunk, inputs = inputs,
    run = opened._native, tools = self._tools,
    sites = changed and site_list(self, info) or nil, plans = changed and info.plan or nil,
    memory = limits.memory, output = limits.output, instructions = limits.instructions,
    deadline = now + limits.seconds, seconds = limits.seconds,
  }
  if not guest then
    opened:close()
    return nil, why, code
  end
  return setmetatable({ _guest = guest, _run = opened, _began = began, _started = now, info = info }, Program)
end

--- Makes the program end soon, with the code ECANCELED.
function Program:cancel() self._guest:cancel() end

local function values(text)
  local list = text and assert(json.decode(text)) or {}
  local results = { n = #list }
  for i, value in ipairs(list) do
    if value ~= json.null then results[i] = value end
  end
  return results
end

local function statistics(self, outcome, ended)
  local stats = self._run:stats()
  stats.wall = ended - self._began
  stats.rewrite = self._started - self._began
  stats.guest = outcome.ended - outcome.started
  for _, name in ipairs { "memory_peak", "memory_left", "instructions", "printed_lost" } do
    stats[name] = outcome[name]
  end
  return stats
end

---@class omni.plm.Report
---@field ok boolean
---@field results table what the program returned; `n` of them
---@field error? { message: string, code: string, line?: integer, tool?: string, traceback?: string }
---@field logical { tool: string, args: string }[] the calls that it made, in order
---@field events table[] what the host did, in order: op, tool, args, handle, line, outcome, t_prepare, t_start, t_end,
---  t_resolve
---@field stats table counters; wall, guest and rewrite in seconds
---@field printed string what print wrote

local function logical(events)
  local calls = {}
  for _, event in ipairs(events) do
    if event.logical then calls[#calls + 1] = { tool = event.tool, args = event.args } end
  end
  return calls
end

--- Suspends until the program has ended and no tool works for it any more.
---@return omni.plm.Report
function Program:wait()
  local guest = self._guest
  while not guest:_ended() do guest:_wait() end
  local ended = sched.now()
  self._run:close()
  local outcome, events = guest:_result(), self._run:trace()
  local report = {
    ok = outcome.ok, results = values(outcome.results), events = events, logical = logical(events),
    stats = statistics(self, outcome, ended), printed = outcome.printed, began = self._started,
  }
  if not outcome.ok then
    report.error = {
      message = outcome.message, code = outcome.code, line = outcome.line, tool = outcome.tool,
      traceback = outcome.traceback,
    }
  end
  return report
end

-- ---- both ways to run ----

local function to_end(program, why, code)
  if not program then return nil, why, code end
  return program:wait()
end

--- Runs a program; every call is made where it stands. Suspends.
---@param source string Lua text
---@param options? omni.plm.ProgramOptions
---@return omni.plm.Report|nil report
---@return string? message
---@return string? code when no program could be started
function Runner:run(source, options) return to_end(self:start(source, options, false)) end

--- Runs a program; reads that are certain to happen start early. The same results, errors, lines and logical calls as
--- `run`, sooner. Suspends.
---@param source string Lua text
---@param options? omni.plm.ProgramOptions
---@return omni.plm.Report|nil report
---@return string? message
---@return string? code
function Runner:run_plm(source, options) return to_end(self:start(source, options, true)) end

return M
