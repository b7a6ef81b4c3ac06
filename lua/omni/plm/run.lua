--- Runs: tools called by their names, reads started early and claimed where the program calls.
local check = require "omni.check"
local exec = require "omni.plm.exec"
local log = require "omni.log"
local native = require "omni.native.plm"
local sched = require "omni.native.sched"

local M = {}

local NAME_EVERY = 1 -- seconds between two lines about tools that do not stop

-- ---- pools ----

local manifests = setmetatable({}, { __mode = "v" }) -- by the pool's id

-- A job of an inline tool, on this state's loop: a task of its own.
native.home(function(job)
  local manifest = manifests[tostring(job:_pool())]
  local tool = manifest and manifest:tool(job:_tool())
  sched.spawn(exec.run, job, tool, "ECLOSED: the manifest of this tool is gone")
end)

--- The pool of a manifest's tools.
---@param manifest omni.plm.Manifest
---@param workers integer
---@return userdata
function M.pool(manifest, workers)
  local tools, modules = {}, {}
  for i, name in ipairs(manifest:names()) do
    local tool = manifest:tool(name)
    modules[name] = tool.module
    tools[i] = {
      name = name, early = tool.allow_early_read, home = tool.module == nil, timeout = tool.timeout,
      max_in_flight = tool.max_in_flight,
    }
  end
  local pool = native.pool(tools, workers, modules)
  manifests[tostring(pool:_id())] = manifest
  return pool
end

-- ---- runs ----

---@class omni.plm.Run
---@field manifest omni.plm.Manifest
local Run = {}
Run.__index = Run

local function is_manifest(value) return type(value) == "table" and value._native ~= nil and value.tool_id ~= nil end

local OPEN = {
  manifest = { type = "table", check = function(m) return is_manifest(m), "must be made by plm.manifest" end },
  enabled = { type = "boolean", default = true },
  pending = { type = { "integer", "nil" }, check = function(n) return n >= 1, "must be at least 1" end },
  calls = { type = { "integer", "nil" }, check = function(n) return n >= 1, "must be at least 1" end },
  timeout = { type = { "number", "nil" }, check = function(s) return s >= 0, "must be seconds from 0 on" end },
  deadline = { type = { "number", "nil" } },
}

---@class omni.plm.RunOptions
---@field manifest omni.plm.Manifest
---@field enabled? boolean false: prepare gives 0, always (true)
---@field pending? integer unclaimed futures at once (64)
---@field calls? integer logical calls at most
---@field timeout? number seconds from now, for the whole run
---@field deadline? number the same as a time on `omni.now`'s clock; the earlier of both counts

--- Opens a run; close it.
---@param options omni.plm.RunOptions
---@return omni.plm.Run|nil run
---@return string? message
---@return string? code "ECLOSED": the manifest is closed
function M.open(options)
  local o = check.table(options, OPEN, "plm.open_run")
  if o.manifest._closed then return nil, "ECLOSED: the manifest is closed", "ECLOSED" end
  local left = math.min(o.timeout or math.huge, o.deadline and math.max(0, o.deadline - sched.now()) or math.huge)
  if left > 1e9 then left = -1 end
  local run = native.run(o.manifest._native, o.enabled, o.pending or 0, o.calls or 0, left)
  o.manifest._runs = (o.manifest._runs or 0) + 1
  return setmetatable({ _native = run, manifest = o.manifest }, Run)
end

local REQUEST = {
  tool = { type = "string" },
  args = { type = { "table", "nil" } },
  line = { type = { "integer", "nil" } },
}

---@class omni.plm.Request
---@field tool string
---@field args? table its arguments by position, `n` where they end in nil (none)
---@field line? integer of the call, for the trace

-- The tool's number (-1 for none), the arguments as JSON or nil and why not.
local function read(self, request, where)
  local checked = check.options(request, REQUEST, where)
  if checked.tool == nil then check.misuse(where .. ': key "tool" is missing') end
  local args, why = exec.encode_args(checked.args or {})
  return self.manifest:tool_id(checked.tool) or -1, args, checked.line or 0, why
end

--- Starts a read early where that may be done and somebody is free for it.
---@param request omni.plm.Request
---@return integer handle 0: not prepared, resolve calls the tool then
function Run:prepare(request)
  local tool, args, line = read(self, request, "run:prepare")
  if not args then return 0 end
  return self._native:_prepare(tool, args, line)
end

local function await(call)
  while true do
    local state, response = call:_take()
    if state then return exec.decode(response or exec.failure "ENOMEM: out of memory") end
    call:_wait()
  end
end

--- Delivers a call: claims the future, once, if the request is the one that was prepared and no write came between;
--- else calls the tool now. Suspends until it is done.
---@param handle integer what prepare gave
---@param request omni.plm.Request
---@return any ... what the tool returned; or nil, "ECODE: …", "ECODE"
function Run:resolve(handle, request)
  if type(handle) ~= "number" or handle < 0 or handle % 1 ~= 0 then
    check.misuse(("run:resolve: argument 1 (handle) must be what prepare gave, not %s"):format(tostring(handle)))
  end
  local tool, args, line, why = read(self, request, "run:resolve")
  if not args then
    if handle ~= 0 then self._native:cancel_handle(handle) end
    return nil, why, "EJSON"
  end
  if tool == -1 then
    if handle ~= 0 then self._native:cancel_handle(handle) end
    return nil, ("ENOENT: there is no tool %s%s"):format(request.tool, self.manifest:hint(request.tool)), "ENOENT"
  end
  sched.ticket "run:resolve" -- where it could not wait it must not begin
  return await(self._native:_begin(handle, tool, args, line))
end

--- Calls a tool in place.
---@param request omni.plm.Request
---@return any ... as resolve
function Run:call(request) return self:resolve(0, request) end

--- Nobody will claim this future.
---@param handle integer
function Run:cancel_handle(handle) self._native:cancel_handle(handle) end

--- Cancels everything; whoever waits gets ECANCELED, and so does whoever comes later.
function Run:cancel() self._native:cancel() end

--- Cancels what is left and suspends until no worker has a job of this run. Idempotent.
function Run:close()
  local run, manifest = self._native, self.manifest
  run:_shut()
  while not run:_quiet() do
    if not run:_wait(NAME_EVERY) and not run:_quiet() then
      log.warn("tools ignore their cancel and hold a run", { tools = run:_names() })
    end
  end
  if self._closed then return end
  self._closed = true
  run:_let_go() -- whoever still holds the run, compiled code too, must not hold workers
  manifest._runs = manifest._runs - 1
  if manifest._closed and manifest._runs == 0 then manifest._native:close() end
end

--- What it counted so far.
---@return table<string, integer> stats calls, prepared, refused, adopted, mismatch, stale, preempted, cancelled,
---  unknown, epoch, pending, active, lost
function Run:stats() return self._native:stats() end

--- What it did, step by step, in the order in which the host saw it. Times in seconds on `omni.now`'s clock.
---@return table[] events { op=, tool=, args=, handle=, line=, outcome=, worker=, logical=, failed=, t_prepare=,
---  t_start=, t_end=, t_resolve= }
function Run:trace() return self._native:_events() end

--- The calls that the program made, in the order of their delivery; the same with early reads and without.
---@return table[] calls { tool=, args= }
function Run:logical()
  local calls = {}
  for _, event in ipairs(self:trace()) do
    if event.logical then calls[#calls + 1] = { tool = event.tool, args = event.args } end
  end
  return calls
end

return M
