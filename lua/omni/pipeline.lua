--- Pipelines as a script declares them: stages and edges, checked all at once and turned into plain data (the
-- topology) that the orchestrator runs.

local check = require "omni.check"
local exec = require "omni.exec"
local graph = require "omni.graph"
local replicas = require "omni.replicas"

local pipeline = {}

---@class omni.pipeline
---@field name string
local Pipeline = {}
Pipeline.__index = Pipeline

local function port_names(list)
  local seen = {}
  for _, name in ipairs(list) do
    if not graph.valid_port(name) then return false, ('has no valid port name in "%s"'):format(name) end
    if seen[name] then return false, ('names the port "%s" twice'):format(name) end
    seen[name] = true
  end
  return true
end

local STAGE = {
  module = { type = { "string", "nil" } },
  exec = { type = { "strings", "nil" } },
  inline = { type = { "boolean", "nil" } },
  config = { type = { "table", "nil" } },
  env = { type = { "map", "nil" } },
  cwd = { type = { "string", "nil" } },
  cpus = { type = { "integer", "string", "nil" } },
  replicas = {
    type = "integer", default = 1,
    check = function(v) return v >= 1 and v <= 64, "must be 1 to 64" end,
  },
  pick = { type = { "function", "nil" } },
  inputs = { type = { "strings", "nil" }, check = port_names },
  outputs = { type = { "strings", "nil" }, check = port_names },
  max_restarts = { type = "integer", default = 5, check = function(v) return v >= 0, "must be 0 or more" end },
  start_timeout = { type = "positive", default = 10 },
}

local OPTIONS = {
  max_requests = { type = "integer", default = 1024, check = function(v) return v >= 1, "must be 1 or more" end },
  queue = { type = "integer", default = 1024, check = function(v) return v >= 0, "must be 0 or more" end },
  request_bytes = {
    type = "integer", default = 64 * 1024 * 1024,
    check = function(v) return v >= 1, "must be 1 byte or more" end,
  },
  extension = { type = "string", check = function(v) return not v:find "[^%w]", "must be letters and digits" end },
}

---@class omni.pipeline.options
---@field extension? string what files of its outputs are called: "ogg"
---@field max_requests? integer requests that run at once (1024)
---@field queue? integer requests that may wait for that (1024); more are refused with EFULL
---@field request_bytes? integer bytes of a request that stages may hold beyond their windows when they would otherwise
---wait for each other (64 MiB)

--- A new, empty pipeline.
---@param name string
---@param options? omni.pipeline.options
---@return omni.pipeline
function pipeline.new(name, options)
  check.argument(name, "name", "omni.pipeline: the pipeline's name")
  options = check.options(options, OPTIONS, ('pipeline "%s"'):format(name))
  local declared = { name = name, stages = {}, edges = {}, origin = check.origin() }
  for key, rule in pairs(OPTIONS) do declared[key] = options[key] or rule.default end
  return setmetatable(declared, Pipeline)
end

--- Tells whether a value is a pipeline: what a script returns to be run by the command line.
---@param value any
---@return boolean
function pipeline.is(value)
  return getmetatable(value) == Pipeline
end

--- Declares a stage: `p:stage "talker" { module = "stages.talker" }`.
---@param name string
---@return fun(definition: table): omni.pipeline
function Pipeline:stage(name)
  check.argument(name, "string", "pipeline:stage: the stage's name")
  local declared = { name = name, origin = check.origin() }
  self.stages[#self.stages + 1] = declared
  return function(definition)
    declared.definition = definition
    return self
  end
end

--- Connects two stages by an edge.
---@param from string name of the stage that emits
---@param to string name of the stage that reads
---@param options? {window?: integer, budget?: integer} chunks unread per request; bytes unread on the edge
---@return omni.pipeline self
function Pipeline:connect(from, to, options)
  check.argument(from, "string", "pipeline:connect: the first stage's name")
  check.argument(to, "string", "pipeline:connect: the second stage's name")
  self.edges[#self.edges + 1] = {
    from = from, from_port = graph.OUTPUT, to = to, to_port = graph.INPUT, options = options or {},
    origin = check.origin(),
  }
  return self
end

--- Declares one edge with its ports: `p:edge("thinker.text -> judge.input", { window = 16 })`. A port that is left out
--- is `output` or `input`; `host` is the outer end.
---@param text string
---@param options? {window?: integer, budget?: integer} chunks unread per request; bytes unread on the edge
---@return omni.pipeline self
function Pipeline:edge(text, options)
  check.argument(text, "string", "pipeline:edge: the edge")
  local declared = graph.parse(text) or { text = text }
  declared.options, declared.origin = options or {}, check.origin()
  self.edges[#self.edges + 1] = declared
  return self
end

-- What may cross to a worker: strings, numbers, booleans and tables of these. Returns the path of what may not.
local function not_plain(value, path, seen)
  local kind = type(value)
  if kind == "string" or kind == "number" or kind == "boolean" then return nil end
  if kind ~= "table" then return ("%s is a %s"):format(path, kind) end
  if seen[value] then return path .. " contains itself" end
  seen[value] = true
  for key, item in pairs(value) do
    if type(key) ~= "string" and type(key) ~= "number" then return ("%s has a %s as key"):format(path, type(key)) end
    local problem = not_plain(item, ("%s.%s"):format(path, key), seen)
    if problem then return problem end
  end
  seen[value] = nil
end

-- Looks for a module as `require` would, without running it. Returns why it cannot be had.
local function missing_module(name)
  if package.loaded[name] then return nil end
  for _, loader in ipairs(package.loaders) do
    local ok, found = pcall(loader, name)
    if not ok then return (tostring(found):gsub("%s+$", "")) end
    if type(found) == "function" then return nil end
  end
  return ('module "%s" is not found (looked for beside the script, in its lua/ folder and on LUA_PATH)'):format(name)
end

-- Modules that come with the host know their own configuration and may check it before any process starts.
local function config_problems(definition)
  if not definition.module:find("^omni%.stages%.") then return {} end
  local module = require(definition.module)
  return module.problems and module.problems(definition.config or {}, definition) or {}
end

-- What is wrong with the module, or the program, that a stage runs. The module is not asked about an impure config.
local function runs_problems(definition, impure)
  if definition.exec then return exec.problems(definition) end
  local missing = missing_module(definition.module)
  if missing then return { missing } end
  if definition.inline then return { "inline is for exec: it says how a program gets its data" } end
  return impure and {} or config_problems(definition)
end

local function definition_problems(definition, report)
  if not definition.module and not definition.exec then
    return report 'what it runs is missing: give it module = "name of a Lua module", or exec = { "program" }'
  end
  if definition.pick then
    local code, problem = replicas.dump(definition.pick)
    definition.pick = code
    if problem then return report(problem) end
  end
  local impure = definition.config and not_plain(definition.config, "config", {})
  if impure then report(impure .. ": only strings, numbers, booleans and tables can cross to the stage's process") end
  local problems = runs_problems(definition, impure)
  for _, problem in ipairs(problems) do report(problem) end
  if definition.exec and #problems == 0 then exec.complete(definition) end
end

local function check_stages(self, problems)
  local stages, by_name = {}, {}
  for _, declared in ipairs(self.stages) do
    local where = ('stage "%s"'):format(declared.name)
    local function report(text) problems:add(declared.origin, where .. ": " .. text) end
    if by_name[declared.name] then
      report(("is declared twice (first at %s)"):format(by_name[declared.name].origin or "?"))
    elseif not graph.valid_name(declared.name) then
      report('the name must be letters, digits, _ and -, a letter first, at most 64, and not "host"')
    elseif declared.definition == nil then
      report(('has no definition: write p:stage "%s" { module = ... }'):format(declared.name))
    else
      local found, definition = check.problems(declared.definition, STAGE, where)
      for _, problem in ipairs(found) do problems:add(declared.origin, problem) end
      if #found == 0 then definition_problems(definition, report) end
      definition.name = declared.name
      stages[#stages + 1] = definition
    end
    by_name[declared.name] = by_name[declared.name] or declared
  end
  if #self.stages == 0 then problems:add(self.origin, ('pipeline "%s" has no stages'):format(self.name)) end
  table.sort(stages, function(a, b) return a.name < b.name end)
  return stages, by_name
end

---@class omni.topology plain data: what crosses to the orchestrator
---@field name string
---@field stages table[] sorted by name: {name, module, config, env, cwd, cpus, replicas, start_timeout}
---@field order string[] the stages' names, each after those that it reads from
---@field edges table[] numbered: {id, from, from_port, to, to_port, window, budget}; "host" is the outer end

--- Checks the whole declaration.
---@return omni.topology|nil topology nil when there are problems
---@return string[] problems each with file and line, in the order of the script
function Pipeline:topology()
  local problems = {}
  function problems:add(origin, text) -- luacheck: ignore 432
    self[#self + 1] = origin and origin .. ": " .. text or text
  end
  local stages, by_name = check_stages(self, problems)
  local edges = graph.edges(self.edges, by_name, problems)
  local order = graph.check(by_name, edges, problems, #problems == 0)
  problems.add = nil
  if #problems > 0 then return nil, problems end
  graph.complete(stages, edges)
  return {
    name = self.name, stages = stages, order = order, edges = edges, request_bytes = self.request_bytes,
    max_requests = self.max_requests, queue = self.queue,
  }, problems
end

--- Starts the pipeline's processes and returns when all are ready. Suspends. Raises when the declaration is wrong.
---@return omni.app|nil app
---@return string? error "ECODE: text"
---@return string? code
---@return string? traceback where a stage failed to start
function Pipeline:start()
  local topology, problems = self:topology()
  if not topology then error(table.concat(problems, "\n"), 0) end
  return require("omni.app").start(topology)
end

return setmetatable(pipeline, { __call = function(_, ...) return pipeline.new(...) end })
