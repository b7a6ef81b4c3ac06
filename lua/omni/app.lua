--- A running pipeline as its user sees it: requests go in, chunks come out. It talks to the orchestrator's state
--- through two sinks and holds no process, file or segment itself.

local check = require "omni.check"
local meters = require "omni.meters"
local json = require "omni.json"
local omni = require "omni"
local router = require "omni.router"
local rpc = require "omni.rpc"
local sched = require "omni.native.sched"
local sink = require "omni.sink"
local wire = require "omni.wire"

local app = {}

local live = {} -- apps of this state that were not stopped yet

---@class omni.app
---@field name string
local App = {}
App.__index = App

---@class omni.app.request
---@field id string the label given at submit, or the internal id
---@field state "running"|"done"|"failed"|"aborted"
local Request = {}
Request.__index = Request

local LONGEST_ID = 64 * 1024
local LONGEST_TIME = 1e9 -- seconds; timers count milliseconds in integers

local function crosses(id)
  if type(id) ~= "string" then return true end
  if #id > LONGEST_ID then return false, ("must be at most %d bytes long, not %d"):format(LONGEST_ID, #id) end
  return json.encode(id) ~= nil, "must be UTF-8"
end

--- Rules for what a request may say of itself, for whoever reads requests from elsewhere.
---@type table<string, omni.check.rule>
app.RULES = {
  id = { type = { "string", "number", "nil" }, check = crosses },
  deadline = {
    type = { "positive", "nil" },
    check = function(v) return v <= LONGEST_TIME, "must be at most 1e9 seconds; leave it out for none" end,
  },
}

local SUBMIT = { id = app.RULES.id, data = {}, deadline = app.RULES.deadline }

-- Wakes all tasks that wait under this name.
local function wake(holder, name)
  local tickets = holder[name] or {}
  holder[name] = nil
  for _, ticket in ipairs(tickets) do sched.unpark(ticket) end
end

-- Suspends until `wake` is called for the same holder and name, or until the timeout.
local function wait(self, holder, name, what, timeout)
  holder[name] = holder[name] or {}
  table.insert(holder[name], sched.ticket(what))
  sched.park(what, timeout, self.outputs)
end

local events = {}

function events.chunks(self, id, outlet, stage, port, base, items)
  local request = self.requests[id]
  if not request then return end
  self.meters.chunks:add(#items)
  if request.last == 0 then
    request.first_after = omni.now() - request.submitted_at
    self.meters.first_chunk:observe(request.first_after * 1e6)
  end
  for i, item in ipairs(items) do
    if type(item.data) == "string" then request.bytes = request.bytes + #item.data end
    request.last = request.last + 1
    request.queue[request.last] = {
      stage = stage, port = port, index = base + i - 1, data = item.data, finished = item.finished == true,
      outlet = outlet,
    }
  end
  if self.stopping then request:give_back(outlet, #items) end
  wake(request, "reader")
end

function events.ended(self, id, code, message, traceback, timeline, work)
  local request = self.requests[id]
  if not request then return end
  self.requests[id] = nil
  request.state = code == "EABORTED" and "aborted" or code and "failed" or "done"
  self.meters[request.state]:add(1)
  request.code, request.error, request.traceback = code or nil, message or nil, traceback or nil
  request.ended_at, request.timeline, request.work = omni.now(), timeline or {}, work or {}
  wake(request, "reader")
end

function events.aborted(self, id, answer)
  local request = self.aborting[id]
  self.aborting[id] = nil
  if not request then return end
  request.answer = answer
  wake(request, "aborters")
end

function events.stage(self, stage, what, detail)
  self.down[stage] = what == "down" and detail or nil
  if what == "removed" then self.pids[stage] = nil end
  if what == "added" or what == "restarted" then self.pids[stage] = detail end
  if what == "restarted" then self.restarts[stage] = (self.restarts[stage] or 0) + 1 end
end

function events.scaled(self, id, why)
  local job = self.scaling[id]
  self.scaling[id] = nil
  job.answered, job.error = true, why or nil
  wake(job, "waiters")
end

local function fail_all(self, message, code)
  for id in pairs(self.requests) do events.ended(self, id, code, message, false) end
end

function events.broken(self, message)
  self.failure = message
  fail_all(self, message, message:match "^(E%w+):" or "ERUN")
end

function events.stopped(self)
  self.stopped = true
  fail_all(self, "ECLOSED: the pipeline was stopped", "ECLOSED")
end

local ENDED = "ERUN: the orchestrator ended before its time; why is on stderr"

-- When the orchestrator's state ends, however it does, nothing more will come.
local function watch(thread, outputs)
  thread:join()
  outputs:close()
end

-- Hands the orchestrator's messages to the requests, batch by batch.
local function pump(self)
  while not self.stopped and not self.failure do
    local batch = self.outputs:get_batch {}
    if not batch then break end
    for _, message in ipairs(batch) do
      events[message[1]](self, unpack(message, 2))
    end
  end
  self.watcher:join()
  if not self.stopped and not self.failure then events.broken(self, ENDED) end
  self.router:fail_all(self.failure or "ECLOSED: the pipeline was stopped")
  live[self] = nil
  self.pumped = true
  wake(self, "stoppers")
  for _, job in pairs(self.scaling) do wake(job, "waiters") end
  for _, request in pairs(self.aborting) do wake(request, "aborters") end
end

--- Starts the processes of a topology; returns when all stages are ready. Suspends.
---@param topology omni.topology
---@return omni.app|nil app
---@return string? error
---@return string? code
---@return string? traceback where a stage failed to start
function app.start(topology)
  local outputs, inbox = sink.new {}, sink.new { bind = false }
  local questions = router.new()
  local thread = omni.thread("omni.orchestrator", topology, inbox, outputs, questions)
  local watcher = omni.spawn(watch, thread, outputs)
  local first = outputs:get_batch { max_items = 1 }
  local message = first and first[1] or { "broken", ENDED, false }
  if message[1] == "broken" then
    watcher:join()
    return nil, message[2], message[2]:match "^(E%w+):", message[3] or nil
  end
  local self = setmetatable({
    name = topology.name, outputs = outputs, inbox = inbox, watcher = watcher,
    namespace = message[2], pids = message[3],
    router = questions, next_call = 0,
    order = topology.order, scaling = {},
    down = {}, restarts = {}, requests = {}, aborting = {}, next_id = 0, meters = meters.new(topology.name, message[2]),
  }, App)
  live[self] = true
  omni.spawn(pump, self)
  return self
end

--- Stops all apps of this state; the command line does so when a script's main chunk has ended.
function app.stop_all()
  for self in pairs(live) do self:stop() end
end

--- Hands a request in. Never waits; what goes wrong with the request is told by its chunks.
---@param options {data: any, id?: string|number, deadline?: number} id is a label and may repeat; deadline in seconds
---@return omni.app.request
function App:submit(options)
  options = check.table(options, SUBMIT, "app:submit")
  self.next_id = self.next_id + 1
  local key = "r" .. self.next_id
  local request = setmetatable({
    app = self, key = key, id = options.id == nil and key or tostring(options.id), state = "running",
    queue = {}, first = 1, last = 0, bytes = 0, submitted_at = omni.now(),
  }, Request)
  local ok, _, code = self.inbox:put {
    type = "submit", id = key, label = request.id, data = options.data, deadline = options.deadline,
    at = request.submitted_at,
  }
  self.meters.submitted:add(1)
  self.requests[key] = request
  if self.failure or not ok then
    events.ended(self, key, code or "ECLOSED", self.failure or "ECLOSED: the pipeline was stopped", false)
  end
  return request
end

-- Tells the orchestrator that the user took chunks, so that the last stage may send as many more.
function Request:give_back(outlet, n)
  self.app.inbox:put { type = "consumed", id = self.key, outlet = outlet, n = n }
end

--- The next chunk; suspends.
---@param options? {timeout?: number}
---@return {stage: string, port: string, index: integer, data: any, finished: boolean}|nil chunk nil at the end
---@return string? error how the request failed, or ETIMEDOUT
---@return string? code
function Request:next(options)
  local timeout = options and options.timeout
  local deadline = timeout and omni.now() + timeout
  while true do
    local chunk = self.queue[self.first]
    if chunk then
      self.queue[self.first] = nil
      self.first = self.first + 1
      if self.state == "running" and not self.app.stopping then self:give_back(chunk.outlet, 1) end
      return chunk
    end
    if self.state ~= "running" then return nil, self.error, self.code end
    if self.reading then check.misuse("request:next: another task waits for this request's chunks") end
    local left = deadline and math.max(0, deadline - omni.now())
    if left == 0 then return nil, "ETIMEDOUT: no chunk came in time", "ETIMEDOUT" end
    self.reading = true
    wait(self.app, self, "reader", "request:next", left)
    self.reading = false
  end
end

--- For loops: `for chunk in request:chunks() do … end` over the chunks that carry data. Raises when the request failed.
---@return fun(): table|nil
function Request:chunks()
  return function()
    while true do
      local chunk, why = self:next()
      if why then error(why, 0) end
      if not chunk or chunk.data ~= nil then return chunk end
    end
  end
end

--- Ends the request wherever it is. Suspends until the stages confirmed, or did not within a second. Idempotent.
---@return {outcome: string, stages: table<string, string>} answer outcome is "aborted" or "already finished"
function Request:abort()
  if self.answer then return self.answer end
  if self.state == "done" or self.state == "failed" then return { outcome = "already finished", stages = {} } end
  if not self.app.aborting[self.key] then
    self.app.aborting[self.key] = self
    self.app.inbox:put { type = "abort", id = self.key }
  end
  while not self.answer and not self.app.pumped do
    wait(self.app, self, "aborters", "request:abort")
  end
  return self.answer or { outcome = "already finished", stages = {} }
end

---@class omni.app.request.stats times are seconds after the submission
---@field state string
---@field seconds number until the end, or until now
---@field first_chunk number|nil
---@field chunks integer that came, terminal ones included
---@field bytes integer of those that are strings
---@field work table<string, {chunks_in: integer, chunks_out: integer, seconds: number}> of stages that have finished,
---once the request has ended
---@field timeline {at: number, event: string, stage: string|nil}[] admitted, first chunk, done, failed; at the end

--- What happened to the request.
---@return omni.app.request.stats
function Request:stats()
  return {
    state = self.state, seconds = (self.ended_at or omni.now()) - self.submitted_at, first_chunk = self.first_after,
    chunks = self.last, bytes = self.bytes, work = self.work or {}, timeline = self.timeline or {},
  }
end

local RPC = {
  timeout = { type = "positive", default = 5 },
  replica = {
    type = { "integer", "string", "nil" },
    check = function(v) return v == "all" or type(v) == "number" and v >= 0, 'must be a number from 0 on or "all"' end,
  },
}

local function check_stage(self, stage, where)
  check.argument(stage, "string", where .. ": the stage's name")
  for _, name in ipairs(self.order) do
    if name == stage then return end
  end
  check.misuse(('%s: there is no stage "%s"%s'):format(where, stage, check.hint(stage, self.order)))
end

-- Raises where a question cannot be asked at all; nil and why where it is too long.
local function check_question(self, stage, method, args)
  check_stage(self, stage, "app:rpc")
  check.argument(method, "string", "app:rpc: the method's name")
  local line, why, code = wire.line { type = "rpc", id = 2 ^ 53, method = method, args = args }
  if line then return true end
  if code == "E2BIG" then return nil, why, code end
  check.misuse("app:rpc: the arguments cannot cross to the stage: " .. why)
end

-- Answers for all replicas are collected by the orchestrator until the deadline, and are on their way after it.
local ON_THE_WAY = 1

--- Asks a stage: one of its processes, or with `replica = "all"` each. Suspends. One deadline covers everything.
---@param stage string
---@param method string of the stage's module, or one that every stage has: stats, health, log_level
---@param args? any plain data
---@param options? {timeout?: number, replica?: integer|"all"} timeout in seconds, 5 by default
---@return any value; with "all" an array of {replica, value} or {replica, error, code}
---@return string? error "ECODE: text"
---@return string? code
function App:rpc(stage, method, args, options)
  options = check.table(options or {}, RPC, "app:rpc")
  local fits, problem, problem_code = check_question(self, stage, method, args)
  if not fits then return nil, problem, problem_code end
  self.next_call = self.next_call + 1
  local id, timeout = self.next_call, options.timeout
  local deadline = omni.now() + timeout
  local value, err, code = self.router:call({ "rpc", id }, function()
    local ok, why = self.inbox:put {
      type = "rpc", id = id, stage = stage, method = method, args = args, replica = options.replica,
      timeout = timeout, deadline = deadline,
    }
    if not ok then self.router:fail({ "rpc", id }, why) end
  end, options.replica == "all" and timeout + ON_THE_WAY or timeout)
  if code == "ETIMEDOUT" then err = rpc.no_answer(stage, method, timeout) end
  return value, err, code
end

local function valid_number(n)
  return type(n) == "number" and n % 1 == 0 and n >= 1 and n <= 64
end

--- Gives a stage more or fewer processes. Suspends until new ones are ready. Those that are too many are given no more
--- requests and end when those that they hold have; no request is lost.
---@param stage string
---@param n integer 1 to 64
---@return true|nil ok
---@return string? error
---@return string? code
function App:scale(stage, n)
  check_stage(self, stage, "app:scale")
  if not valid_number(n) then check.misuse("app:scale: a stage has 1 to 64 processes, not " .. tostring(n)) end
  self.next_call = self.next_call + 1
  local id, job = self.next_call, {}
  self.scaling[id] = job
  local ok, why, code = self.inbox:put { type = "scale", id = id, stage = stage, replicas = n }
  if not ok then return nil, why, code end
  while not job.answered and not self.pumped do wait(self, job, "waiters", "app:scale") end
  if not job.answered then return nil, "ECLOSED: the pipeline was stopped", "ECLOSED" end
  if job.error then return nil, job.error, job.error:match "^(E%w+):" end
  return true
end

-- Chunks that nobody reads must not keep the drain waiting: from now on they are kept here and credit is given at once.
local function open_windows(self)
  for _, request in pairs(self.requests) do
    for i = request.first, request.last do request:give_back(request.queue[i].outlet, 1) end
  end
end

--- Ends the pipeline: takes no more requests, lets those in flight finish (or aborts them), ends the processes and
--- removes all that they shared. Suspends. Idempotent. Chunks not read yet stay readable.
---@param options? {abort?: boolean}
function App:stop(options)
  options = check.table(options or {}, { abort = { type = { "boolean", "nil" } } }, "app:stop")
  if not self.pumped then
    if not self.stopping then
      self.stopping = true
      open_windows(self)
    end
    self.inbox:put { type = "stop", abort = options.abort }
    while not self.pumped do wait(self, self, "stoppers", "app:stop") end
  end
end

--- The same as stop.
App.close = App.stop

---@class omni.app.stats
---@field submitted integer requests so far
---@field done integer
---@field failed integer
---@field aborted integer
---@field running integer
---@field chunks integer that came out
---@field workers table<string, integer> process id of each stage
---@field restarts table<string, integer> how often each stage got a new process
---@field down table<string, string> stages that take no requests, and why
---@field late_answers integer of stages, to questions that were over
---@field namespace string

--- What happened so far.
---@return omni.app.stats
function App:stats()
  local stats = { workers = {}, restarts = {}, down = {}, namespace = self.namespace }
  stats.late_answers = self.router:stats().late_results
  for name, pid in pairs(self.pids) do
    stats.workers[name], stats.restarts[name], stats.down[name] = pid, self.restarts[name] or 0, self.down[name]
  end
  for _, name in ipairs { "submitted", "done", "failed", "aborted", "chunks" } do
    stats[name] = self.meters[name]:value()
  end
  stats.running = stats.submitted - stats.done - stats.failed - stats.aborted
  return stats
end

return app
