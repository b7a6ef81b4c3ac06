--- The requests of a running pipeline: one ownership record each, from admission until every stage has let go of it.
--- All functions get the orchestrator, whose part this is; none suspends.

local errors = require "omni.errors"
local omni = require "omni"
local replicas = require "omni.replicas"
local restart = require "omni.restart"
local scale = require "omni.scale"
local uv = require "luv"

local DEATH_GRACE = 0.3 -- seconds that a torn chunk waits for the report of a death
local ABORT_GRACE = 1 -- seconds the stages may take to let go of a request before the user is told that they did not

local HANG_GRACES = 2 -- so many of these after a deadline a stage that has not let go is killed

local requests = {}

-- Stages of which the same process still runs that was given this request.
local function each_holder(self, record, fn)
  for _, name in ipairs(self.names) do
    local stage = record.on[name]
    if stage and stage.worker.alive and stage.generation == record.generations[name] then fn(stage, name) end
  end
end

-- Answers an abort: what each stage was doing, or that it has not answered in time.
local function answer_abort(self, record)
  if not record.abort_asked then return end
  record.abort_asked = nil
  for name in pairs(record.waiting) do record.was[name] = "no answer" end
  self.outputs:put { "aborted", record.id, { outcome = "aborted", stages = record.was } }
end

-- What happened to a request when, for its user's statistics.
local function note(record, event, stage)
  table.insert(record.timeline, { at = omni.now() - record.submitted_at, event = event, stage = stage })
end

-- Forgets a record when nobody has anything of it any more: then, and not before, chunks left over can be removed.
local function release(self, record)
  if record.released or next(record.waiting) then return end
  record.released = true
  self.requests[record.id] = nil
  if record.admitted then
    each_holder(self, record, function(stage) stage:send { type = "forget", req = record.id } end)
    for _, out in ipairs(record.inputs) do out:forget(record.id) end
    for name in pairs(record.on) do replicas.let_go(record, name) end
    scale.released(self, record)
  end
  for _, stream in ipairs(record.streams) do stream:close(record.failure ~= nil) end
  for _, timer in pairs(record.timers) do timer:close() end
  answer_abort(self, record)
  if self.on_idle and not next(self.requests) then self.on_idle() end
end

local function any_running(self)
  for _, record in pairs(self.requests) do
    if record.state ~= "ended" then return true end
  end
  return false
end

-- Stages have not let go of an ended request for a while. They may compute, for other requests too; but a stage that
-- makes nothing of a request past its deadline hangs, and when the pipeline only waits for them to stop, it does not
-- wait for ever.
local function on_grace(self, record)
  answer_abort(self, record)
  record.graces = record.graces + 1
  local hangs = record.code == "ETIMEDOUT" and record.graces >= HANG_GRACES
  if not hangs and (not self.stopping or any_running(self)) then return end
  for name in pairs(record.waiting) do
    record.on[name].worker.cause = hangs and "not letting go of a request past its deadline"
      or "leaving an abort unanswered"
    record.on[name].worker:kill()
  end
end

-- Ends a request once, whatever the cause. With a failure all stages are told, and `release` waits for their answers
-- (or their deaths): until then a sender may still be storing chunks.
local function finish(self, record, code, message, traceback)
  if record.state == "ended" then return end
  self.admission:leave(record)
  message = message and errors.text_of(message) -- it may have the end of a program's stderr, and goes to stages
  record.state = "ended"
  note(record, code and "failed" or "done")
  self.outputs:put {
    "ended", record.id, code or false, message or false, traceback or false, record.timeline, record.work,
  }
  record.failure, record.code, record.graces = message or nil, code, 0
  if code and record.admitted then requests.let_go(self, record, code, message) end
  release(self, record)
  requests.admit(self)
end

--- Tells all stages that a request has ended; `release` waits for their answers.
---@param self omni.orchestrator
---@param record table
---@param code string
---@param message string
function requests.let_go(self, record, code, message)
  for _, stream in ipairs(record.streams) do stream:drop() end
  each_holder(self, record, function(stage, name)
    record.waiting[name] = true
    stage:send { type = "abort", req = record.id, code = code, error = message }
  end)
  record.timers.grace = uv.new_timer()
  record.timers.grace:start(ABORT_GRACE * 1000, ABORT_GRACE * 1000, function() on_grace(self, record) end)
end

local function maybe_complete(self, record)
  if record.state == "running" and record.unread == 0 and not next(record.running) then finish(self, record) end
end

-- A chunk that is not whole means that its writer died over it: that is the cause, and known in a moment.
local function fail(self, record, code, message, traceback)
  if code ~= "ECORRUPT" then return finish(self, record, code, message, traceback) end
  if record.timers.torn then return end
  record.timers.torn = uv.new_timer()
  record.timers.torn:start(DEATH_GRACE * 1000, 0, function() finish(self, record, code, message, traceback) end)
end

-- Passes what arrived on a last edge on to the front, in one message.
local function on_output(self, record, outlet, stream)
  local items, base = {}, record.count[outlet] or 0
  for item in function() return stream:take() end do
    items[#items + 1] = { data = item.data, finished = item.finished or nil }
    if item.finished then record.unread = record.unread - 1 end
  end
  if stream.error then return fail(self, record, stream.error:match "^(E%w+):" or "ESTAGE", stream.error) end
  if #items == 0 or record.state ~= "running" then return end
  if base == 0 then note(record, "first chunk", stream.inbound.spec.from) end
  record.count[outlet] = base + #items
  local from = stream.inbound.spec
  self.outputs:put { "chunks", record.id, outlet, from.from, from.from_port, base, items }
  maybe_complete(self, record)
end

local function open_streams(self, record)
  for i, inbound in ipairs(self.outlets) do
    local stream = inbound:open(record.id)
    stream.on_items = function() on_output(self, record, i, stream) end
    record.streams[i] = stream
    if stream.error then return nil, stream.error end
  end
  return true
end

local function start_deadline(self, record, seconds)
  record.deadline = omni.now() + seconds
  record.timers.deadline = uv.new_timer()
  record.timers.deadline:start(math.ceil(seconds * 1000), 0, function()
    if record.state == "queued" then
      local text = "ETIMEDOUT: the deadline of %g s passed while the request waited to be admitted"
      return finish(self, record, "ETIMEDOUT", text:format(seconds))
    end
    local busy = {}
    for name in pairs(record.running) do busy[#busy + 1] = name end
    table.sort(busy)
    local text = "ETIMEDOUT: the deadline of %g s passed while %s had not finished"
    finish(self, record, "ETIMEDOUT", text:format(seconds, table.concat(busy, ", ")))
  end)
end

requests.finish = finish

-- Ids of all records, in an order that is the same in every run.
local function ids_of(self)
  local ids = {}
  for id in pairs(self.requests) do ids[#ids + 1] = id end
  table.sort(ids)
  return ids
end

-- ---- what the front asks for ----

-- Hands an admitted request to all stages.
local function begin(self, record)
  record.state, record.admitted = "running", true
  note(record, "admitted")
  local assigned, problem = replicas.assign(self, record)
  if not assigned then return finish(self, record, "ESTAGE", problem) end
  local data, label, to = record.data, record.label, replicas.readers(record)
  record.data = nil
  local opened, broken = open_streams(self, record)
  if not opened then return finish(self, record, broken:match "^(E%w+):" or "ESTAGE", broken) end
  for _, name in ipairs(self.names) do
    record.running[name] = true
    record.on[name]:send { type = "start", req = record.id, label = label, deadline = record.deadline, to = to }
  end
  for i, writers in ipairs(self.inputs) do
    local made, out = pcall(writers.to, writers, to and to[writers.spec.to]) -- opens a directory at first
    if not made then return finish(self, record, tostring(out):match "^(E%w+):" or "ESTAGE", tostring(out)) end
    record.inputs[i] = out
  end
  for _, out in ipairs(record.inputs) do
    local ok, why, code = out:send(record.id, data, true)
    if not ok then return finish(self, record, code, why) end
  end
end

--- Begins the requests whose turn it is.
---@param self omni.orchestrator
function requests.admit(self)
  local state, reason = restart.state(self)
  if state == "down" then
    for record in function() return self.admission:next_queued() end do finish(self, record, "EWORKER", reason) end
  end
  if state ~= "ready" then return end
  for record in function() return self.admission:next() end do begin(self, record) end
end

---@type table<string, fun(self: omni.orchestrator, message: table)>
local commands = {}

local function refuse(self, id, code, text)
  return self.outputs:put { "ended", id, code, text, false, {}, {} }
end

function commands:submit(message)
  local record = {
    id = message.id, label = message.label, data = message.data, submitted_at = message.at, state = "queued",
    running = {}, waiting = {}, was = {}, streams = {}, count = {}, timers = {}, timeline = {}, work = {},
    generations = {}, on = {}, left = {}, inputs = {},
    unread = #self.outlets,
  }
  if self.stopping then return refuse(self, record.id, "ECLOSED", "ECLOSED: the pipeline takes no more requests") end
  local state, reason = restart.state(self)
  if state == "down" then return refuse(self, record.id, "EWORKER", reason) end
  local outcome, why = self.admission:enter(record, state == "hold")
  if not outcome then return refuse(self, record.id, "EFULL", why) end
  self.requests[record.id] = record
  if message.deadline then start_deadline(self, record, message.deadline) end
  if outcome == "in" then begin(self, record) end
end

-- The front's reader took chunks: only this gives the stage before an outlet its credit back.
function commands:consumed(message)
  local record = self.requests[message.id]
  if record and record.admitted then record.streams[message.outlet]:consumed(message.n) end
end

function commands:abort(message)
  local record = self.requests[message.id]
  if not record or record.state == "ended" then
    return self.outputs:put { "aborted", message.id, { outcome = "already finished", stages = {} } }
  end
  record.abort_asked = true
  finish(self, record, "EABORTED", "EABORTED: aborted by its user")
end

function commands:stop(message)
  self.stopping = true
  if message.abort then
    for _, id in ipairs(ids_of(self)) do
      finish(self, self.requests[id], "EABORTED", "EABORTED: the pipeline was closed")
    end
  end
end
commands.scale = scale.command
requests.commands = commands

-- ---- what stages say; for requests that have ended all are no-ops ----

---@type table<string, fun(self: omni.orchestrator, stage: omni.orchestrator.stage, message: table)>
local messages = {}

function messages:done(stage, message)
  local record = self.requests[message.req]
  if not record or record.on[stage.name] ~= stage or not record.running[stage.name] then return end
  record.running[stage.name] = nil
  replicas.let_go(record, stage.name)
  restart.works(stage)
  record.work[stage.name] = {
    chunks_in = message.chunks_in, chunks_out = message.chunks_out, seconds = message.seconds,
  }
  note(record, "done", stage.name)
  maybe_complete(self, record)
end

function messages:failed(stage, message)
  local record = self.requests[message.req]
  if not record or record.on[stage.name] ~= stage or record.state ~= "running" then return end
  local text = ('%s: stage "%s" failed: %s'):format(message.code, stage.name, (message.error:gsub("^E%w+: ", "")))
  fail(self, record, message.code, text, message.traceback)
end

function messages:ended(stage, message)
  local record = self.requests[message.req]
  if not record or record.on[stage.name] ~= stage or record.state == "running" then return end
  record.was[stage.name], record.waiting[stage.name] = message.was, nil
  release(self, record)
end
requests.messages = messages

--- A stage's worker has died: the requests that it held fail; those that it was done with go on.
---@param self omni.orchestrator
---@param stage omni.orchestrator.stage
---@param report string how it died
function requests.stage_died(self, stage, report)
  for _, id in ipairs(ids_of(self)) do
    local record = self.requests[id]
    local holds = record.on[stage.name] == stage
    if holds and record.state == "running" and record.running[stage.name] then
      finish(self, record, "EWORKER", ('EWORKER: stage "%s" %s'):format(stage.name, report))
    elseif holds and record.state == "ended" then
      record.waiting[stage.name] = nil
      release(self, record)
    end
  end
end

return requests
