--- The orchestrator: one state on its own thread that runs a topology. It owns the namespace, the workers and the
-- requests; it is the sender of the pipeline's first edges and the receiver of its last ones. Chunks between stages
-- never pass here.
---
--- Commands in (from the front): submit, consumed, abort, stop. Messages out: ready, broken, chunks, ended, aborted,
--- stopped.

local edge = require "omni.edge"
local host = require "omni.native.host"
local log = require "omni.log"
local omni = require "omni"
local owner = require "omni.native.owner"
local sched = require "omni.native.sched"
local supervisor = require "omni.supervisor"
local uv = require "luv"
local wire = require "omni.wire"

local HOST = require("omni.pipeline").HOST
local SHM = "/dev/shm"
local LITTLE_SPACE = 32 * 2 ^ 20 -- bytes free at start below which a warning is due
local STOP_GRACE = 2 -- seconds a worker may take to end after `stop`
local ABORT_GRACE = 1 -- seconds the stages may take to let go of a request before the user is told that they did not

---@class omni.orchestrator
local Orchestrator = {}
Orchestrator.__index = Orchestrator

-- ---- requests: one ownership record each, from admission until all stages have let go of it ----

local function each_stage(self, fn)
  for _, name in ipairs(self.names) do fn(self.stages[name], name) end
end

local function first_down(self)
  for _, name in ipairs(self.names) do
    local stage = self.stages[name]
    if stage.down then return name, stage.down end
  end
end

-- Answers an abort: what each stage was doing, or that it has not answered in time.
local function answer_abort(self, record)
  if not record.abort_asked then return end
  record.abort_asked = nil
  for name in pairs(record.waiting) do record.was[name] = "no answer" end
  self.outputs:put { "aborted", record.id, { outcome = "aborted", stages = record.was } }
end

-- Forgets a record when nobody has anything of it any more: then, and not before, chunks left over can be removed.
local function release(self, record)
  if record.released or next(record.waiting) then return end
  record.released = true
  self.requests[record.id] = nil
  each_stage(self, function(stage) stage:send { type = "forget", req = record.id } end)
  for _, out in ipairs(self.inputs) do out:forget(record.id) end
  for _, stream in ipairs(record.streams) do stream:close(record.failure ~= nil) end
  for _, timer in pairs(record.timers) do timer:close() end
  answer_abort(self, record)
  if self.on_idle and not next(self.requests) then self.on_idle() end
end

local function any_running(self)
  for _, record in pairs(self.requests) do
    if record.state == "running" then return true end
  end
  return false
end

-- Stages have not let go of an ended request for a while. They may compute, for other requests too; but when the
-- pipeline only waits for them to stop, it does not wait for ever.
local function on_grace(self, record)
  answer_abort(self, record)
  if not self.stopping or any_running(self) then return end
  for name in pairs(record.waiting) do
    self.stages[name].worker.cause = "leaving an abort unanswered"
    self.stages[name].worker:kill()
  end
end

-- Ends a request once, whatever the cause. With a failure all stages are told, and `release` waits for their answers
-- (or their deaths): until then a sender may still be storing chunks.
local function finish(self, record, code, message, traceback)
  if record.state ~= "running" then return end
  record.state = "ended"
  self.outputs:put { "ended", record.id, code or false, message or false, traceback or false }
  if not code then return release(self, record) end
  record.failure, record.waiting = message, {}
  for _, stream in ipairs(record.streams) do stream:drop() end
  each_stage(self, function(stage, name)
    if stage.worker.alive then
      record.waiting[name] = true
      stage:send { type = "abort", req = record.id, code = code, error = message }
    end
  end)
  record.timers.grace = uv.new_timer()
  record.timers.grace:start(ABORT_GRACE * 1000, ABORT_GRACE * 1000, function() on_grace(self, record) end)
  release(self, record)
end

local function maybe_complete(self, record)
  if record.state == "running" and record.unread == 0 and not next(record.running) then finish(self, record) end
end

-- Passes what arrived on a last edge on to the front, in one message.
local function on_output(self, record, stage_name, stream)
  local items, base = {}, record.count[stage_name] or 0
  for item in function() return stream:take() end do
    items[#items + 1] = { data = item.data, finished = item.finished or nil }
    if item.finished then record.unread = record.unread - 1 end
  end
  if stream.error then return finish(self, record, stream.error:match "^(E%w+):" or "ESTAGE", stream.error) end
  if #items == 0 or record.state ~= "running" then return end
  record.count[stage_name] = base + #items
  self.outputs:put { "chunks", record.id, stage_name, base, items }
  maybe_complete(self, record)
end

local function open_streams(self, record)
  for i, inbound in ipairs(self.outlets) do
    local stream = inbound:open(record.id)
    local stage_name = inbound.spec.from
    stream.on_items = function() on_output(self, record, stage_name, stream) end
    record.streams[i] = stream
  end
end

local function start_deadline(self, record, seconds)
  record.deadline = omni.now() + seconds
  record.timers.deadline = uv.new_timer()
  record.timers.deadline:start(math.ceil(seconds * 1000), 0, function()
    local busy = {}
    for name in pairs(record.running) do busy[#busy + 1] = name end
    table.sort(busy)
    local text = "ETIMEDOUT: the deadline of %g s passed while %s had not finished"
    finish(self, record, "ETIMEDOUT", text:format(seconds, table.concat(busy, ", ")))
  end)
end

local commands = {}

function commands:submit(message)
  local record = {
    id = message.id, state = "running", running = {}, waiting = {}, was = {}, streams = {}, count = {}, timers = {},
    unread = #self.outlets,
  }
  local down, cause = first_down(self)
  if self.stopping or down then
    local code = down and "EWORKER" or "ECLOSED"
    local text = down and ('EWORKER: stage "%s" is down: it %s'):format(down, cause)
      or "ECLOSED: the pipeline takes no more requests"
    return self.outputs:put { "ended", record.id, code, text, false }
  end
  self.requests[record.id] = record
  if message.deadline then start_deadline(self, record, message.deadline) end
  open_streams(self, record)
  each_stage(self, function(stage, name)
    record.running[name] = true
    stage:send { type = "start", req = record.id, label = message.label, deadline = record.deadline }
  end)
  for _, out in ipairs(self.inputs) do
    local ok, why, code = out:send(record.id, message.data, true)
    if not ok then return finish(self, record, code, why) end
  end
end

-- The front's reader took chunks: only this gives the last stage its credit back.
function commands:consumed(message)
  local record = self.requests[message.id]
  for i, inbound in ipairs(self.outlets) do
    if record and inbound.spec.from == message.stage then record.streams[i]:consumed(message.n) end
  end
end

function commands:abort(message)
  local record = self.requests[message.id]
  if not record or record.state ~= "running" then
    return self.outputs:put { "aborted", message.id, { outcome = "already finished", stages = {} } }
  end
  record.abort_asked = true
  finish(self, record, "EABORTED", "EABORTED: aborted by its user")
end

function commands:stop(message)
  self.stopping = true
  if message.abort then
    for _, id in ipairs(self:ids()) do
      finish(self, self.requests[id], "EABORTED", "EABORTED: the pipeline was closed")
    end
  end
end

function Orchestrator:ids()
  local ids = {}
  for id in pairs(self.requests) do ids[#ids + 1] = id end
  table.sort(ids)
  return ids
end

-- ---- messages of the stages; for requests that have ended all are no-ops ----

local messages = {}

function messages:hello(stage, message)
  if message.protocol ~= wire.PROTOCOL then
    local text = "speaks protocol %s, this host %d"
    return stage:start_failed(text:format(tostring(message.protocol), wire.PROTOCOL))
  end
  stage:send(self:init_message(stage))
end

function messages.ready(_, stage) stage:started() end

function messages.broken(_, stage, message)
  stage:start_failed("did not start: " .. message.error, message.traceback)
end

function messages:done(stage, message)
  local record = self.requests[message.req]
  if not record then return end
  record.running[stage.name] = nil
  maybe_complete(self, record)
end

function messages:failed(stage, message)
  local record = self.requests[message.req]
  if not record or record.state ~= "running" then return end
  local text = ('%s: stage "%s" failed: %s'):format(message.code, stage.name, (message.error:gsub("^E%w+: ", "")))
  finish(self, record, message.code, text, message.traceback)
end

function messages:ended(stage, message)
  local record = self.requests[message.req]
  if not record or record.state == "running" then return end
  record.was[stage.name], record.waiting[stage.name] = message.was, nil
  release(self, record)
end

-- ---- stages ----

---@class omni.orchestrator.stage
local Stage = {}
Stage.__index = Stage

function Stage:send(message) self.worker:send(message) end

function Stage:started()
  self.state = "ready"
  self.wake()
end

function Stage:start_failed(text, traceback)
  if self.state ~= "starting" then return end
  self.state, self.failure, self.traceback = "broken", ('ESTAGE: stage "%s" %s'):format(self.name, text), traceback
  self.wake()
end

-- A worker died: the requests that it held fail; those that it was done with go on.
local function on_death(self, stage, report)
  if self.closing then return end
  stage.down = report
  stage:start_failed(report)
  log.error("stage process ended", { stage = stage.name, pid = stage.worker.pid, how = report })
  for _, id in ipairs(self:ids()) do
    local record = self.requests[id]
    if record.state == "running" and record.running[stage.name] then
      finish(self, record, "EWORKER", ('EWORKER: stage "%s" %s'):format(stage.name, report))
    elseif record.state == "ended" then
      record.waiting[stage.name] = nil
      release(self, record)
    end
  end
end

local function command_of(definition)
  local facts = host.facts()
  local command = { facts.exe, "--worker", facts.script_dir }
  if not definition.cpus then return command end
  return { "taskset", "-c", tostring(definition.cpus), unpack(command) }
end

local function spawn_stage(self, definition)
  local stage = setmetatable({ name = definition.name, definition = definition, state = "starting" }, Stage)
  stage.wake = function() if self.start_ticket then sched.unpark(self.start_ticket) end end
  local worker, why = supervisor.spawn {
    stage = definition.name, command = command_of(definition), owner_fd = self.owner_fd,
    env = definition.env, cwd = definition.cwd,
    on_message = function(_, message)
      local handler = messages[message.type]
      if handler then return handler(self, stage, message) end
      log.warn("unknown control message", { stage = stage.name, type = message.type })
    end,
    on_death = function(_, report) on_death(self, stage, report) end,
  }
  if not worker then return nil, why end
  stage.worker = worker
  self.stages[definition.name] = stage
  return stage
end

-- What an edge's ends must know: its number and limits, and the folder that its reader watches.
local function edge_spec(self, spec)
  local reader = spec.to == HOST and HOST or spec.to .. ".0"
  return {
    id = spec.id, from = spec.from, to = spec.to, window = spec.window, budget = spec.budget, encoding = "buffer",
    dir = ("%s/%s"):format(self.dir, reader),
  }
end

function Orchestrator:init_message(stage)
  local inputs, outputs = {}, {}
  for _, spec in ipairs(self.edges) do
    if spec.to == stage.name then inputs[#inputs + 1] = spec end
    if spec.from == stage.name then outputs[#outputs + 1] = spec end
  end
  local definition = stage.definition
  return {
    type = "init", stage = stage.name, replica = 0, module = definition.module, config = definition.config,
    namespace = self.namespace, inputs = inputs, outputs = outputs,
  }
end

local function warn_of_little_space()
  local free = host.free_space(SHM)
  if free and free < LITTLE_SPACE then
    log.warn("little free space in shared memory: chunks may find no room", { dir = SHM, free_mib = free / 2 ^ 20 })
  end
end

local function open_namespace(self)
  owner.sweep_dead()
  warn_of_little_space()
  local namespace, fd = owner.create()
  if not namespace then return nil, fd end
  self.namespace, self.owner_fd, self.dir = namespace, fd, ("%s/%s.d"):format(SHM, namespace)
  owner.note_namespace(namespace, true)
  for _, definition in ipairs(self.topology.stages) do
    assert(uv.fs_mkdir(("%s/%s.0"):format(self.dir, definition.name), tonumber("700", 8)))
  end
  assert(uv.fs_mkdir(self.dir .. "/" .. HOST, tonumber("700", 8)))
  return true
end

local function open_outer_edges(self)
  for _, spec in ipairs(self.topology.edges) do self.edges[#self.edges + 1] = edge_spec(self, spec) end
  for _, spec in ipairs(self.edges) do
    if spec.from == HOST then
      self.inputs[#self.inputs + 1] = edge.outbound(self.namespace, spec, function(req, why)
        local record = self.requests[req]
        if record then finish(self, record, why:match "^(E%w+):" or "EPUT", why) end
      end)
    elseif spec.to == HOST then
      self.outlets[#self.outlets + 1] = edge.inbound(self.namespace, spec)
    end
  end
end

-- Suspends until every stage is ready. nil and the first failure otherwise.
local function await_ready(self)
  local began = omni.now()
  while true do
    local all_ready, least = true, math.huge
    for _, name in ipairs(self.names) do
      local stage = self.stages[name]
      if stage.state == "broken" then return nil, stage.failure, stage.traceback end
      local left = stage.definition.start_timeout - (omni.now() - began)
      if stage.state == "starting" then
        all_ready, least = false, math.min(least, left)
        if left <= 0 then
          local text = 'ETIMEDOUT: stage "%s" was not ready within %g s'
          return nil, text:format(name, stage.definition.start_timeout)
        end
      end
    end
    if all_ready then return true end
    self.start_ticket = sched.ticket "pipeline:start"
    sched.park("pipeline:start", least)
  end
end

local function open(self)
  local ok, why = open_namespace(self)
  if not ok then return nil, why end
  open_outer_edges(self)
  for _, definition in ipairs(self.topology.stages) do
    local stage, failure = spawn_stage(self, definition)
    if not stage then return nil, failure end
    self.names[#self.names + 1] = definition.name
  end
  return await_ready(self)
end

-- Ends the workers, in order when all went well, and removes everything of the namespace.
local function close(self, orderly)
  self.closing = true
  each_stage(self, function(stage)
    if orderly then stage:send { type = "stop" } else stage.worker:kill() end
  end)
  each_stage(self, function(stage) stage.worker:wait(STOP_GRACE) end)
  for _, list in ipairs { self.inputs, self.outlets } do
    for _, one in ipairs(list) do one:close() end
  end
  if self.namespace then
    owner.sweep(self.namespace)
    owner.note_namespace(self.namespace, false)
    uv.fs_close(self.owner_fd)
  end
end

-- Serves commands until the front asked to stop and the last request is gone.
local function serve(self, inbox)
  self.on_idle = function() if self.stopping then inbox:close() end end
  while true do
    local batch = inbox:get_batch {}
    if not batch then return end
    for _, message in ipairs(batch) do commands[message.type](self, message) end
    if self.stopping and not next(self.requests) then return end
  end
end

local function run(self, inbox)
  local ok, why, traceback = open(self)
  if not ok then
    close(self, false)
    return self.outputs:put { "broken", why, traceback or false }
  end
  local pids = {}
  each_stage(self, function(stage, name) pids[name] = stage.worker.pid end)
  self.outputs:put { "ready", self.namespace, pids }
  serve(self, inbox)
  close(self, true)
  self.outputs:put { "stopped" }
end

--- The main function of the orchestrator's state.
---@param topology omni.topology
---@param inbox userdata sink of commands; bound here
---@param outputs userdata sink bound to the front's state
return function(topology, inbox, outputs)
  inbox:bind()
  local self = setmetatable({
    topology = topology, outputs = outputs, stages = {}, names = {}, edges = {}, inputs = {}, outlets = {},
    requests = {},
  }, Orchestrator)
  local ok, failure = xpcall(run, debug.traceback, self, inbox)
  if ok then return end
  log.error("the orchestrator failed", { error = failure })
  pcall(close, self, false)
  outputs:put { "broken", "ERUN: the orchestrator failed: " .. failure, false }
end
