--- Child processes for specs: started, fed and awaited without blocking the loop.
local sched = require "omni.native.sched"
local uv = require "luv"

local M = {}

---@class spec.Process
---@field pid integer
---@field out string what it wrote to stdout so far
---@field err string and to stderr
local Process = {}
Process.__index = Process

local function wake(self)
  if self.ticket then sched.unpark(self.ticket) end
end

local function collect(self, pipe, field)
  pipe:read_start(function(_, data)
    if data then
      self[field] = self[field] .. data
    else
      pipe:close()
      self.open = self.open - 1
    end
    wake(self)
  end)
end

--- Starts a program. options.env replaces the environment; options.stdio adds descriptors from 3 on.
---@param command string[]
---@param options? { env?: string[], stdio?: integer[] }
---@return spec.Process
function M.start(command, options)
  options = options or {}
  local self = setmetatable({ out = "", err = "", open = 3, stdin = uv.new_pipe() }, Process)
  local out, err = uv.new_pipe(), uv.new_pipe()
  local stdio = { self.stdin, out, err }
  for _, fd in ipairs(options.stdio or {}) do stdio[#stdio + 1] = fd end
  local args = { unpack(command, 2) }
  local handle, message
  handle, self.pid = uv.spawn(command[1], { args = args, stdio = stdio, env = options.env }, function(code, signal)
    self.code, self.signal = code, signal
    handle:close()
    self.open = self.open - 1
    wake(self)
  end)
  if not handle then
    message = self.pid
    for _, pipe in ipairs { self.stdin, out, err } do pipe:close() end
    error(("%s cannot be started: %s"):format(command[1], message))
  end
  collect(self, out, "out")
  collect(self, err, "err")
  return self
end

-- Suspends until test() is true.
local function wait_until(self, what, test)
  local deadline = sched.now() + 30
  while not test() do
    local left = deadline - sched.now()
    assert(left > 0, what .. " took too long; stderr: " .. self.err)
    self.ticket = sched.ticket "process"
    sched.park("process", left)
  end
end

--- Sends text to its stdin; nil closes it.
---@param text? string
function Process:feed(text)
  if text then self.stdin:write(text) end
  if not text and not self.stdin:is_closing() then self.stdin:close() end
end

--- Suspends until its output contains the plain text.
---@param text string
function Process:expect(text)
  wait_until(self, ("waiting for %q"):format(text), function()
    return self.out:find(text, 1, true) or self.open == 0
  end)
  assert(self.out:find(text, 1, true), ("it ended without saying %q; stderr: %s"):format(text, self.err))
end

--- Closes its stdin and suspends until it has exited and all its output is here.
---@return integer code
---@return string out
---@return string err
---@return integer signal
function Process:finish()
  if not self.stdin:is_closing() then self.stdin:shutdown(function() self.stdin:close() end) end
  wait_until(self, "its end", function() return self.open == 0 end)
  return self.code, self.out, self.err, self.signal
end

--- Runs a program to its end.
---@param command string[]
---@param input? string for its stdin
---@param options? table as in start
---@return integer code
---@return string out
---@return string err
---@return integer signal
function M.run(command, input, options)
  local process = M.start(command, options)
  if input and #input > 0 then process:feed(input) end
  return process:finish()
end

return M
