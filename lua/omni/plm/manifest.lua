--- Manifests: which tools a guest program may call, and where each of them runs.
local check = require "omni.check"
local schema = require "omni.plm.schema"

local M = {}

---@class omni.plm.Tool
---@field call fun(ctx: omni.plm.Context, ...): any what runs; its results travel as JSON
---@field allow_early_read? boolean true: a read that depends on its arguments and earlier writes only, may start before
---  its place, may be discarded, and heeds its cancel
---@field description? string for whoever writes programs
---@field params? table one schema for the first argument, or a list of schemas by position
---@field timeout? number seconds from its start
---@field max_in_flight? integer calls at once, of all runs

---@class omni.plm.Manifest
local Manifest = {}
Manifest.__index = Manifest

local TOOL = {
  call = { type = "function" },
  allow_early_read = { type = { "boolean", "nil" } },
  description = { type = { "string", "nil" } },
  params = { type = { "table", "nil" } },
  timeout = { type = { "positive", "nil" } },
  max_in_flight = { type = { "integer", "nil" }, check = function(n) return n >= 1, "must be at least 1" end },
}

local KEYWORDS, TAKEN = {}, {}
for word in ([[and break do else elseif end false for function goto if in local nil not or repeat return then true
  until while]]):gmatch "%a+" do KEYWORDS[word] = true end
for word in ([[_G _VERSION array assert bit coroutine error getmetatable inputs ipairs math next null pairs pcall print
  rawequal rawget rawlen rawset require select setmetatable string table tonumber tostring type unpack xpcall]])
  :gmatch "[%w_]+" do TAKEN[word] = true end

-- Why a name cannot be a tool's.
local function name_problem(name)
  if type(name) ~= "string" then return ("a tool's name must be a string, not %s"):format(type(name)) end
  for part in (name .. "."):gmatch "(.-)%." do
    if not part:find "^[%a_][%w_]*$" then
      return ('tool name "%s" must be names (letters, digits, _) joined by dots'):format(name)
    end
    if KEYWORDS[part] then return ('tool name "%s" contains the keyword %s'):format(name, part) end
  end
  local first = name:match "^[^.]+"
  if TAKEN[first] then return ('tool name "%s" would hide %s from the programs'):format(name, first) end
end

-- ---- gathering ----

local function add_problem(found, text) found.problems[#found.problems + 1] = text end

local function add_tool(found, name, given, source, module)
  local problem = name_problem(name)
  if problem then return add_problem(found, ("%s: %s"):format(source, problem)) end
  local where = ('%s: tool "%s"'):format(source, name)
  local problems, tool = check.problems(given, TOOL, where)
  if #problems == 0 and tool.params then problems = schema.problems(tool.params, where .. ": params") end
  for _, text in ipairs(problems) do add_problem(found, text) end
  local earlier = found.tools[name]
  if earlier then
    return add_problem(found, ('%s is given by %s already'):format(where, earlier.source))
  end
  tool.name, tool.source, tool.module = name, source, module
  found.tools[name] = tool
end

local function add_tools(found, tools, source, module)
  if type(tools) ~= "table" then
    return add_problem(found, ("%s: a table of tools is needed, not %s"):format(source, type(tools)))
  end
  for _, name in ipairs(check.sorted_keys(tools)) do add_tool(found, name, tools[name], source, module) end
end

local function add_module(found, name)
  local ok, tools = pcall(require, name)
  if not ok then return add_problem(found, ('tool module "%s" cannot be loaded: %s'):format(name, tostring(tools))) end
  add_tools(found, tools, ('tool module "%s"'):format(name), name)
end

-- A name cannot be both a function and a table of others.
local function check_prefixes(found)
  for _, name in ipairs(check.sorted_keys(found.tools)) do
    for stop in name:gmatch "()%." do
      local prefix = name:sub(1, stop - 1)
      if found.tools[prefix] then
        add_problem(found, ('tool "%s" (%s) clashes with tool "%s" (%s): a name is a function or a table')
          :format(name, found.tools[name].source, prefix, found.tools[prefix].source))
      end
    end
  end
end

local OPTIONS = {
  workers = {
    type = "integer", default = 64,
    check = function(n) return n >= 1 and n <= 1024, "must be 1 to 1024" end,
  },
}

local function gather(given)
  local found, options = { tools = {}, problems = {} }, {}
  for key, value in pairs(given) do
    if type(key) ~= "number" then options[key] = value end
  end
  local problems, checked = check.problems(options, OPTIONS, "plm.manifest")
  found.problems, found.workers = problems, checked.workers
  for i, item in ipairs(given) do
    if type(item) == "string" then add_module(found, item)
    elseif type(item) == "table" then add_tools(found, item, ("inline tools (item %d)"):format(i))
    else
      local text = "plm.manifest: item %d must be a module's name or a table of tools, not %s"
      add_problem(found, text:format(i, type(item)))
    end
  end
  check_prefixes(found)
  return found
end

--- The tools that programs may call.
---@param given table module names and tables of tools, in a list; `workers` = threads at most (64)
---@return omni.plm.Manifest
function M.new(given)
  check.argument(given, "table", "plm.manifest: argument 1 (modules and tools)")
  local found = gather(given)
  if #found.problems > 0 then
    local origin = check.origin()
    check.misuse(table.concat(found.problems, "\n" .. (origin and origin .. ": " or "")), origin)
  end
  local self = setmetatable({ _tools = found.tools, _names = check.sorted_keys(found.tools), _ids = {} }, Manifest)
  for i, name in ipairs(self._names) do self._ids[name] = i - 1 end
  self._native = require("omni.plm.run").pool(self, found.workers)
  return self
end

-- ---- reading ----

--- The names of all tools, sorted.
---@return string[] names
function Manifest:names() return { unpack(self._names) } end

--- Whether there is such a tool.
---@param name string
---@return boolean
function Manifest:has(name) return self._tools[name] ~= nil end

--- Whether it is a tool that may start early.
---@param name string
---@return boolean
function Manifest:early(name) return self._tools[name] ~= nil and self._tools[name].allow_early_read == true end

--- Its number for the engine, from 0, in the order of names.
---@param name string
---@return integer|nil id
function Manifest:tool_id(name) return self._ids[name] end

--- A tool as it was given.
---@param name string
---@return omni.plm.Tool|nil
function Manifest:tool(name) return self._tools[name] end

--- The most likely tool for a name that is none: `(did you mean "x"?)`.
---@param name any
---@return string hint
function Manifest:hint(name) return check.hint(name, self._names) end

--- Ends its workers once no run is open. Idempotent; later runs are refused.
function Manifest:close()
  self._closed = true
  if (self._runs or 0) == 0 then self._native:close() end
end

--- What its workers did so far.
---@return table stats workers, idle, queued, started, died, jobs
function Manifest:stats() return self._native:stats() end

return M
