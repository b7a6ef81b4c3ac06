--- Unix programs as a stage uses them: started through the trampoline in the worker's own group, fed and read with
--- backpressure, killed with their descendants when the request ends.

local check = require "omni.check"
local omni = require "omni"
local sched = require "omni.native.sched"
local supervisor = require "omni.supervisor"
local uv = require "luv"

local program = {}

local READ_AHEAD = 64 * 1024 -- bytes of output that wait unread before the pipe is left alone
local TAIL = 4096

---@class omni.program
local Program = {}
Program.__index = Program

local OPTIONS = {
  command = { type = "strings", check = function(v) return #v > 0, "must name a program" end },
  input = { type = { "string", "nil" } },
  env = { type = { "map", "nil" } },
  cwd = { type = { "string", "nil" } },
  request = { type = { "table", "nil" } },
}

--- Where a program of this name is found, as exec would.
---@param name string
---@param cwd? string
---@return string|nil path
function program.find(name, cwd)
  local function executable(path)
    local stat = uv.fs_stat(path)
    return stat and stat.type == "file" and uv.fs_access(path, "X") and path
  end
  if name:find("/", 1, true) then return executable(name:sub(1, 1) == "/" and name or (cwd or ".") .. "/" .. name) end
  for folder in (os.getenv "PATH" or "/usr/bin:/bin"):gmatch "[^:]+" do
    local path = executable(folder .. "/" .. name)
    if path then return path end
  end
end

local function wake(self, name)
  local ticket = self[name]
  self[name] = nil
  if ticket then sched.unpark(ticket) end
end

local function wait(self, name, what)
  self[name] = sched.ticket(what)
  sched.park(what)
end

local function watch_stderr(self)
  self.stderr:read_start(function(_, bytes)
    if not bytes then
      self.stderr_ended = true
      return wake(self, "ender")
    end
    self.tail = (self.tail .. bytes):sub(-TAIL)
    io.stderr:write(bytes)
  end)
end

--- Starts a program. Its stdin stays open until `close_input`.
---@param options {command: string[], env?: table, cwd?: string, request?: omni.request} the request that it works for
---@return omni.program|nil program
---@return string? error
---@return string? code
function program.start(options)
  options = check.table(options, OPTIONS, "omni.program.start")
  local self = setmetatable({ name = options.command[1], tail = "", parts = {}, size = 0, writes = 0 }, Program)
  self.stdin, self.stdout, self.stderr = uv.new_pipe(), uv.new_pipe(), uv.new_pipe()
  local problem, code = "it is not found", "ENOENT"
  if program.find(self.name, options.cwd) then
    local handle, pid, errno = uv.spawn(uv.exepath(), {
      args = supervisor.trampoline(options.command, true), stdio = { self.stdin, self.stdout, self.stderr },
      env = supervisor.environment(options.env), cwd = options.cwd,
    }, function(status, signal)
      self.code, self.signal = status, signal
      self.handle:close()
      wake(self, "ender")
    end)
    if handle then self.handle, self.pid = handle, pid else problem, code = pid, errno end
  end
  if not self.handle then
    self:close()
    return nil, ('%s: program "%s" could not be started: %s'):format(code, self.name, problem), code
  end
  if options.request then self.release = options.request:on_end(function() self:kill() end) end
  watch_stderr(self)
  if options.input then self.stdin:write(options.input) end
  return self
end

--- Writes to the program's stdin; suspends until the program took it.
---@param bytes string
---@return boolean ok false when the program reads no more
function Program:write(bytes)
  if self.stdin:is_closing() then return false end
  local done, failed
  self.stdin:write(bytes, function(err)
    done, failed = true, err
    wake(self, "writer")
  end)
  while not done do wait(self, "writer", "program:write") end
  return not failed
end

--- Ends the program's input, after what was written.
function Program:close_input()
  if self.stdin:is_closing() then return end
  self.stdin:shutdown(function()
    if not self.stdin:is_closing() then self.stdin:close() end
  end)
end

local function on_output(self, bytes)
  if bytes then
    self.parts[#self.parts + 1] = bytes
    self.size = self.size + #bytes
    if self.size >= READ_AHEAD then
      self.stdout:read_stop()
      self.reading = false
    end
  else
    self.ended = true
  end
  wake(self, "reader")
end

--- What the program wrote since the last call; suspends until there is something.
---@return string|nil bytes nil at the end
function Program:read()
  while self.size == 0 and not self.ended do
    if not self.reading then
      self.reading = true
      self.stdout:read_start(function(_, bytes) on_output(self, bytes) end)
    end
    wait(self, "reader", "program:read")
  end
  if self.size == 0 then return nil end
  local bytes = table.concat(self.parts)
  self.parts, self.size = {}, 0
  return bytes
end

--- Suspends until the program has ended.
---@return true|nil ok it exited with 0
---@return string? error with the end of its stderr
---@return string? code
function Program:wait()
  while not (self.code and self.stderr_ended) do
    wait(self, "ender", "program:wait")
    if self.code and not self.stderr_ended then
      omni.sleep(0.05) -- a grandchild may hold stderr: its end is not waited for
      break
    end
  end
  self:close()
  if self.code == 0 and self.signal == 0 then return true end
  local how = self.signal ~= 0 and "died by signal " .. supervisor.signal_name(self.signal)
    or ("exited with code %d"):format(self.code)
  local tail = self.tail:gsub("%s+$", "")
  if tail ~= "" then how = how .. "; stderr: " .. tail end
  return nil, ('ESTAGE: program "%s" %s'):format(self.name, how), "ESTAGE"
end

-- All descendants, so that a killed shell leaves nobody behind.
local function descendants(pid, found)
  local file = io.open(("/proc/%d/task/%d/children"):format(pid, pid), "re")
  if not file then return found end
  local children = file:read "*a" or ""
  file:close()
  for child in children:gmatch "%d+" do
    found[#found + 1] = tonumber(child)
    descendants(tonumber(child), found)
  end
  return found
end

--- Kills the program and its descendants; `wait` tells of its end.
function Program:kill()
  if not self.pid or self.code then return end
  for _, pid in ipairs(descendants(self.pid, { self.pid })) do uv.kill(pid, "sigkill") end
end

--- Kills the program where it still runs and gives back its pipes. Idempotent.
function Program:close()
  self:kill()
  for _, pipe in ipairs { self.stdin, self.stdout, self.stderr } do
    if not pipe:is_closing() then pipe:close() end
  end
  self.ended, self.stderr_ended = true, true
  if self.release then self.release() end
  wake(self, "reader")
end

--- Runs a program to its end: input in, output out. Suspends; raises when it fails.
---@param options {command: string[], input?: string, env?: table, cwd?: string, request?: omni.request}
---@return string output
function program.run(options)
  local running, why = program.start(options)
  if not running then error(why, 0) end
  running:close_input()
  local parts = {}
  for bytes in function() return running:read() end do parts[#parts + 1] = bytes end
  local ok, failure = running:wait()
  if not ok then error(failure, 0) end
  return table.concat(parts)
end

return program
