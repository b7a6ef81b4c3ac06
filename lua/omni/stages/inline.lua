--- A stage that stands before a program which speaks the stage protocol and gets its data there too, as JSON lines on
--- fd 3: for a program that cannot or need not reach shared memory, such as a shell script. Declared as
--- `exec = { "sh", "x.sh" }, inline = true`.
---
--- One program serves all requests. Its end is the worker's; what it says wrongly is shown and ends both.

local base64 = require "omni.base64"
local json = require "omni.json"
local omni = require "omni"
local sched = require "omni.native.sched"
local supervisor = require "omni.supervisor"
local uv = require "luv"
local wire = require "omni.wire"

local inline = {}

-- Bytes that may wait here for their requests; beyond them the program is not read until some were sent on.
local READ_AHEAD = 1024 * 1024

---@class omni.stages.inline
local Program = {}
Program.__index = Program

local function wake(self, name)
  local ticket = self[name]
  self[name] = nil
  if ticket then sched.unpark(ticket) end
end

local function wait(self, name, what)
  self[name] = sched.ticket(what)
  sched.park(what)
end

-- Suspends until the program took the message (or is gone), so that what it does not read stays on the edge.
function Program:send(message)
  local done
  local record = {}
  self.control:write(wire.encode(message), function()
    done = true
    wake(record, "writer")
  end)
  if not done then wait(record, "writer", "inline:send") end
end

-- The program broke the protocol: its line is the last that the host reads of this process.
local function broken(why)
  io.stderr:write(why, "\n")
  os.exit(1)
end

local function read_again(self)
  if self.reading or self.waiting > READ_AHEAD or self.control:is_closing() then return end
  self.reading = true
  self.control:read_start(function(_, bytes)
    if bytes then self.feed(bytes) end
  end)
end

local function keep(self, record, message, size)
  record.last = record.last + 1
  record.queue[record.last], record.sizes[record.last] = message, size
  self.waiting = self.waiting + size
  if self.reading and self.waiting > READ_AHEAD then
    self.reading = false
    self.control:read_stop()
  end
  wake(record, "reader")
end

local function take(self, record)
  while record.first > record.last and not record.ended do wait(record, "reader", "inline:answer") end
  if record.ended then return nil end
  local message = record.queue[record.first]
  self.waiting = self.waiting - record.sizes[record.first]
  record.queue[record.first], record.sizes[record.first] = nil, nil
  record.first = record.first + 1
  read_again(self)
  return message
end

-- Lets go of a request: what still waits for it, and what may yet come, is dropped.
local function drop(self, record)
  for i = record.first, record.last do self.waiting = self.waiting - record.sizes[i] end
  record.first = record.last + 1
  self.requests[record.key] = nil
  read_again(self)
end

local said = {} -- what a program says of itself

function said.hello(self, message, line)
  if self.state ~= "starting" then broken(wire.broken("hello was said before", line)) end
  if message.protocol ~= wire.PROTOCOL then
    broken(("EPROTOCOL: it speaks protocol %s, this host %d"):format(tostring(message.protocol), wire.PROTOCOL))
  end
  self.state = "greeted"
  omni.spawn(self.send, self, { type = "init", config = self.config })
end

function said.ready(self, _, line)
  if self.state ~= "greeted" then broken(wire.broken("ready comes once, after hello", line)) end
  self.state = "ready"
  wake(self, "opener")
end

function said.broken(self, message)
  self.state, self.failure = "broken", message.error
  wake(self, "opener")
end

local function on_line(self, line)
  local message, why = wire.from_stage(line, true)
  if not message then return broken(why) end
  if said[message.type] then return said[message.type](self, message, line) end
  if self.state ~= "ready" then return broken(wire.broken("hello and ready must come first", line)) end
  local record = self.requests[message.req]
  if record then keep(self, record, message, #line) end
end

-- This process ends as its program did, so that the host reports it as it would any stage.
local function on_exit(code, signal)
  if signal ~= 0 then uv.kill(uv.os_getpid(), signal) end
  os.exit(code)
end

local function start(self, command)
  local ends = assert(uv.socketpair("stream", nil, { nonblock = true }, { nonblock = false }))
  local null = assert(uv.fs_open("/dev/null", "r", 0))
  self.control = uv.new_pipe()
  self.control:open(ends[1])
  local why
  self.handle, why = uv.spawn(uv.exepath(), {
    args = supervisor.trampoline(command, true, true), stdio = { null, 1, 2, ends[2] },
  }, function(code, signal)
    self.handle:close()
    if not self.stopping then omni.spawn(on_exit, code, signal) end
    wake(self, "closer")
  end)
  uv.fs_close(ends[2])
  uv.fs_close(null)
  if not self.handle then error(("EWORKER: %s could not be started: %s"):format(command[1], why), 0) end
  self.feed = wire.lines(function(line) on_line(self, line) end, function()
    broken "EPROTOCOL: a control message longer than the limit"
  end)
  read_again(self)
end

function inline.open(config)
  local self = setmetatable({
    config = config.config, state = "starting", requests = {}, next = 0, waiting = 0,
  }, Program)
  start(self, config.command)
  while self.state == "starting" or self.state == "greeted" do wait(self, "opener", "inline:open") end
  if self.state == "broken" then error(self.failure, 0) end
  return self
end

local function data_message(key, data)
  local message = { type = "data", req = key, data = data }
  if type(data) == "string" and not json.encode(data) then
    message.data, message.data_b64 = nil, base64.encode(data)
  end
  return message
end

-- The input goes in from a task of its own, while the request's own task sends the answers on.
local function feed(self, record, input)
  local ok, why = pcall(function()
    for data in input do
      if self.requests[record.key] ~= record then return end
      self:send(data_message(record.key, data))
    end
    if self.requests[record.key] == record then self:send { type = "end", req = record.key } end
  end)
  if ok or record.ended then return end
  record.ended = tostring(why)
  wake(record, "reader")
end

local function data_of(message)
  if message.data_b64 == nil then return message.data end
  local bytes = type(message.data_b64) == "string" and base64.decode(message.data_b64)
  return bytes or error("EPROTOCOL: data_b64 is not base64", 0)
end

local function answer(self, record, emit)
  for message in function() return take(self, record) end do
    if message.type == "done" then return end
    if message.type == "failed" then error(("%s: %s"):format(message.code, message.error:gsub("^E%w+: ", "")), 0) end
    if message.type == "data" then emit(data_of(message)) end
  end
  error(record.ended, 0)
end

function inline.run(self, request, input, emit)
  self.next = self.next + 1
  local key = "r" .. self.next
  local record = { key = key, queue = {}, sizes = {}, first = 1, last = 0 }
  self.requests[key] = record
  request:on_end(function()
    record.ended = "ECLOSED: the request has ended"
    if self.requests[key] then omni.spawn(self.send, self, { type = "abort", req = key, error = record.ended }) end
    wake(record, "reader")
  end)
  self:send { type = "start", req = key, label = request.id, deadline = request.deadline }
  omni.spawn(feed, self, record, input)
  local ok, why = pcall(answer, self, record, emit)
  drop(self, record)
  if not ok then error(why, 0) end
end

function inline.close(self)
  self.stopping = true
  self:send { type = "stop" }
  self.control:close() -- the end of fd 3 ends programs that do not know stop
  if not self.handle:is_closing() then wait(self, "closer", "inline:close") end
end

return inline
