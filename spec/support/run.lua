--- Runs a program and waits for it, suspending: for specs that look at omnihost from outside.
local omni = require "omni"
local sched = require "omni.native.sched"
local uv = require "luv"

local M = {}

M.omnihost = require("omni.native.host").facts().exe

local function collect(pipe, result, key)
  pipe:read_start(function(_, data)
    if data then result[key] = result[key] .. data else pipe:close() end
  end)
end

--- Starts a program without waiting.
---@param command string[] program and arguments
---@param opts? { stdin?: string, env?: table<string, string>, cwd?: string, detached?: boolean }
---@return table process { pid=, stdout=, stderr=, code=, signal=, wait=fn, kill=fn }
function M.start(command, opts)
  opts = opts or {}
  local process = { stdout = "", stderr = "" }
  local stdin, stdout, stderr = uv.new_pipe(), uv.new_pipe(), uv.new_pipe()
  local env = {}
  for name, value in pairs(uv.os_environ()) do
    if not (opts.env and opts.env[name]) then env[#env + 1] = name .. "=" .. value end
  end
  for name, value in pairs(opts.env or {}) do env[#env + 1] = name .. "=" .. value end
  local handle, pid
  handle, pid = uv.spawn(command[1], {
    args = { unpack(command, 2) }, stdio = { stdin, stdout, stderr }, env = env, cwd = opts.cwd,
    detached = opts.detached,
  }, function(code, signal)
    process.code, process.signal = code, signal
    handle:close()
    if process.ticket then sched.unpark(process.ticket) end
  end)
  if not handle then
    stdin:close() stdout:close() stderr:close()
    error(("cannot start %s: %s"):format(command[1], pid), 2)
  end
  process.pid = pid
  collect(stdout, process, "stdout")
  collect(stderr, process, "stderr")
  if opts.stdin then stdin:write(opts.stdin) end
  stdin:shutdown(function() stdin:close() end)
  function process.kill(signal) return uv.kill(pid, signal or "sigkill") end
  --- Waits for the exit and the end of its output (at most `patience` seconds, then it is killed).
  function process.wait(patience)
    local deadline = omni.now() + (patience or 60)
    while not process.code or not (stdout:is_closing() and stderr:is_closing()) do
      if omni.now() > deadline then
        process.kill()
        deadline = math.huge
        process.late = true
      end
      process.ticket = sched.ticket "a program"
      sched.park("a program", 0.005)
    end
    process.ticket = nil
    return process
  end
  return process
end

--- Runs a program to its end.
---@param command string[]
---@param opts? table as for start
---@return table process { code=, signal=, stdout=, stderr= }
function M.run(command, opts) return M.start(command, opts).wait() end

--- Runs omnihost with arguments.
---@param ... string
---@return table process
function M.host(...) return M.run { M.omnihost, ... } end

--- Runs code as a script: omnihost -e CODE.
---@param code string
---@param ... string its arguments
---@return table process
function M.code(code, ...) return M.host("-e", code, ...) end

return M
