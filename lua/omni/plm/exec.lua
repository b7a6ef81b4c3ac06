--- One call of a tool: what it is given, and what of its outcome travels. On a worker or at home.
local json = require "omni.json"
local schema = require "omni.plm.schema"
local native = require "omni.native.plm"
local sched = require "omni.native.sched"

local M = {}

local NULL = json.null
local CANCELLED = "ECANCELED: nobody waits for this call any more"

---@class omni.plm.Context what a tool gets as its first argument
local Context = {}
Context.__index = Context

--- Whether nobody waits for this call any more: its run has ended, its time is over, or it was read early in vain.
---@return boolean
function Context:cancelled() return self._over or self._job:_cancelled() end

--- When it has to be done.
---@return number|nil seconds on `omni.now`'s clock
function Context:deadline() return self._deadline end

--- Suspends; a cancel ends it with an error, as it ends every other function that suspends.
---@param seconds number
function Context:sleep(seconds)
  if type(seconds) ~= "number" or seconds ~= seconds or seconds < 0 then
    error(("ctx:sleep: seconds must be a number from 0 on, not %s"):format(tostring(seconds)), 2)
  end
  if self:cancelled() then error(CANCELLED, 0) end
  local slept = native.nap(seconds)
  if slept == nil then
    sched.park("ctx:sleep", seconds)
  elseif not slept then
    error(CANCELLED, 0)
  end
end

-- ---- responses ----

--- The response for an error.
---@param message string "ECODE: what happened", or any text
---@return string json
function M.failure(message)
  local code = message:match "^(E[A-Z0-9]+): " or "ERUN"
  return json.encode { code = code, error = message } or json.encode { code = code, error = "(not UTF-8)" }
end

local function encode(tool, n, ...)
  if n == 1 and (...) ~= nil then -- by far the most
    local text, why = json.encode((...))
    if text then return '{"n":1,"ok":[' .. text .. "]}" end
    return M.failure(("EJSON: tool %s: result 1 cannot travel: %s"):format(tool.name, why:gsub("^EJSON: ", "")))
  end
  local parts = {}
  for i = 1, n do
    local value = select(i, ...)
    local text, why = json.encode(value == nil and NULL or value)
    if not text then
      return M.failure(("EJSON: tool %s: result %d cannot travel: %s"):format(tool.name, i, why:gsub("^EJSON: ", "")))
    end
    parts[i] = text
  end
  return ('{"n":%d,"ok":[%s]}'):format(n, table.concat(parts, ","))
end

-- An error value as text.
local function text_of(err)
  if type(err) == "string" then return err end
  local meta = getmetatable(err)
  if type(meta) == "table" and meta.__tostring then
    local ok, text = pcall(tostring, err)
    if ok and type(text) == "string" then return text end
  end
  return type(err) == "number" and tostring(err) or ("(error object is a %s value)"):format(type(err))
end

local function respond(tool, ok, ...)
  if ok then return encode(tool, select("#", ...), ...) end
  return M.failure(text_of((...)))
end

-- ---- the call ----

local function call(job, tool, ctx)
  local args, why = json.decode(job:_args())
  if not args then return M.failure(why) end
  local n = #args
  setmetatable(args, nil)
  for i = 1, n do
    if args[i] == NULL then args[i] = nil end
  end
  local problem = tool.params and schema.check(tool.params, args)
  if problem then return M.failure(("EINVAL: tool %s: %s"):format(tool.name, problem)) end
  return respond(tool, pcall(tool.call, ctx, unpack(args, 1, n)))
end

--- Runs a job's tool in the present task and publishes what came of it.
---@param job userdata
---@param tool omni.plm.Tool|nil
---@param why string|nil what to answer where there is no tool
function M.run(job, tool, why)
  if not job:_begin() then return job:_finish(M.failure(CANCELLED)) end
  if not tool then return job:_finish(M.failure(why)) end
  local ctx = setmetatable({ _job = job, _deadline = job:_deadline() }, Context)
  local response = call(job, tool, ctx)
  ctx._over = true
  job:_finish(response)
end

-- ---- reading responses ----

--- The arguments as they travel.
---@param args table list, with `n` where it ends in nil
---@return string|nil json
---@return string? message
function M.encode_args(args)
  local n = args.n or #args
  if n == 0 then return "[]" end
  local parts = {}
  for i = 1, n do
    local value = args[i]
    local text, why = json.encode(value == nil and NULL or value)
    if text and n == 1 then return "[" .. text .. "]" end
    if not text then return nil, ("EJSON: argument %d cannot travel: %s"):format(i, (why:gsub("^EJSON: ", ""))) end
    parts[i] = text
  end
  return "[" .. table.concat(parts, ",") .. "]"
end

--- The values of a response; or nil, "ECODE: …", "ECODE".
---@param response string
---@return any ...
function M.decode(response)
  local value, why = json.decode(response)
  if not value then return nil, why, "EJSON" end
  if value.error then
    local message = value.error
    if message:sub(1, #value.code + 2) ~= value.code .. ": " then message = value.code .. ": " .. message end
    return nil, message, value.code
  end
  local values = value.ok
  for i = 1, value.n do
    if values[i] == NULL then values[i] = nil end
  end
  return unpack(values, 1, value.n)
end

return M
