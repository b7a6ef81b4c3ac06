--- More or fewer processes for a stage while the pipeline runs. New ones are given requests when they are ready; those
--- that are too many get no more, and end when the last request that they hold has been let go.

local edge = require "omni.edge"
local restart = require "omni.restart"
local uv = require "luv"

local scale = {}

-- A program writes to the folder that it was told at its start.
local function fixed_by(self, name)
  for _, spec in ipairs(self.edges) do
    local from = self.stages[spec.from]
    if spec.to == name and from and from[1].definition.exec then return spec.from end
  end
end

local function answer(self, job, why)
  if job.answered then return end
  job.answered = true
  self.outputs:put { "scaled", job.id, why or false }
end

-- One process less to wait for.
local function started(self, job)
  job.starting = job.starting - 1
  if job.starting == 0 then answer(self, job) end
end

local function begin(self, stage, job)
  job.starting = job.starting + 1
  stage.job = job
  local dir = edge.replica_dir(("%s/%s.0"):format(self.dir, stage.name), stage.replica)
  local made, why, code = uv.fs_mkdir(dir, tonumber("700", 8))
  if not made and code ~= "EEXIST" then return scale.failed(self, stage, "cannot have a folder: " .. why) end
  local ok, problem = restart.start(self, stage)
  if not ok then scale.failed(self, stage, problem) end
end

-- Brings in the replicas below n that are missing.
local function grow(self, name, n, job)
  local list, present = self.stages[name], {}
  for _, stage in ipairs(list) do
    if stage.stopped and stage.replica < n then return ("replica %d is just ending"):format(stage.replica) end
    present[stage.replica] = stage
  end
  local new = {}
  for replica = 0, n - 1 do
    local stage = present[replica]
    if stage then
      stage.retiring = false
    else
      new[#new + 1] = self.add(list[1].definition, replica)
    end
  end
  table.sort(list, function(a, b) return a.replica < b.replica end)
  for _, stage in ipairs(new) do begin(self, stage, job) end
end

--- Ends a process that is not wanted any more, once nobody needs it.
---@param self omni.orchestrator
---@param stage omni.orchestrator.stage
function scale.maybe_end(self, stage)
  if not stage.retiring or stage.holding > 0 or stage.stopped or stage.state == "starting" then return end
  stage.stopped = true
  if stage.state == "ready" then return stage:send { type = "stop" } end
  scale.gone(self, stage) -- it had no process
end

--- A process that is not wanted any more has ended.
---@param self omni.orchestrator
---@param stage omni.orchestrator.stage
function scale.gone(self, stage)
  local list = self.stages[stage.name]
  for i, other in ipairs(list) do
    if other == stage then
      table.remove(list, i)
      break
    end
  end
  if stage.timer then stage.timer:close() end
  self.outputs:put { "stage", stage.label, "removed" }
  local job = stage.job
  stage.job = nil
  if job then started(self, job) end -- it was taken back before it was ready
end

--- A new process is ready.
---@param self omni.orchestrator
---@param stage omni.orchestrator.stage
function scale.ready(self, stage)
  scale.maybe_end(self, stage) -- it may have been taken back meanwhile
  local job = stage.job
  stage.job = nil
  if job then started(self, job) end
end

--- A new process did not start: it is not tried again.
---@param self omni.orchestrator
---@param stage omni.orchestrator.stage
---@param report string
function scale.failed(self, stage, report)
  local job = stage.job
  stage.job, stage.retiring, stage.stopped = nil, true, true
  scale.gone(self, stage)
  answer(self, job, ('ESTAGE: stage "%s" %s'):format(stage.name, report))
end

--- The front's command.
---@param self omni.orchestrator
---@param message table {id, stage, replicas}
function scale.command(self, message)
  local name, n, job = message.stage, message.replicas, { id = message.id, starting = 0 }
  local program = n > 1 and fixed_by(self, name)
  if program then
    local text = 'EINVAL: stage "%s" is read from "%s", a program: it cannot have replicas'
    return answer(self, job, text:format(name, program))
  end
  local busy = grow(self, name, n, job)
  if busy then return answer(self, job, "EBUSY: " .. busy) end
  local list = { unpack(self.stages[name]) }
  for _, stage in ipairs(list) do
    if stage.replica >= n then
      stage.retiring = true
      scale.maybe_end(self, stage)
    end
  end
  if job.starting == 0 then answer(self, job) end
end

--- Looks after each process that a request has held, when it has been let go.
---@param self omni.orchestrator
---@param record table
function scale.released(self, record)
  for _, name in ipairs(self.names) do
    local stage = record.on[name]
    if stage then
      stage.holding = stage.holding - 1
      scale.maybe_end(self, stage)
    end
  end
end

return scale
