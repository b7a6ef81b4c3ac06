--- Threads: Lua code in a state of its own on a thread of its own. Only values and handles cross.
local check = require "omni.check"
local native = require "omni.native.thread"
local sched = require "omni.native.sched"

local M = {}

---@class omni.Thread
---@field stop fun(self: omni.Thread) asks its state to end as os.exit(0) would
local Thread = native.methods

-- Where a handle stood in the arguments, its number stands in this form; no other table has this key.
local HANDLE = "\0omni.handle"

local NULL = require("omni.native.json").null -- userdata as well, but a plain value

-- Copies plain data, moving handles out to a list.
local function extract(value, handles, seen)
  if type(value) == "userdata" and value ~= NULL then
    handles[#handles + 1] = value
    return { [HANDLE] = #handles }
  end
  if type(value) ~= "table" then return value end
  if seen[value] then error("omni.thread cannot pass a table that contains itself", 0) end
  seen[value] = true
  local copy = setmetatable({}, getmetatable(value))
  for k, v in next, value do rawset(copy, k, extract(v, handles, seen)) end
  seen[value] = nil
  return copy
end

local function insert(value, handles)
  if type(value) ~= "table" then return value end
  if value[HANDLE] then return handles[value[HANDLE]] end
  for k, v in next, value do
    if type(v) == "table" then value[k] = insert(v, handles) end
  end
  return value
end

-- A function may capture modules, which the other state requires by name; anything else cannot cross.
local function captured(fn)
  local modules, wrong, names = {}, {}, {}
  for name, module in pairs(package.loaded) do
    if type(module) == "table" or type(module) == "function" then names[module] = name end
  end
  for i = 1, 255 do
    local name, value = debug.getupvalue(fn, i)
    if not name then break end
    if value ~= nil and names[value] and names[value] ~= "_G" then
      modules[i] = names[value]
    elseif value ~= nil then
      wrong[#wrong + 1] = name
    end
  end
  return modules, wrong
end

local function describe(code)
  if type(code) == "string" then return { module = code } end
  if type(code) ~= "function" then
    check.misuse(("omni.thread: a module name or a function is needed, not %s"):format(type(code)))
  end
  local modules, wrong = captured(code)
  if #wrong > 0 then
    check.misuse(("omni.thread: the function captures %s: a thread shares no variables; pass them as arguments, or "
      .. "require modules inside of it"):format(table.concat(wrong, ", ")))
  end
  local ok, dumped = pcall(string.dump, code)
  if not ok then check.misuse "omni.thread: this function is written in C and cannot be sent to a thread" end
  return { code = dumped, modules = modules }
end

--- Runs a module's function, or a function that captures nothing but modules, in a state of its own on a new thread.
---@param code string|function name of a module that returns a function, or the function
---@param ... any arguments: plain data, and sinks, connectors and adapters (also inside of tables)
---@return omni.Thread
function M.start(code, ...)
  local payload, handles = describe(code), {}
  payload.n = select("#", ...)
  local ok, args = pcall(extract, { ... }, handles, {})
  if not ok then check.misuse(args) end
  payload.args = args
  local name = type(code) == "string" and code:match "[^.]*$" or "function"
  local started, thread = pcall(native.start, name, payload, handles)
  if not started then check.misuse(thread) end
  return thread
end

--- Waits until the thread has ended.
---@param timeout? number seconds
---@return any ... what its function returned; or nil, "ERUN: …traceback", "ERUN"; or nil, "ETIMEDOUT: …", "ETIMEDOUT"
function Thread:join(timeout)
  if not self:_ended() and not self:_wait(timeout or -1) and not self:_ended() then
    return nil, "ETIMEDOUT: the thread still runs", "ETIMEDOUT"
  end
  local ok, value = self:_result()
  if not ok then return nil, "ERUN: " .. (value or "the thread failed; its message is on stderr"), "ERUN" end
  if value == nil then return end -- stopped before it returned
  return unpack(value, 1, value.n)
end

-- ---- the thread's side ----

local function load_code(payload)
  if payload.module then
    local fn = require(payload.module)
    if type(fn) ~= "function" then
      error(("module %s must return a function, not %s"):format(payload.module, type(fn)), 0)
    end
    return fn
  end
  local fn = assert(loadstring(payload.code))
  for i, name in pairs(payload.modules) do debug.setupvalue(fn, i, require(name)) end
  return fn
end

local function pack(...) return { n = select("#", ...), ... } end

-- Called by the host as the main task of the thread's state.
function M.entry(payload, ...)
  local handles = { ... }
  local args = insert(payload.args, handles)
  local ok, results = xpcall(function()
    local fn = load_code(payload)
    return pack(fn(unpack(args, 1, payload.n)))
  end, sched.traceback)
  if not ok and results == nil then results = "error without a value" end
  local sent, why = native.finish(ok, results)
  if sent == false then native.finish(false, "its results cannot cross to another state: " .. why) end
end

return M
