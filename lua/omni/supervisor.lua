--- One worker process: started through the trampoline in a group of its own, watched until its end, killed with its
-- group. Runs on the orchestrator's loop; only `wait` suspends. Restarts belong here: whoever starts a worker
-- again calls `spawn` with the same options.

local json = require "omni.json"
local log = require "omni.log"
local owner = require "omni.native.owner"
local sched = require "omni.native.sched"
local uv = require "luv"
local wire = require "omni.wire"

local supervisor = {}

local LEVELS = { debug = true, info = true, warn = true, error = true }
local TAIL = 4096 -- bytes of stderr that are kept for the report of a death
local CUT = 65536 -- bytes that are logged of a line that is too long
local TAIL_WAIT = 100 -- ms that the tail is waited for after the exit: a grandchild may hold the pipe open for ever

---@class omni.supervisor.worker
---@field pid integer
---@field alive boolean messages may be sent
local Worker = {}
Worker.__index = Worker

local signal_names = {}
for name, number in pairs(uv.constants) do
  local known = signal_names[number]
  if name:find "^SIG" and (not known or name < known) then signal_names[number] = name end
end

--- The name of a signal: "SIGKILL".
---@param number integer
---@return string
function supervisor.signal_name(number)
  return signal_names[number] or "signal " .. number
end

--- The environment of a child: this process's and what is added, as NAME=value.
---@param extra? table<string, string>
---@return string[]
function supervisor.environment(extra)
  local all, list = uv.os_environ(), {}
  for key, value in pairs(extra or {}) do all[key] = value end
  for key, value in pairs(all) do list[#list + 1] = key .. "=" .. value end
  return list
end

--- The arguments of the trampoline that runs a command as a child tied to this process.
---@param command string[]
---@param same_group? boolean stay in this process's group, so that whoever kills it kills the child too
---@param control? boolean with same_group: the child keeps fd 3
---@return string[]
function supervisor.trampoline(command, same_group, control)
  local args = { "--child", tostring(uv.os_getpid()) }
  if same_group then args[#args + 1] = "--same-group" end
  if control then args[#args + 1] = "--control" end
  args[#args + 1] = "--"
  for _, word in ipairs(command) do args[#args + 1] = word end
  return args
end

-- A line of the worker's own log keeps its level and fields; anything else is a message.
local function relog(worker, line, level, stream)
  local fields = line:sub(1, 6) == '{"ts":' and json.decode(line)
  if type(fields) ~= "table" or not LEVELS[fields.level] then
    return log[level](line, { stage = worker.stage, pid = worker.pid, stream = stream })
  end
  local message, own = fields.msg, fields.level
  fields.ts, fields.msg, fields.level, fields.stage, fields.pid = nil, nil, nil, worker.stage, worker.pid
  log[own](message, fields)
end

-- Reads a pipe line by line into the log, keeping the tail of what came.
local function pipe_to_log(worker, pipe, level, stream)
  local feed = wire.lines(function(line) relog(worker, line, level, stream) end, function(beginning)
    relog(worker, beginning:sub(1, CUT) .. "... (cut: a line longer than the limit)", level, stream)
  end)
  pipe:read_start(function(_, bytes)
    if bytes and stream == "stderr" then worker.tail = (worker.tail .. bytes):sub(-TAIL) end
    feed(bytes)
    if not bytes then
      pipe:close()
      worker.open_pipes = worker.open_pipes - 1
      worker:settle()
    end
  end)
  worker.pipes[#worker.pipes + 1] = pipe
  worker.open_pipes = worker.open_pipes + 1
end

local function read_control(worker, control, on_message)
  local function broken(why)
    log.error("stage broke the control protocol", { stage = worker.stage, error = why })
    worker.cause = worker.cause or why
    worker:kill()
  end
  local feed = wire.lines(function(line)
    if worker.cause then return end
    local message, why = wire.from_stage(line)
    if not message then return broken(why) end
    local complaint = on_message(worker, message)
    if complaint then broken(wire.broken(complaint, line)) end
  end, function() broken("EPROTOCOL: a control message longer than the limit") end)
  control:read_start(function(_, bytes)
    if bytes then return feed(bytes) end
    worker:close_control()
    worker:kill() -- without its control channel it is dead, whatever still runs
  end)
end

---@class omni.supervisor.options
---@field stage string
---@field command string[] program and arguments
---@field owner_fd integer the owner lock, the child's fd 4
---@field env? table<string, string>
---@field cwd? string
---@field on_message fun(worker: omni.supervisor.worker, message: table): string? why the message is out of place
---@field on_death fun(worker: omni.supervisor.worker, report: string) once, when exit status and stderr are known

--- Starts a worker process.
---@param options omni.supervisor.options
---@return omni.supervisor.worker|nil worker
---@return string? error
---@return string? code
function supervisor.spawn(options)
  local worker = setmetatable({
    stage = options.stage, on_death = options.on_death, alive = false, tail = "", pipes = {}, open_pipes = 0,
  }, Worker)
  local function failed(why)
    return nil, ('EWORKER: stage "%s" could not be started: %s'):format(options.stage, why), "EWORKER"
  end
  local ends, why = uv.socketpair("stream", nil, { nonblock = true }, { nonblock = false })
  if not ends then return failed(why) end
  local null, missing = uv.fs_open("/dev/null", "r", 0)
  if not null then
    for _, fd in ipairs(ends) do uv.fs_close(fd) end
    return failed(missing)
  end
  local out, err, control = uv.new_pipe(), uv.new_pipe(), uv.new_pipe()
  local handle, pid = uv.spawn(uv.exepath(), {
    args = supervisor.trampoline(options.command),
    stdio = { null, out, err, ends[2], options.owner_fd },
    env = supervisor.environment(options.env), cwd = options.cwd,
  }, function(code, signal) worker:exited(code, signal) end)
  uv.fs_close(ends[2])
  uv.fs_close(null)
  control:open(ends[1])
  if not handle then
    for _, pipe in ipairs { out, err, control } do pipe:close() end
    return failed(pid)
  end
  worker.handle, worker.pid, worker.control, worker.alive = handle, pid, control, true
  owner.note_group(pid, true)
  pipe_to_log(worker, out, "info", "stdout")
  pipe_to_log(worker, err, "warn", "stderr")
  read_control(worker, control, options.on_message)
  return worker
end

--- Sends a control message; a no-op when the worker is gone.
---@param message table
function Worker:send(message)
  if self.control then self.control:write(wire.encode(message)) end
end

--- Kills the whole group.
function Worker:kill()
  self.alive = false
  if self.code or self.reported then return end -- reaped: its number may be somebody else's by now
  uv.kill(-self.pid, "sigkill")
  uv.kill(self.pid, "sigkill") -- it may not have made its group yet
end

function Worker:close_control()
  if self.control then self.control:close() end
  self.control, self.alive = nil, false
end

function Worker:exited(code, signal)
  self.code, self.signal = code, signal
  self.handle:close()
  uv.kill(-self.pid, "sigkill") -- what it left behind in its group
  self.alive = false
  self.timer = uv.new_timer()
  self.timer:start(TAIL_WAIT, 0, function() self:settle(true) end)
  self:settle()
end

local function last_lines(tail)
  local text = tail:gsub("%s+$", "")
  if #text > 600 then text = "..." .. text:sub(-600) end
  return text
end

--- How the worker ended: "died by signal SIGKILL; stderr: ...".
---@return string
function Worker:describe()
  local how = self.signal and self.signal ~= 0 and "died by signal " .. supervisor.signal_name(self.signal)
    or ("exited with code %d"):format(self.code)
  local text = self.cause and ("was killed after %s"):format(self.cause) or how
  local tail = last_lines(self.tail)
  return tail == "" and text or ("%s; stderr: %s"):format(text, tail)
end

-- Reports the death once exit status and the tail of stderr are there, or once the tail has been waited for.
function Worker:settle(late)
  if self.reported or not self.code or (self.open_pipes > 0 and not late) then return end
  self.reported = true
  owner.note_group(self.pid, false)
  self.timer:close()
  self:close_control()
  for _, pipe in ipairs(self.pipes) do
    if not pipe:is_closing() then pipe:close() end
  end
  self.on_death(self, self:describe())
  if self.waiter then sched.unpark(self.waiter) end
end

--- Suspends until the worker's end was reported; kills it when that takes longer.
---@param seconds number
function Worker:wait(seconds)
  for _, limit in ipairs { seconds, 5 } do
    if self.reported then return end
    self.waiter = sched.ticket "worker:wait"
    sched.park("worker:wait", limit)
    self.waiter = nil
    if not self.reported then self:kill() end
  end
end

return supervisor
