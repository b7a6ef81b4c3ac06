--- The orchestrator: one state on its own thread that runs a topology. It owns the namespace, the workers and the
--- requests (`omni.requests`); it is the sender of the pipeline's first edges and the receiver of its last ones. Chunks
--- between stages never pass here.
---
--- Commands in (from the front): submit, consumed, abort, rpc, stop. Messages out: ready, broken, chunks, ended,
--- aborted, stopped.

local admission = require "omni.admission"
local deadlock = require "omni.deadlock"
local edge = require "omni.edge"
local exec = require "omni.exec"
local host = require "omni.native.host"
local log = require "omni.log"
local omni = require "omni"
local owner = require "omni.native.owner"
local replicas = require "omni.replicas"
local requests = require "omni.requests"
local restart = require "omni.restart"
local rpc = require "omni.rpc"
local scale = require "omni.scale"
local sched = require "omni.native.sched"
local supervisor = require "omni.supervisor"
local uv = require "luv"
local wire = require "omni.wire"

local HOST = require("omni.graph").HOST
local SHM = "/dev/shm"
local LITTLE_SPACE = 32 * 2 ^ 20 -- bytes free at start below which a warning is due
local STOP_GRACE = 2 -- seconds a worker may take to end after `stop`

---@class omni.orchestrator
local Orchestrator = {}
Orchestrator.__index = Orchestrator

-- ---- stages ----

---@class omni.orchestrator.stage
local Stage = {}
Stage.__index = Stage

function Stage:send(message) self.worker:send(message) end

function Stage:start_failed(text, traceback)
  if self.state ~= "starting" or self.deaths > 0 or self.job then return end
  self.state, self.failure, self.traceback = "broken", ('ESTAGE: stage "%s" %s'):format(self.name, text), traceback
  self.wake()
end

-- The death is told to the requests, then the stage gets a new worker. While the pipeline starts it ends the start.
local function on_death(self, stage, report)
  if self.closing then return end
  report = stage.broken or report
  stage:start_failed(report)
  local tell = stage.stopped and log.info or log.error
  tell("stage process ended", { stage = stage.name, pid = stage.worker.pid, how = report })
  if not self.opened then return end
  requests.stage_died(self, stage, report)
  rpc.stage_died(self, stage, report)
  if stage.retiring then
    scale.gone(self, stage)
  elseif stage.job then
    scale.failed(self, stage, report)
  else
    restart.died(self, stage, report)
  end
  requests.admit(self)
end

-- What workers say of themselves; what they say of requests is the requests' part, what they wait for is deadlock's.
local messages = setmetatable({}, { __index = requests.messages })
for name, handler in pairs(deadlock.messages) do messages[name] = handler end
messages.answer = rpc.answer

function messages:hello(stage, message)
  if stage.greeted then return "hello was said before" end
  stage.greeted = true
  if message.protocol ~= wire.PROTOCOL then
    local text = "speaks protocol %s, this host %d"
    stage:start_failed(text:format(tostring(message.protocol), wire.PROTOCOL))
    return nil
  end
  stage:send(self:init_message(stage))
end

function messages:ready(stage)
  if stage.state ~= "starting" then return "ready was said before" end
  if not self.opened then
    stage.state = "ready"
    return stage.wake()
  end
  restart.ready(self, stage)
  scale.ready(self, stage)
  requests.admit(self)
end

function messages.broken(_, stage, message)
  stage.broken = "did not start: " .. message.error
  stage:start_failed(stage.broken, message.traceback)
end

-- Starts a process for a stage: its first, or one after a death.
local function spawn(self, stage)
  local definition = stage.definition
  local fits, problem = wire.line(self:init_message(stage))
  if not fits then
    local code, text = problem:match "^(E%w+): (.*)$"
    return nil, ('%s: stage "%s": its configuration cannot cross to its process: %s'):format(code, stage.name, text)
  end
  stage.greeted, stage.broken, stage.generation = false, nil, stage.generation + 1
  local worker, why = supervisor.spawn {
    stage = definition.name, command = exec.command(definition), owner_fd = self.owner_fd,
    env = definition.env, cwd = definition.cwd,
    on_message = function(_, message)
      if message.type ~= "hello" and not stage.greeted then return "hello must come first" end
      return messages[message.type](self, stage, message)
    end,
    on_death = function(_, report) on_death(self, stage, report) end,
  }
  if not worker then return nil, why end
  stage.worker = worker
  return true
end

local function new_stage(self, definition, replica)
  local stage = setmetatable({
    name = definition.name, label = replicas.label(definition.name, replica), replica = replica, outstanding = 0,
    holding = 0,
    definition = definition, state = "starting", deaths = 0, generation = 0,
    asked = {},
  }, Stage)
  stage.wake = function() if self.start_ticket then sched.unpark(self.start_ticket) end end
  table.insert(self.stages[definition.name], stage)
  return stage
end

-- What an edge's ends must know: its number and limits, and the folder that its reader watches.
local function edge_spec(self, spec)
  local reader = spec.to == HOST and HOST or spec.to .. ".0"
  return {
    id = spec.id, from = spec.from, from_port = spec.from_port, to = spec.to, to_port = spec.to_port,
    window = spec.window, budget = spec.budget, encoding = exec.encoding(self.topology.stages, spec),
    dir = ("%s/%s"):format(self.dir, reader),
  }
end

-- An edge as one of its reader's replicas sees it.
local function own_end(spec, replica)
  local own = {}
  for key, value in pairs(spec) do own[key] = value end
  own.dir = edge.replica_dir(spec.dir, replica)
  return own
end

function Orchestrator:init_message(stage)
  local inputs, outputs = {}, {}
  for _, spec in ipairs(self.edges) do
    if spec.to == stage.name then inputs[#inputs + 1] = own_end(spec, stage.replica) end
    if spec.from == stage.name then outputs[#outputs + 1] = spec end
  end
  local definition = stage.definition
  return {
    type = "init", stage = stage.name, replica = stage.replica, module = definition.module, config = definition.config,
    namespace = self.namespace, inputs = inputs, outputs = outputs, joins = deadlock.possible(self.edges),
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
    for replica = 0, definition.replicas - 1 do
      assert(uv.fs_mkdir(("%s/%s.%d"):format(self.dir, definition.name, replica), tonumber("700", 8)))
    end
  end
  assert(uv.fs_mkdir(self.dir .. "/" .. HOST, tonumber("700", 8)))
  return true
end

local function open_outer_edges(self)
  for _, spec in ipairs(self.topology.edges) do self.edges[#self.edges + 1] = edge_spec(self, spec) end
  for _, spec in ipairs(self.edges) do
    if spec.from == HOST then
      self.inputs[#self.inputs + 1] = edge.writers(self.namespace, spec, function(req, why)
        local record = self.requests[req]
        if record then requests.finish(self, record, why:match "^(E%w+):" or "EPUT", why) end
      end)
    elseif spec.to == HOST then
      self.outlets[#self.outlets + 1] = edge.inbound(self.namespace, spec)
    end
  end
end

-- What the start still waits for: nil when all are ready, else the seconds that may be left to them, or a failure.
local function look_at_start(self, began)
  local least, failed
  replicas.each(self, function(stage)
    local left = stage.definition.start_timeout - (omni.now() - began)
    if stage.state == "broken" then failed = failed or { stage.failure, stage.traceback } end
    if stage.state ~= "starting" then return end
    least = math.min(least or math.huge, left)
    if left > 0 or failed then return end
    local text = 'ETIMEDOUT: stage "%s" was not ready within %g s'
    failed = { text:format(stage.name, stage.definition.start_timeout) }
  end)
  return least, failed
end

-- Suspends until every stage is ready. nil and the first failure otherwise.
local function await_ready(self)
  local began = omni.now()
  while true do
    local least, failed = look_at_start(self, began)
    if failed then return nil, failed[1], failed[2] end
    if not least then return true end
    self.start_ticket = sched.ticket "pipeline:start"
    sched.park("pipeline:start", least)
  end
end

local function open(self)
  local ok, why = open_namespace(self)
  if not ok then return nil, why end
  open_outer_edges(self)
  for _, definition in ipairs(self.topology.stages) do
    self.names[#self.names + 1], self.stages[definition.name] = definition.name, {}
    for replica = 0, definition.replicas - 1 do
      local stage = new_stage(self, definition, replica)
      local started, failure = spawn(self, stage)
      if not started then
        table.remove(self.stages[definition.name]) -- there is no process to end
        return nil, failure
      end
    end
  end
  local ready, failure, traceback = await_ready(self)
  self.opened = ready
  return ready, failure, traceback
end

-- Ends the workers, in order when all went well, and removes everything of the namespace.
local function close(self, orderly)
  self.closing = true
  self.router:fail_all "ECLOSED: the pipeline was stopped"
  restart.close(self)
  local stages = {}
  replicas.each(self, function(stage)
    if stage.worker then stages[#stages + 1] = stage end -- a new replica's may not have been started yet
  end)
  for _, stage in ipairs(stages) do
    if orderly then stage:send { type = "stop" } else stage.worker:kill() end
  end
  for _, stage in ipairs(stages) do stage.worker:wait(STOP_GRACE) end
  for _, list in ipairs { self.inputs, self.outlets } do
    for _, one in ipairs(list) do one:close() end
  end
  if self.namespace then
    owner.sweep(self.namespace)
    owner.note_namespace(self.namespace, false)
    uv.fs_close(self.owner_fd)
  end
end

local commands = setmetatable({ rpc = rpc.command }, { __index = requests.commands })

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
  replicas.each(self, function(stage) pids[stage.label] = stage.worker.pid end)
  self.outputs:put { "ready", self.namespace, pids }
  serve(self, inbox)
  close(self, true)
  self.outputs:put { "stopped" }
end

--- The main function of the orchestrator's state.
---@param topology omni.topology
---@param inbox userdata sink of commands; bound here
---@param outputs userdata sink bound to the front's state
---@param router omni.Router for questions to stages
return function(topology, inbox, outputs, router)
  inbox:bind()
  local self
  self = setmetatable({
    topology = topology, outputs = outputs, stages = {}, names = {}, edges = {}, inputs = {}, outlets = {},
    requests = {}, admission = admission.new(topology.max_requests, topology.queue),
    router = router, asked = 0, picks = {}, spawn = function(stage) return spawn(self, stage) end,
    add = function(definition, replica) return new_stage(self, definition, replica) end,
  }, Orchestrator)
  local ok, failure = xpcall(run, debug.traceback, self, inbox)
  if ok then return end
  log.error("the orchestrator failed", { error = failure })
  pcall(close, self, false)
  outputs:put { "broken", "ERUN: the orchestrator failed: " .. failure, false }
end
