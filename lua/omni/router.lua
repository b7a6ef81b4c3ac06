--- Router: remote calls over a shared channel. Results come back in any order, from any state or thread, and find who
--- waits for them by key.
local check = require "omni.check"
local log = require "omni.log"
local native = require "omni.native.router"
local sched = require "omni.native.sched"

local M = {}

---@alias omni.RouterKey string|number|(string|number)[] compared by value

---@class omni.RouterStats
---@field registered integer waiters made
---@field delivered integer results and errors that found one
---@field late_results integer results and errors that found none
---@field waiting integer live waiters

---@class omni.Router
---@field register fun(self: omni.Router, key: omni.RouterKey): omni.Waiter?, string?, string? EEXIST for a live key
---@field deliver fun(self: omni.Router, key: omni.RouterKey, value: any): boolean false: nobody waits, counted as late
---@field unregister fun(self: omni.Router, key: omni.RouterKey, waiter: omni.Waiter): boolean only if it is that waiter
---@field stats fun(self: omni.Router): omni.RouterStats
local Router = native.methods

---@class omni.Waiter
local Waiter = native.waiter_methods

--- A router; it can be passed to threads.
---@return omni.Router
function M.new() return native.new() end

-- A text with a code of ours keeps it; others are failures of Lua code.
local function coded(text)
  local code = text:match "^(E[A-Z0-9]+): "
  if code then return text, code end
  return "ERUN: " .. text, "ERUN"
end

local function error_text(err, where)
  if type(err) ~= "string" then
    check.misuse(("%s: the error must be a text such as \"ECODE: what happened\", not a %s"):format(where, type(err)))
  end
  return (coded(err))
end

--- Hands an error to who waits for the key.
---@param key omni.RouterKey
---@param err string "ECODE: what happened"
---@return boolean found false: nobody waits, counted as late
function Router:fail(key, err) return self:_fail(key, error_text(err, "router:fail")) end

--- Everybody who waits fails with this error now, and everybody who comes later at once, without sending.
---@param err string "ECODE: what happened"
function Router:fail_all(err) self:_fail_all(error_text(err, "router:fail_all")) end

--- Fails who waits and who comes with ECLOSED. Idempotent.
function Router:close() self:_fail_all "ECLOSED: the router is closed" end

-- Why _enter failed; a latched error has its code in its text.
local function refused(err, code) return nil, err, code or select(2, coded(err)) end

-- The routers of waiters: whoever waits holds the router, so that it is known whether somebody else does as well.
local router_of = setmetatable({}, { __mode = "k" })

--- A waiter for the key, which only one can have.
---@param key omni.RouterKey
---@return omni.Waiter? waiter
---@return string? error "EEXIST: …" for a live key, or what fail_all latched
---@return string? code
function Router:register(key)
  local waiter = native.waiter()
  local ok, err, code = self:_enter(key, waiter)
  if ok then
    router_of[waiter] = self
    return waiter
  end
  return refused(err, code)
end

local function taken(ok, value)
  if ok then return value end
  return nil, coded(value)
end

--- Waits for the result.
---@param timeout? number seconds
---@return any value; or nil, "ECODE: …", "ECODE": the error that was delivered, or ETIMEDOUT
function Waiter:wait(timeout)
  local deadline = timeout and sched.now() + timeout
  while true do
    local ok, value = self:_take()
    if ok ~= nil then return taken(ok, value) end
    local left = deadline and math.max(0, deadline - sched.now()) or -1
    if not self:_wait(left) then
      ok, value = self:_take()
      if ok ~= nil then return taken(ok, value) end
      return nil, "ETIMEDOUT: no result before the deadline", "ETIMEDOUT"
    end
  end
end

local function show(key)
  if type(key) ~= "table" then return tostring(key) end
  local parts = {}
  for i, part in ipairs(key) do parts[i] = show(part) end
  return "{" .. table.concat(parts, ", ") .. "}"
end

-- Records of calls that are over, with their waiters, for the calls to come: a call makes no garbage of its own.
local spares = {}
local KEPT = 64

local function record_of(router, key, send)
  local call = spares[#spares]
  if call then
    spares[#spares] = nil
    call.router, call.key, call.send = router, key, send
    return call
  end
  call = { router = router, key = key, send = send, waiter = native.waiter(), sent = false, over = false }
  call.failure = false
  return call
end

-- The waiter's answer was taken, or it was never registered, and send is not running: nobody else knows the record.
local function recycle(call)
  if #spares >= KEPT then return end
  call.router, call.key, call.send, call.sent = false, false, false, false
  spares[#spares + 1] = call
end

-- Runs send as a task of its own, so that a send that suspends can be left behind.
local function guard(call)
  local ok, err = pcall(call.send)
  call.sent = true
  if ok then return end
  if call.over then
    log.warn("the send of a call that is over failed", { key = show(call.key), error = tostring(err) })
    return
  end
  call.failure = { err }
  -- By the waiter and not by the key, which is somebody else's where an answer came before.
  call.waiter:_fail "ERUN: send failed"
end

local function finish(call, ...)
  call.over = true
  call.waiter:_release()
  if call.failure then error(call.failure[1], 0) end
  if not call.sent then
    log.warn("a call is over and its send still runs; it is left behind", { key = show(call.key) })
  end
  return ...
end

-- The answer came while send ran, or was waited for: the usual end.
local function answered(call, ok, value)
  recycle(call)
  if ok then return value end
  return nil, coded(value)
end

-- At the deadline a deliverer may have claimed the waiter already: then its answer is a moment away, and is the result.
local function last_look(call, value, err, code)
  if code ~= "ETIMEDOUT" or call.router:unregister(call.key, call.waiter) then return value, err, code end
  return call.waiter:wait()
end

--- Registers the key, sends, and waits for the result. One deadline covers both.
---@param key omni.RouterKey
---@param send fun() lets the request go; it may suspend. What it raises, call raises
---@param timeout? number seconds
---@return any value; or nil, "ECODE: …", "ECODE": a delivered error, EEXIST, ETIMEDOUT, or what fail_all latched
function Router:call(key, send, timeout)
  if type(send) ~= "function" then
    check.misuse(("router:call: send must be a function, not a %s"):format(type(send)))
  end
  if timeout ~= nil and (type(timeout) ~= "number" or timeout < 0 or timeout ~= timeout) then
    check.misuse(("router:call: timeout must be seconds from 0 on, not %s"):format(tostring(timeout)))
  end
  local deadline = timeout and sched.now() + timeout
  local call = record_of(self, key, send)
  local waiter = call.waiter
  local entered, err, code = self:_enter(key, waiter)
  if not entered then
    recycle(call)
    return refused(err, code)
  end
  sched.run(guard, call)
  local ok, value = waiter:_take()
  if ok == nil and call.sent and waiter:_wait(deadline and math.max(0, deadline - sched.now()) or -1) then
    ok, value = waiter:_take()
  end
  if ok ~= nil and call.sent and not call.failure then return answered(call, ok, value) end
  return finish(call, last_look(call, waiter:wait(deadline and math.max(0, deadline - sched.now()))))
end

return M
