--- Questions to stages, as the orchestrator passes them on. The router of the pipeline carries both ways: the front
--- waits under {"rpc", n}, a task here for each stage process under {"ask", n}. Whatever comes late or twice finds
--- nobody and is counted.

local check = require "omni.check"
local json = require "omni.json"
local omni = require "omni"

local rpc = {}

-- The stage processes that a question goes to; nil and why where there is none.
local function targets_of(self, message)
  local targets, wanted = {}, message.replica
  for _, stage in ipairs(self.stages[message.stage]) do
    local meant = wanted == nil or wanted == "all" or wanted == stage.replica
    if meant then targets[#targets + 1] = { replica = stage.replica, stage = stage } end
  end
  if #targets > 0 then return targets end
  return nil, ('ENOENT: stage "%s" has no replica %d'):format(message.stage, wanted), "ENOENT"
end

-- Asks one process. Suspends until it answers, dies, or the deadline passes.
local function ask(self, target, message)
  local stage = target.stage
  if stage.state ~= "ready" or not stage.worker.alive then
    local how = stage.report or "is ending"
    return nil, ('EWORKER: stage "%s" is down: it %s'):format(stage.name, how), "EWORKER"
  end
  self.asked = self.asked + 1
  local n = self.asked
  stage.asked[n] = true
  local value, err, code = self.router:call({ "ask", n }, function()
    stage:send { type = "rpc", id = n, method = message.method, args = message.args }
  end, math.max(0, message.deadline - omni.now()))
  stage.asked[n] = nil
  if code == "ETIMEDOUT" then err = rpc.no_answer(message.stage, message.method, message.timeout) end
  return value, err, code
end

--- What a question says that was not answered in time.
---@param stage string
---@param method string
---@param timeout number seconds
---@return string
function rpc.no_answer(stage, method, timeout)
  return ('ETIMEDOUT: stage "%s" did not answer "%s" within %g s'):format(stage, method, timeout)
end

-- The front has its own deadline: what would only tell it that this has passed is not sent.
local function ask_one(self, target, message)
  local value, err, code = ask(self, target, message)
  if code == "ETIMEDOUT" then return end
  local key = { "rpc", message.id }
  if err then self.router:fail(key, err) else self.router:deliver(key, value) end
end

local function ask_all(self, targets, message)
  local tasks, answers = {}, {}
  for i, target in ipairs(targets) do
    tasks[i] = omni.spawn(function()
      local value, err, code = ask(self, target, message)
      answers[i] = { replica = target.replica, value = value, error = err, code = code }
    end)
  end
  for _, task in ipairs(tasks) do task:join() end
  self.router:deliver({ "rpc", message.id }, answers)
end

--- The front's command.
---@param self omni.orchestrator
---@param message table {id, stage, method, args, replica, timeout, deadline}
function rpc.command(self, message)
  local targets, why = targets_of(self, message)
  if not targets then return self.router:fail({ "rpc", message.id }, why) end
  if message.replica == "all" then
    omni.spawn(ask_all, self, targets, message)
  else
    omni.spawn(ask_one, self, targets[1], message)
  end
end

--- A stage's answer. One that this stage was not asked for, or not any more, is late.
---@param self omni.orchestrator
---@param stage omni.orchestrator.stage
---@param message table {id, value} or {id, error, code}
function rpc.answer(self, stage, message)
  local key = { "ask", stage.asked[message.id] and message.id or 0 }
  if not message.error then
    local value = message.value
    if value == json.null then value = nil end
    self.router:deliver(key, value)
  else
    local text = message.error:gsub("^E[A-Z0-9]+: ", "")
    self.router:fail(key, ('%s: stage "%s": %s'):format(message.code, stage.name, text))
  end
end

--- A stage's process has died: whoever waits for its answer is told.
---@param self omni.orchestrator
---@param stage omni.orchestrator.stage
---@param report string how it died
function rpc.stage_died(self, stage, report)
  for _, n in ipairs(check.sorted_keys(stage.asked)) do
    self.router:fail({ "ask", n }, ('EWORKER: stage "%s" %s'):format(stage.name, report))
  end
end

return rpc
