--- The processes of each stage, and which of them a request runs on: one per stage, from its admission to its end.

local check = require "omni.check"
local errors = require "omni.errors"

local replicas = {}

--- Calls a function for every process of every stage, in order.
---@param self omni.orchestrator
---@param fn fun(stage: omni.orchestrator.stage)
function replicas.each(self, fn)
  for _, name in ipairs(self.names) do
    for _, stage in ipairs(self.stages[name]) do fn(stage) end
  end
end

--- How a process is called where processes are listed: "talker", "talker.1", "talker.2".
---@param name string
---@param replica integer
---@return string
function replicas.label(name, replica)
  return replica == 0 and name or ("%s.%d"):format(name, replica)
end

--- Whether a process may be given requests.
---@param stage omni.orchestrator.stage
---@return boolean
function replicas.usable(stage)
  return stage.state == "ready" and stage.worker.alive and not stage.retiring
end

-- The usual choice: the least outstanding work, the first where there is as little in several.
local function least_outstanding(candidates)
  local best
  for i, candidate in ipairs(candidates) do
    if not best or candidate.outstanding < candidates[best].outstanding then best = i end
  end
  return best
end

--- What a script's `pick` may be: a function that needs nothing from around it, for it runs in another state.
---@param fn function
---@return string|nil code what crosses
---@return string? problem
function replicas.dump(fn)
  local info = debug.getinfo(fn, "u")
  if info.nups > 0 then
    local text = 'pick uses "%s" from outside it: it runs in another state and can only use its arguments and globals'
    return nil, text:format((debug.getupvalue(fn, 1)))
  end
  local ok, code = pcall(string.dump, fn)
  if not ok then return nil, "pick must be a function written in Lua" end
  return code
end

-- What pick sees as globals: those of the orchestrator's state, which it must not end.
local function surroundings()
  local function exit() error("os.exit would end the whole pipeline", 2) end
  return setmetatable({ os = setmetatable({ exit = exit }, { __index = os }) }, { __index = _G })
end

-- The function that chooses for a stage.
local function chooser(self, definition)
  if not definition.pick then return least_outstanding end
  if not self.picks[definition.name] then
    self.picks[definition.name] = setfenv(assert(loadstring(definition.pick)), surroundings())
  end
  return self.picks[definition.name]
end

--- Chooses the process of a stage that a request runs on.
---@param self omni.orchestrator
---@param name string
---@param record table
---@return omni.orchestrator.stage|nil stage
---@return string? error of the script's pick
function replicas.pick(self, name, record)
  local candidates, stages = {}, {}
  for _, stage in ipairs(self.stages[name]) do
    if replicas.usable(stage) then
      stages[#stages + 1] = stage
      candidates[#stages] = { replica = stage.replica, outstanding = stage.outstanding }
    end
  end
  local definition = self.stages[name][1].definition
  local ok, choice = pcall(chooser(self, definition), candidates, { id = record.label, data = record.data })
  if ok and stages[choice] then return stages[choice] end
  local said = errors.text_of(choice) -- of what it returned, or raised
  local why = ok and ("returned %s, not 1 to %d"):format(said, #stages) or "failed: " .. said
  return nil, ('ESTAGE: the pick of stage "%s" %s'):format(name, why)
end

--- Gives a request its processes.
---@param self omni.orchestrator
---@param record table
---@return true|nil ok
---@return string? error
function replicas.assign(self, record)
  local on = {}
  for _, name in ipairs(self.names) do
    local stage, why = replicas.pick(self, name, record)
    if not stage then return nil, why end
    on[name] = stage
  end
  for name, stage in pairs(on) do
    record.on[name], record.generations[name] = stage, stage.generation
    stage.outstanding, stage.holding = stage.outstanding + 1, stage.holding + 1
  end
  return true
end

--- A process has nothing more to do for a request.
---@param record table
---@param name string
function replicas.let_go(record, name)
  if not record.on[name] or record.left[name] then return end
  record.left[name] = true
  record.on[name].outstanding = record.on[name].outstanding - 1
end

--- The replicas that a request's senders write to, where they are not the first.
---@param record table
---@return table<string, integer>|nil to by stage
function replicas.readers(record)
  local to
  for _, name in ipairs(check.sorted_keys(record.on)) do
    if record.on[name].replica > 0 then
      to = to or {}
      to[name] = record.on[name].replica
    end
  end
  return to
end

return replicas
