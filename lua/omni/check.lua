--- Strict checks of tables that users write: key by key, all problems at once, each with the script's file and line
-- and the nearest valid name.

local check = {}

-- Frames of our own modules are skipped when the user's line is looked for, wherever they were loaded from.
local OWN = debug.getinfo(1, "S").source:gsub("check%.lua$", "")

--- Where the user's code stands: "file:line" of the nearest frame that is not ours and not C.
---@return string|nil origin
function check.origin()
  for level = 2, 200 do
    local frame = debug.getinfo(level, "Sl")
    if not frame then return nil end
    local ours = frame.source:sub(1, #OWN) == OWN or frame.source:sub(1, 9) == "@builtin/"
    if not ours and frame.currentline > 0 then return frame.short_src .. ":" .. frame.currentline end
  end
end

--- Raises misuse at the user's line.
---@param message string
---@param origin? string "file:line" kept from an earlier call; default: where the user's code stands now
function check.misuse(message, origin)
  origin = origin or check.origin()
  error(origin and origin .. ": " .. message or message, 0)
end

local function distance(a, b)
  local row = {}
  for j = 0, #b do row[j] = j end
  for i = 1, #a do
    local diagonal = row[0]
    row[0] = i
    for j = 1, #b do
      local cost = a:byte(i) == b:byte(j) and 0 or 1
      diagonal, row[j] = row[j], math.min(row[j] + 1, row[j - 1] + 1, diagonal + cost)
    end
  end
  return row[#b]
end

--- The name in the list that the user most likely meant.
---@param name string
---@param list string[]
---@return string|nil nearest nil when none is close enough
function check.nearest(name, list)
  local best, least
  for _, candidate in ipairs(list) do
    local begun = #name >= 3 and candidate:sub(1, #name) == name -- cut short
    local d = begun and 1 or distance(name:lower(), candidate:lower())
    if not least or d < least or (d == least and candidate < best) then best, least = candidate, d end
  end
  if best and least <= math.max(2, math.floor(#name / 3)) and least < #name then return best end
end

--- `(did you mean "x"?)`, or the list of what is valid, for the end of a message.
---@param name any
---@param list string[]
---@return string hint
function check.hint(name, list)
  local nearest = type(name) == "string" and check.nearest(name, list)
  if nearest then return (' (did you mean "%s"?)'):format(nearest) end
  if #list == 0 then return "" end
  return (" (valid: %s)"):format(table.concat(list, ", "))
end

local function show(value)
  if type(value) == "string" then
    return ("%q"):format(#value > 40 and value:sub(1, 40) .. "..." or value):gsub("\\\n", "\\n")
  end
  return tostring(value)
end

local is = {
  any = function(v) return v ~= nil end,
  integer = function(v) return type(v) == "number" and v % 1 == 0 and math.abs(v) <= 2 ^ 53 end,
  number = function(v) return type(v) == "number" and v == v end,
  positive = function(v) return type(v) == "number" and v > 0 end,
  name = function(v) return type(v) == "string" and v:find("^[%a_][%w_%-]*$") ~= nil end,
  strings = function(v)
    if type(v) ~= "table" then return false end
    local n = 0
    for k, s in pairs(v) do
      if type(s) ~= "string" or type(k) ~= "number" then return false end
      n = n + 1
    end
    return n == #v
  end,
  map = function(v)
    if type(v) ~= "table" then return false end
    for k, s in pairs(v) do
      if type(k) ~= "string" or type(s) ~= "string" then return false end
    end
    return true
  end,
}

local words = {
  any = "a value",
  positive = "a number above 0",
  name = "a name (letters, digits, _ and -, a letter first)",
  strings = "a list of strings",
  map = "a table from strings to strings",
  integer = "an integer",
}

local function matches(value, kind)
  if type(kind) == "function" then return kind(value) and true or false end
  if is[kind] then return is[kind](value) end
  return type(value) == kind
end

local function fits(value, kinds)
  if type(kinds) ~= "table" then return matches(value, kinds) end
  for _, kind in ipairs(kinds) do
    if matches(value, kind) then return true end
  end
  return false
end

local function describe(kinds)
  local out = {}
  for _, kind in ipairs(type(kinds) == "table" and kinds or { kinds }) do
    if kind ~= "nil" and type(kind) == "string" then
      out[#out + 1] = words[kind] or ((kind:find("^[aeiou]") and "an " or "a ") .. kind)
    end
  end
  return #out > 0 and table.concat(out, " or ") or "another value"
end

local function check_value(value, rule)
  local kinds = rule.type or "any"
  if not fits(value, kinds) then
    if value == nil then return ("is missing: %s is needed"):format(describe(kinds)) end
    local actual = type(value) == "table" and "a table" or ("%s %s"):format(type(value), show(value))
    return ("must be %s, not %s"):format(describe(kinds), type(value) == "nil" and "nil" or actual)
  end
  if rule.check and value ~= nil then
    local ok, why = rule.check(value)
    if not ok then return why or "is not valid" end
  end
end

local function sorted_keys(t)
  local keys = {}
  for key in pairs(t) do keys[#keys + 1] = key end
  table.sort(keys, function(a, b) return tostring(a) < tostring(b) end)
  return keys
end
check.sorted_keys = sorted_keys

---@class omni.check.rule
---@field type? string|function|(string|function)[] a type of Lua, or any, integer, positive, name, strings, map, nil
---@field default? any taken when the key is absent
---@field check? fun(value: any): boolean, string? why not

--- The problems of a table, without raising.
---@param value any
---@param spec table<string, omni.check.rule>
---@param where string what the table belongs to: `stage "talker"`
---@return string[] problems empty when all is well
---@return table checked a copy with defaults filled in
function check.problems(value, spec, where)
  if type(value) ~= "table" then
    return { ("%s: a table is needed, not %s"):format(where, type(value)) }, {}
  end
  local problems, checked, valid = {}, {}, sorted_keys(spec)
  for _, key in ipairs(sorted_keys(value)) do
    if spec[key] == nil then
      local name = type(key) == "string" and key or ("[%s]"):format(tostring(key))
      problems[#problems + 1] = ('%s: unknown key "%s"%s'):format(where, name, check.hint(key, valid))
    end
  end
  for _, key in ipairs(valid) do
    local rule, given = spec[key], value[key]
    if given == nil and rule.default ~= nil then given = rule.default end
    local optional = given == nil and rule.type == nil
    local problem = not optional and check_value(given, rule)
    if problem then problems[#problems + 1] = ('%s: key "%s" %s'):format(where, key, problem) end
    checked[key] = given
  end
  return problems, checked
end

local function raise(problems)
  local origin = check.origin()
  local prefix = origin and origin .. ": " or ""
  error(prefix .. table.concat(problems, "\n" .. prefix), 0)
end

--- Checks a table and raises all its problems at the user's line.
---@param value any
---@param spec table<string, omni.check.rule>
---@param where string what the table belongs to: `omni.sink.new`
---@return table checked a copy with defaults filled in
function check.table(value, spec, where)
  local problems, checked = check.problems(value, spec, where)
  if #problems > 0 then raise(problems) end
  return checked
end

--- The same for a function's table of options, all of them optional and without defaults; cheap when all is well.
---@param value table|nil
---@param spec table<string, omni.check.rule>
---@param where string the function
---@return table value itself, or a new table for nil
function check.options(value, spec, where)
  if value == nil then return {} end
  local fine = type(value) == "table"
  for key, given in next, fine and value or {} do
    local rule = spec[key]
    if not rule or check_value(given, rule) then fine = false end
  end
  if fine then return value end
  local optional = {}
  for key, rule in pairs(spec) do
    local kinds = type(rule.type) == "table" and { unpack(rule.type) } or { rule.type }
    kinds[#kinds + 1] = "nil"
    optional[key] = { type = kinds, check = rule.check }
  end
  raise((check.problems(value, optional, where)))
end

--- Checks one argument and raises at the user's line: `pipeline:stage: argument 1 (name) must be a string, not nil`.
---@param value any
---@param kinds string|function|(string|function)[] as in a rule
---@param where string the function and what the argument is
---@return any value
function check.argument(value, kinds, where)
  local problem = check_value(value, { type = kinds })
  if problem then check.misuse(("%s %s"):format(where, problem)) end
  return value
end

return check
