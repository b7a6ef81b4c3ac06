--- Parameters of tools: a small part of JSON Schema (type, enum, required, items, properties, minimum, maximum).
-- A list of schemas describes the arguments by position, one schema the first argument.
local check = require "omni.check"
local json = require "omni.json"

local M = {}

local TYPES = { "array", "boolean", "integer", "null", "number", "object", "string" }
local IS_TYPE = {}
for _, name in ipairs(TYPES) do IS_TYPE[name] = true end

local function is_list(value)
  if type(value) ~= "table" then return false end
  local count = 0
  for key in pairs(value) do
    if type(key) ~= "number" then return false end
    count = count + 1
  end
  return count == #value
end

-- Why a type of a schema is none.
local function type_problem(given)
  for _, name in ipairs(type(given) == "table" and given or { given }) do
    if not IS_TYPE[name] then return ("names no type: %s%s"):format(tostring(name), check.hint(name, TYPES)) end
  end
end

local KEYS = {
  type = { type = { "string", "strings", "nil" }, check = function(given)
    local why = type_problem(given)
    return not why, why
  end },
  enum = { type = { is_list, "nil" } },
  required = { type = { "strings", "nil" } },
  items = { type = { "table", "nil" } },
  properties = { type = { "table", "nil" } },
  minimum = { type = { "number", "nil" } },
  maximum = { type = { "number", "nil" } },
  description = { type = { "string", "nil" } },
}

local function schema_problems(schema, where, out)
  local problems = check.problems(schema, KEYS, where)
  for _, problem in ipairs(problems) do out[#out + 1] = problem end
  if #problems > 0 then return end
  if schema.items then schema_problems(schema.items, where .. ".items", out) end
  for _, name in ipairs(schema.properties and check.sorted_keys(schema.properties) or {}) do
    schema_problems(schema.properties[name], ("%s.properties.%s"):format(where, tostring(name)), out)
  end
end

--- What is wrong with a tool's `params`.
---@param params table one schema, or a list of them
---@param where string
---@return string[] problems
function M.problems(params, where)
  local out = {}
  if not is_list(params) then
    schema_problems(params, where, out)
    return out
  end
  for i, schema in ipairs(params) do schema_problems(schema, ("%s[%d]"):format(where, i), out) end
  return out
end

-- ---- values ----

local function type_of(value)
  if value == nil or value == json.null then return "null" end
  if type(value) ~= "table" then return type(value) end
  if json.is_array(value) or value[1] ~= nil then return "array" end
  return "object"
end

local function has_type(value, actual, wanted)
  if wanted == actual then return true end
  if wanted == "integer" then return actual == "number" and value % 1 == 0 end
  return wanted == "array" and actual == "object" and next(value) == nil -- `{}` of Lua is both
end

local function article(name) return (name:find "^[aeiou]" and "an " or "a ") .. name end

local function check_type(value, schema, path)
  local actual, names = type_of(value), type(schema.type) == "table" and schema.type or { schema.type }
  for _, name in ipairs(names) do
    if has_type(value, actual, name) then return end
  end
  local words = {}
  for i, name in ipairs(names) do words[i] = article(name) end
  if value == nil then return ("%s is missing: %s is needed"):format(path, table.concat(words, " or ")) end
  return ("%s must be %s, not %s"):format(path, table.concat(words, " or "), article(actual))
end

local function show(value)
  local text = json.encode(value)
  return text and (#text > 40 and text:sub(1, 40) .. "..." or text) or tostring(value)
end

local function check_enum(value, schema, path)
  local text, words = json.encode(value == nil and json.null or value), {}
  for i, candidate in ipairs(schema.enum) do
    words[i] = show(candidate)
    if json.encode(candidate) == text then return end
  end
  return ("%s must be one of %s, not %s"):format(path, table.concat(words, ", "), show(value))
end

local check_value

local function check_object(value, schema, path)
  for _, name in ipairs(schema.required or {}) do
    if value[name] == nil then return ("%s.%s is missing"):format(path, name) end
  end
  for _, name in ipairs(schema.properties and check.sorted_keys(schema.properties) or {}) do
    local given = value[name]
    local problem = given ~= nil and check_value(given, schema.properties[name], ("%s.%s"):format(path, name))
    if problem then return problem end
  end
end

local function check_range(value, schema, path)
  if schema.minimum and value < schema.minimum then
    return ("%s must be at least %s, not %s"):format(path, show(schema.minimum), show(value))
  end
  if schema.maximum and value > schema.maximum then
    return ("%s must be at most %s, not %s"):format(path, show(schema.maximum), show(value))
  end
end

function check_value(value, schema, path)
  local problem = schema.type and check_type(value, schema, path) or schema.enum and check_enum(value, schema, path)
  if problem then return problem end
  local actual = type_of(value)
  if actual == "number" then return check_range(value, schema, path) end
  if actual == "object" then return check_object(value, schema, path) end
  if actual ~= "array" or not schema.items then return end
  for i, item in ipairs(value) do
    problem = check_value(item, schema.items, ("%s[%d]"):format(path, i))
    if problem then return problem end
  end
end

--- Checks a call's arguments.
---@param params table as given to the tool
---@param args table arguments by position
---@return string|nil problem names the path: `argument 1.items[3].price must be a number, not a string`
function M.check(params, args)
  if not is_list(params) then return (check_value(args[1], params, "argument 1")) end
  for i, schema in ipairs(params) do
    local problem = check_value(args[i], schema, "argument " .. i)
    if problem then return problem end
  end
end

return M
