--- Pipelines as a script declares them: stages and edges, checked all at once and turned into plain data (the
-- topology) that the orchestrator runs.

local check = require "omni.check"

local pipeline = {}

---@class omni.pipeline
---@field name string
local Pipeline = {}
Pipeline.__index = Pipeline

-- The outer end of the first and last edges: the host, which sends the requests' data and receives the outputs.
pipeline.HOST = "host"

local STAGE = {
  module = { type = { "string", "nil" } },
  exec = { type = { "strings", "nil" } },
  config = { type = { "table", "nil" } },
  env = { type = { "map", "nil" } },
  cwd = { type = { "string", "nil" } },
  cpus = { type = { "integer", "string", "nil" } },
  replicas = { type = { "integer", "nil" }, default = 1 },
  start_timeout = { type = "positive", default = 10 },
}

local EDGE = {
  window = { type = "integer", default = 16, check = function(v) return v >= 1, "must be 1 or more" end },
  budget = { type = "integer", default = 64 * 1024 * 1024, check = function(v) return v >= 1, "must be 1 or more" end },
}

local OPTIONS = {
  extension = { type = "string", check = function(v) return not v:find "[^%w]", "must be letters and digits" end },
}

--- A new, empty pipeline.
---@param name string
---@param options? {extension?: string} what files of its outputs are called: "ogg"
---@return omni.pipeline
function pipeline.new(name, options)
  check.argument(name, "name", "omni.pipeline: the pipeline's name")
  local extension = check.options(options, OPTIONS, ('pipeline "%s"'):format(name)).extension
  local declared = { name = name, extension = extension, stages = {}, edges = {}, origin = check.origin() }
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
  self.edges[#self.edges + 1] = { from = from, to = to, options = options or {}, origin = check.origin() }
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

-- What the definition says may be valid in itself and not be supported: this is the one place that says so.
local function unsupported(definition)
  if definition.exec then
    return "exec (a program that speaks the stage protocol) is not supported: use module, or a Unix program through "
      .. 'module = "omni.stages.filter"'
  end
  if definition.replicas ~= 1 then
    return ("replicas = %d is not supported: each stage is one process"):format(definition.replicas)
  end
end

local function definition_problems(definition, report)
  if not definition.module and not definition.exec then
    return report 'what it runs is missing: give it module = "name of a Lua module"'
  end
  local limit = unsupported(definition)
  if limit then return report(limit) end
  local impure = definition.config and not_plain(definition.config, "config", {})
  if impure then report(impure .. ": only strings, numbers, booleans and tables can cross to the stage's process") end
  local missing = missing_module(definition.module)
  if missing then return report(missing) end
  if impure then return end
  for _, problem in ipairs(config_problems(definition)) do report(problem) end
end

local function check_stages(self, problems)
  local stages, by_name = {}, {}
  for _, declared in ipairs(self.stages) do
    local where = ('stage "%s"'):format(declared.name)
    local function report(text) problems:add(declared.origin, where .. ": " .. text) end
    if by_name[declared.name] then
      report(("is declared twice (first at %s)"):format(by_name[declared.name].origin or "?"))
    elseif declared.name == pipeline.HOST or not declared.name:find("^%a[%w_%-]*$") or #declared.name > 64 then
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

local function check_edges(self, by_name, problems)
  local edges, seen = {}, {}
  local names = check.sorted_keys(by_name)
  for _, declared in ipairs(self.edges) do
    local where = ('edge "%s -> %s"'):format(declared.from, declared.to)
    local found, edge = check.problems(declared.options, EDGE, where)
    for _, problem in ipairs(found) do problems:add(declared.origin, problem) end
    for _, name in ipairs { declared.from, declared.to } do
      if not by_name[name] then
        problems:add(declared.origin, ('%s: there is no stage "%s"%s'):format(where, name, check.hint(name, names)))
      end
    end
    if seen[where] then problems:add(declared.origin, where .. ": is declared twice") end
    seen[where] = true
    edge.from, edge.to, edge.origin = declared.from, declared.to, declared.origin
    edges[#edges + 1] = edge
  end
  table.sort(edges, function(a, b)
    if a.from ~= b.from then return a.from < b.from end
    return a.to < b.to
  end)
  return edges
end

-- The one check that keeps pipelines to lines: every stage on one path, without branches, joins or cycles.
local function check_line(self, stages, edges, problems)
  local after, before = {}, {}
  for _, edge in ipairs(edges) do
    local what = (after[edge.from] and ('"%s" has more than one edge out'):format(edge.from))
      or (before[edge.to] and ('"%s" has more than one edge in'):format(edge.to))
    if what then
      problems:add(edge.origin, ("stage %s: only a line of stages is supported, each read by at most one"):format(what))
    end
    after[edge.from], before[edge.to] = edge.to, edge.from
  end
  local first = {}
  for _, stage in ipairs(stages) do
    if not before[stage.name] then first[#first + 1] = stage.name end
  end
  local reached, name = 0, first[1]
  while name and reached <= #stages do
    reached, name = reached + 1, after[name]
  end
  if #first > 1 then
    local text = 'pipeline "%s": only one line of stages is supported; %s are not connected into one'
    problems:add(self.origin, text:format(self.name, table.concat(first, ", ")))
  elseif #problems == 0 and reached ~= #stages then
    problems:add(self.origin, ('pipeline "%s": its edges form a cycle'):format(self.name))
  end
end

-- Adds the host's own edges: into each stage that nobody feeds, out of each that nobody reads. Edges get their numbers.
local function complete_edges(stages, edges)
  local fed, read = {}, {}
  for _, edge in ipairs(edges) do
    fed[edge.to], read[edge.from] = true, true
    edge.origin = nil
  end
  for _, stage in ipairs(stages) do
    local limits = { window = EDGE.window.default, budget = EDGE.budget.default }
    if not fed[stage.name] then
      edges[#edges + 1] = { from = pipeline.HOST, to = stage.name, window = limits.window, budget = limits.budget }
    end
    if not read[stage.name] then
      edges[#edges + 1] = { from = stage.name, to = pipeline.HOST, window = limits.window, budget = limits.budget }
    end
  end
  for id, edge in ipairs(edges) do edge.id = id end
end

---@class omni.topology plain data: what crosses to the orchestrator
---@field name string
---@field stages table[] sorted by name: {name, module, config, env, cwd, cpus, replicas, start_timeout}
---@field edges table[] numbered: {id, from, to, window, budget}; "host" is the outer end

--- Checks the whole declaration.
---@return omni.topology|nil topology nil when there are problems
---@return string[] problems each with file and line, in the order of the script
function Pipeline:topology()
  local problems = {}
  function problems:add(origin, text) -- luacheck: ignore 432
    self[#self + 1] = origin and origin .. ": " .. text or text
  end
  local stages, by_name = check_stages(self, problems)
  local edges = check_edges(self, by_name, problems)
  if #problems == 0 then check_line(self, stages, edges, problems) end
  problems.add = nil
  if #problems > 0 then return nil, problems end
  complete_edges(stages, edges)
  return { name = self.name, stages = stages, edges = edges }, problems
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
