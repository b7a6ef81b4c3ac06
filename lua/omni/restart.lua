--- What follows the death of a stage's process: a new one after a pause that grows, and behind a circuit breaker.
---
---   ready → (death) → waiting → starting → ready      requests that come meanwhile wait to be admitted
---   the same, too often in a row → down               requests are refused with the reason
---   down → (pause) → starting → ready                 half open: one more death, and it is down again
---
--- A request that the stage finished closes the breaker: deaths are counted anew.

local log = require "omni.log"
local replicas = require "omni.replicas"
local uv = require "luv"

local restart = {}

local FIRST, LONGEST = 0.01, 2 -- seconds before a new process, at first and at most
local HALF_OPEN, SELDOM = 1, 30 -- the same where the breaker is open

-- Runs fn once after so many seconds, unless the pipeline ends.
local function later(self, stage, seconds, fn)
  if not stage.timer then stage.timer = uv.new_timer() end
  stage.timer:start(math.ceil(seconds * 1000), 0, function()
    if not self.closing then fn() end
  end)
end

--- Starts a process for a stage that has none.
---@param self omni.orchestrator
---@param stage omni.orchestrator.stage
---@return true|nil ok
---@return string? report why there is no process
function restart.start(self, stage)
  stage.state = "starting"
  local ok, why = self.spawn(stage)
  if not ok then return nil, (why:gsub('^EWORKER: stage ".-" ', "")) end
  later(self, stage, stage.definition.start_timeout, function()
    stage.worker.cause = ("not being ready within %g s"):format(stage.definition.start_timeout)
    stage.worker:kill()
  end)
  return true
end

-- The breaker opens: nothing is taken in until a process stays alive.
local function open_breaker(self, stage, pause)
  stage.state = "down"
  log.error("stage is down", { stage = stage.name, deaths = stage.deaths, next_try = pause })
  self.outputs:put { "stage", stage.label, "down", stage.report }
end

--- A stage's process has died, or could not be started.
---@param self omni.orchestrator has spawn(stage)
---@param stage omni.orchestrator.stage
---@param report string
function restart.died(self, stage, report)
  local limit = stage.definition.max_restarts
  stage.deaths, stage.report = stage.deaths + 1, report
  local over = stage.deaths - limit
  local pause
  if over > 0 then
    pause = math.min(HALF_OPEN * 2 ^ (over - 1), SELDOM)
    open_breaker(self, stage, pause)
  else
    pause = math.min(FIRST * 2 ^ (stage.deaths - 1), LONGEST)
    stage.state = "waiting"
  end
  later(self, stage, pause, function()
    local ok, why = restart.start(self, stage)
    if not ok then restart.died(self, stage, why) end
  end)
end

--- A stage's new process is ready.
---@param self omni.orchestrator
---@param stage omni.orchestrator.stage
function restart.ready(self, stage)
  stage.timer:stop()
  stage.state = "ready"
  if stage.deaths > 0 then
    log.warn("stage runs again", { stage = stage.name, pid = stage.worker.pid, deaths = stage.deaths })
  end
  self.outputs:put { "stage", stage.label, stage.deaths > 0 and "restarted" or "added", stage.worker.pid }
end

--- A stage has finished a request: it works.
---@param stage omni.orchestrator.stage
function restart.works(stage)
  stage.deaths = 0
end

-- What one process of a stage can do: take requests, soon perhaps, or not.
local function ability(stage)
  if replicas.usable(stage) then return "ready" end
  if stage.retiring then return "down" end
  -- A half-open stage that starts has not shown yet that it works.
  local half_open = stage.state == "starting" and stage.deaths > stage.definition.max_restarts
  return (stage.state == "down" or half_open) and "down" or "hold"
end

-- The same of a whole stage: as much as the best of its processes.
local function best_of(stages)
  local best = "down"
  for _, stage in ipairs(stages) do
    local can = ability(stage)
    if can == "ready" then return can end
    if can == "hold" then best = can end
  end
  return best
end

--- Why requests cannot be admitted now.
---@param self omni.orchestrator
---@return "ready"|"hold"|"down" state
---@return string? reason of "down"
function restart.state(self)
  local state = "ready"
  for _, name in ipairs(self.names) do
    local best = best_of(self.stages[name])
    if best == "down" then
      return "down", ('EWORKER: stage "%s" is down: it %s'):format(name, self.stages[name][1].report)
    end
    if best == "hold" then state = "hold" end
  end
  return state
end

--- Ends all that is under way: the pipeline closes.
---@param self omni.orchestrator
function restart.close(self)
  replicas.each(self, function(stage)
    if stage.timer then stage.timer:close() end
  end)
end

return restart
