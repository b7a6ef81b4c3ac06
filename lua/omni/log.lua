--- The log: one line per message on stderr, `key=value` pairs on a terminal, JSON lines otherwise. The level is that of
-- the whole process (at first OMNIHOST_LOG, else info). Writing a message never raises: a field that has no form in
-- JSON is shown as `tostring` shows it.

local check = require "omni.check"
local json = require "omni.json"
local native = require "omni.native.log"

---@class omni.log.logger
---@field debug fun(msg: any, fields?: table)
---@field info fun(msg: any, fields?: table)
---@field warn fun(msg: any, fields?: table)
---@field error fun(msg: any, fields?: table)
---@field with fun(fields: table): omni.log.logger a logger that adds these fields to each message

---@class omni.log: omni.log.logger
local log = {}

local RESERVED = { ts = true, level = true, msg = true } -- the line's own keys
local numbers = {} -- level name -> number
for i, name in ipairs(native.names) do numbers[name] = i - 1 end

-- What this state captures: records so far, the function that is told, its first error. nil when it does not.
local capture

local function shown(value)
  local ok, text = pcall(tostring, value)
  return ok and type(text) == "string" and text or "(" .. type(value) .. ")"
end

-- A value as JSON text, whatever it is; what is not UTF-8 is quoted by Lua's rules first.
local function encoded(value)
  local ok, text = pcall(json.encode, value)
  if ok and text then return text end
  local plain = shown(value)
  text = json.encode(plain)
  return text or json.encode((plain:gsub("[\128-\255]", function(c) return ("\\%d"):format(c:byte()) end)))
end

-- {key, json, key, json, …} in the order of the keys.
local function flatten(fields)
  local values, keys = {}, {}
  for key, value in pairs(fields) do
    local name = shown(key)
    if RESERVED[name] then name = name .. "_" end
    if values[name] == nil then keys[#keys + 1] = name end
    values[name] = encoded(value)
  end
  table.sort(keys)
  local flat = {}
  for _, key in ipairs(keys) do
    flat[#flat + 1] = key
    flat[#flat + 1] = values[key]
  end
  return flat
end

local function tell(record)
  capture.records[#capture.records + 1] = record
  if not capture.fn then return end
  local ok, err = pcall(capture.fn, record)
  if not ok then capture.failure = capture.failure or err end
end

local function take()
  for line in native.take():gmatch("[^\n]+") do tell((json.decode(line))) end
end

local function merged(base, fields)
  local all = {}
  for key, value in pairs(base) do all[key] = value end
  if type(fields) ~= "table" then
    all.fields = fields -- nil, or a mistake that is worth showing
  else
    for key, value in next, fields do all[key] = value end
  end
  return all
end

local function write(level, msg, base, fields)
  native.write(level, shown(msg), flatten(merged(base, fields)))
  if capture then take() end
end

-- Gives a logger its methods; base: the fields that each of its messages carries.
local function equip(logger, base)
  for _, name in ipairs { "debug", "info", "warn", "error" } do
    local level = numbers[name]
    logger[name] = function(msg, fields)
      if level >= native.level() then pcall(write, level, msg, base, fields) end
    end
  end
  logger.with = function(fields)
    if type(fields) ~= "table" then check.misuse("log.with: fields must be a table, got " .. type(fields)) end
    return equip({}, merged(base, fields))
  end
  return logger
end

equip(log, {})

--- The lowest level that is written, and sets it for the whole process.
---@param name? "debug"|"info"|"warn"|"error"|"off"
---@return string before the level before the call
function log.level(name)
  if name ~= nil and not numbers[name] then
    local what = type(name) == "string" and ("%q"):format(name) or "of type " .. type(name)
    check.misuse(("log.level: there is no level %s%s"):format(what, check.hint(name, native.names)))
  end
  return native.names[native.level(numbers[name]) + 1]
end

--- For tests: keeps the lines of the whole process, of all its threads, instead of writing them. fn(record) is told of
-- each at this state's next message, and at `release`; a record is the decoded line: ts, level, msg, fields.
---@param fn? fun(record: table)
function log.capture(fn)
  capture = { records = {}, fn = fn }
  native.capture(true)
end

--- Ends `capture`. An error of its function is raised here.
---@return table[] records all that was captured, in order
function log.release()
  local done = capture
  if not done then return {} end
  take()
  native.capture(false)
  capture = nil
  if done.failure then error(done.failure, 0) end
  return done.records
end

return log
