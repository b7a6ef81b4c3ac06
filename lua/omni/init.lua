--- omnihost for scripts: `local omni = require "omni"`. Modules are loaded when they are first used.
local native = require "omni.native.sched"

---@class omni
---@field sink omni.sinklib
---@field shm omni.shmlib
---@field chunks omni.chunkslib
---@field json omni.jsonlib
---@field plm omni.plm
---@field router omni.routerlib
---@field log omni.loglib
---@field metrics omni.metricslib
---@field testing omni.testinglib
local omni = {}

local MODULES = {
  check = true, chunks = true, json = true, log = true, metrics = true, plm = true, router = true, shm = true,
  sink = true, testing = true,
}

--- Seconds on a clock that only goes forward.
---@return number seconds
omni.now = native.now

--- Suspends the running coroutine; its loop goes on.
---@param seconds number 0 gives everybody else a turn
function omni.sleep(seconds)
  if type(seconds) ~= "number" or seconds ~= seconds or seconds < 0 then
    require("omni.check").misuse(("omni.sleep: seconds must be a number from 0 on, not %s"):format(tostring(seconds)))
  end
  native.park("omni.sleep", seconds)
end

---@class omni.Task
local Task = {}
Task.__index = Task

--- Waits until the task has returned.
---@param timeout? number seconds
---@return any ... what its function returned; or nil, "ETIMEDOUT: …", "ETIMEDOUT". A task that failed ends the run.
function Task:join(timeout)
  local deadline = timeout and native.now() + timeout
  while not self.results do
    local left = deadline and math.max(0, deadline - native.now())
    local waiters = self.waiters
    waiters[#waiters + 1] = native.ticket "task:join"
    if not native.park("task:join", left) and not self.results then
      return nil, "ETIMEDOUT: the task still runs", "ETIMEDOUT"
    end
  end
  return unpack(self.results, 1, self.results.n)
end

local function finish(task, ...)
  task.results = { n = select("#", ...), ... }
  for _, ticket in ipairs(task.waiters) do native.unpark(ticket) end
end

--- Runs a function as a task of its own, from the next turn of the loop on. An error in it is reported and fails the
--- run.
---@param fn function
---@param ... any its arguments
---@return omni.Task
function omni.spawn(fn, ...)
  if type(fn) ~= "function" then
    require("omni.check").misuse(("omni.spawn: a function is needed, not %s"):format(type(fn)))
  end
  local task = setmetatable({ waiters = {} }, Task)
  native.spawn(function(...) finish(task, fn(...)) end, ...)
  return task
end

-- Loaded late, so that a script that uses one primitive pays for one.
setmetatable(omni, {
  __index = function(_, name)
    if MODULES[name] then
      local module = require("omni." .. name)
      omni[name] = module
      return module
    end
    if name == "thread" then
      omni.thread = require("omni.thread").start
      return omni.thread
    end
    if name == "pipeline" then
      omni.pipeline = require("omni.pipeline").new
      return omni.pipeline
    end
  end,
})

return omni
