--- What runs inside a worker process: control messages come in on fd 3, each request runs as a task of its own, chunks
-- go from stage to stage through the edges.

local edge = require "omni.edge"
local errors = require "omni.errors"
local host = require "omni.native.host"
local log = require "omni.log"
local methods = require "omni.methods"
local omni = require "omni"
local ports = require "omni.ports"
local sink = require "omni.sink"
local uv = require "luv"
local waits = require "omni.waits"
local wire = require "omni.wire"

local worker = {}

local CONTROL, OWNER = 3, 4

local stage -- { name, module, instance, inputs, outputs } once init has run
local requests = {} -- by internal id: what is running, or was and is not forgotten

local function write(line)
  while #line > 0 do
    local written = assert(uv.fs_write(CONTROL, line, -1))
    line = line:sub(written + 1)
  end
end

local function send(message) write(wire.encode(message)) end

-- The frames of a traceback from the stage's first to its last: those around them are the host's.
local function own_frames(traceback)
  local lines, first, last = {}, nil, nil
  for line in traceback:gmatch "[^\n]+" do
    lines[#lines + 1] = line
    if line:find "^\t[^%[]" and not line:find "^\tbuiltin/" then first, last = first or #lines, #lines end
  end
  return first and "stack traceback:\n" .. table.concat(lines, "\n", first, last) or traceback
end

-- The handler of xpcall: keeps the message and where it came from.
local function traced(err)
  return { error = errors.text_of(err), traceback = errors.text_of(own_frames(debug.traceback("", 2))) }
end

-- Calls a stage's function. Without memory or stack the handler does not get to run: then there is only a text.
local function try(fn, ...)
  local ok, failure = xpcall(fn, traced, ...)
  if ok or type(failure) == "table" then return ok, failure end
  return false, { error = errors.text_of(failure) }
end

---@class omni.request what a stage's run is told about its request
---@field id string|nil the label that the user gave
---@field deadline number|nil end of the request's time, comparable with omni.now()
local Request = {}
Request.__index = Request

--- Seconds that are left until the deadline.
---@return number|nil seconds nil without a deadline
function Request:remaining()
  return self.deadline and math.max(0, self.deadline - omni.now())
end

--- Calls a function when the request is ended from outside (abort, deadline, another stage's failure) while run is
--- still at work, for instance to kill a program; at once where that has happened. It must not suspend.
---@param fn fun()
---@return fun() remove takes it back
function Request:on_end(fn)
  if self.ended then fn() else self.hooks[fn] = true end
  return function() self.hooks[fn] = nil end
end

-- Sends one chunk on one edge when there is room; raises what ended the request instead, or what is wrong with it.
local function sender(record)
  return function(out, data)
    local ok, why = true, record.ended
    if not why then ok, why = waits.credit(record, out, stage.on_stall) end
    if record.ended then error(record.ended, 0) end
    if ok then ok, why = out:send(record.req, data, false) end
    if not ok then error(why, 0) end
    waits.sent(record, out)
  end
end

local function report_failure(record, failure)
  local message, code = errors.text_of(failure.error)
  send { type = "failed", req = record.req, code = code or "ESTAGE", error = message, traceback = failure.traceback }
end

local function done_message(record)
  local message = { type = "done", req = record.req, seconds = omni.now() - record.began }
  message.chunks_in, message.chunks_out = waits.counts(record)
  return message
end

-- Runs the stage for one request. However run ends, its input is read on and its outputs get their terminal chunk.
local function run_request(record)
  if record.ended then return end
  record.began = omni.now()
  local ok, failure = try(stage.module.run, stage.instance, record.request, record.input, record.emit)
  record.finished = true
  if record.ended then return end
  if not ok then report_failure(record, failure) end
  for _, stream in ipairs(record.streams) do stream:drop() end
  for _, out in ipairs(record.outputs) do out:send(record.req, nil, true) end
  if ok then send(done_message(record)) end
end

-- Ends a request from outside: nothing is sent from now on; the inputs are closed by `forget`, when all senders are
-- silent, so that nothing can arrive after the last look.
local function end_request(record, message)
  record.ended, record.request.ended = message, true
  for _, stream in ipairs(record.streams) do stream:fail(message) end
  for _, out in ipairs(record.outputs) do out:forget(record.req) end
  for hook in pairs(record.request.hooks) do
    local ok, why = pcall(hook)
    if not ok then log.error("on_end hook failed", { stage = stage.name, error = errors.text_of(why) }) end
  end
end

local handlers = {}

function handlers.start(message)
  local record = { req = message.req, streams = {}, outputs = {} }
  record.request = setmetatable({ id = message.label, deadline = message.deadline, hooks = {} }, Request)
  for i, input in ipairs(stage.inputs) do record.streams[i] = input:open(message.req) end
  local broken
  for _, writers in ipairs(stage.outputs) do
    local made, out = pcall(writers.to, writers, message.to and message.to[writers.spec.to]) -- opens a folder at first
    if made then record.outputs[#record.outputs + 1] = out else broken = broken or out end
  end
  record.input, record.emit = ports.input(stage.inputs, record.streams), ports.emit(record.outputs, sender(record))
  waits.begin(record)
  requests[message.req] = record
  if not broken then return omni.spawn(run_request, record) end
  end_request(record, broken)
  report_failure(record, { error = broken })
end

function handlers.waits(message)
  local record = requests[message.req]
  if not record or record.ended or record.finished then return end
  local report = waits.report(record)
  report.type, report.req, report.inquiry = "waits", message.req, message.inquiry
  send(report)
end

-- A reader that others wait for takes more than its window.
function handlers.grow(message)
  local record = requests[message.req]
  for _, stream in ipairs(record and record.streams or {}) do
    if stream.inbound.spec.id == message.edge then stream:grow(message.chunks) end
  end
end

function handlers.abort(message)
  local record = requests[message.req]
  local was = not record and "unknown" or record.finished and "finished" or "running"
  if record and not record.ended then end_request(record, message.error) end
  send { type = "ended", req = message.req, was = was }
end

function handlers.forget(message)
  local record = requests[message.req]
  if not record then return end
  requests[message.req] = nil
  for _, stream in ipairs(record.streams) do stream:close(record.ended ~= nil) end
  for _, out in ipairs(record.outputs) do out:forget(record.req) end
end

function handlers.rpc(message)
  local context = { module = stage.module, instance = stage.instance, requests = requests }
  omni.spawn(function() write(methods.answer(context, message)) end)
end

function handlers.stop()
  local ok, failure = true, nil
  if stage and stage.module.close then ok, failure = try(stage.module.close, stage.instance) end
  if not ok then
    log.error("close failed", { stage = stage.name, error = failure.error, traceback = failure.traceback })
  end
  for _, list in ipairs { stage and stage.inputs or {}, stage and stage.outputs or {} } do
    for _, one in ipairs(list) do one:close() end
  end
  os.exit(ok and 0 or 1)
end

local function load_stage(message)
  local module = require(message.module)
  if type(module) ~= "table" or type(module.run) ~= "function" then
    error(('module "%s" is no stage: it must return a table with a function run'):format(message.module), 0)
  end
  local instance = module
  if module.open then instance = module.open(message.config or {}) or module end
  stage = { name = message.stage, module = module, instance = instance, inputs = {}, outputs = {} }
  if message.joins then stage.on_stall = function(record) send { type = "stalled", req = record.req } end end
end

local function open_edges(message)
  for i, spec in ipairs(message.inputs) do stage.inputs[i] = edge.inbound(message.namespace, spec) end
  for i, spec in ipairs(message.outputs) do
    stage.outputs[i] = edge.writers(message.namespace, spec, function(req, why)
      local record = requests[req]
      if not record or record.ended then return end
      end_request(record, why)
      report_failure(record, { error = why })
    end)
  end
end

function handlers.init(message)
  local ok, failure = try(function()
    load_stage(message)
    open_edges(message)
  end)
  if ok then return send { type = "ready" } end
  send { type = "broken", error = failure.error, traceback = failure.traceback }
  os.exit(1)
end

-- A terminal's Ctrl-C does not reach a worker's group, and a stray signal must not break the host's drain.
local function ignore_signals()
  for _, name in ipairs { "sigint", "sigterm" } do
    local watcher = uv.new_signal()
    watcher:start(name, function() end)
    watcher:unref()
  end
end

--- The worker's main: serves control messages until `stop`, or until the host is gone.
function worker.main()
  ignore_signals()
  host.cloexec(CONTROL)
  host.cloexec(OWNER)
  local control = sink.new {}
  assert(host.control(CONTROL, control))
  send { type = "hello", protocol = wire.PROTOCOL, build = host.facts().build, pid = uv.os_getpid() }
  while true do
    local lines = control:get_batch {}
    if not lines then os.exit(1) end -- the host is gone
    for _, line in ipairs(lines) do
      local message = assert(wire.decode(line))
      local handler = assert(handlers[message.type], "unknown control message")
      handler(message)
    end
  end
end

return worker
