--- Shared-memory connector: put and get bytes by key between processes, agreed by names and file locks alone. A value
-- is delivered whole and once, and outlives its writer.
local check = require "omni.check"
local native = require "omni.native.shm"
local owner = require "omni.native.owner"
local sched = require "omni.native.sched"

---@class omni.shmlib
local M = {}

---@class omni.Shm
---@field get fun(self: omni.Shm, key: string): string?, string?, string? bytes | nil | nil, "ECODE: …", "ECODE"
---@field get_view fun(self: omni.Shm, key: string): omni.ShmView?, string?, string? as get, without a copy
---@field cleanup_prefix fun(self: omni.Shm, prefix: string): integer removes unread keys that this handle put
---@field shm_name fun(self: omni.Shm, key: string): string
---@field lock_path fun(self: omni.Shm, key: string): string
---@field close fun(self: omni.Shm) whoever waits gets ECLOSED; what was put stays
---@field stats fun(self: omni.Shm): omni.ShmStats
local Shm = native.methods

---@class omni.ShmStats
---@field puts integer that succeeded
---@field gets integer that succeeded
---@field put_bytes integer
---@field get_bytes integer
---@field busy integer tries that found the lock held
---@field incomplete integer segments whose writer died
---@field cleaned integer keys removed unread
---@field live_segments integer put through this handle and unread now
---@field live_views integer
---@field view_bytes integer

local NAMESPACE_MAX = 9
local PAUSE_MIN, PAUSE_MAX = 50e-6, 5e-3 -- between tries while somebody holds a lock: its release announces nothing

local function check_namespace(ns)
  if #ns > NAMESPACE_MAX then
    return false, ("has %d characters, the limit is %d (of a-z and 0-9)"):format(#ns, NAMESPACE_MAX)
  end
  if not ns:find "^[a-z0-9]+$" then return false, "must be characters of a-z and 0-9" end
  if owner.is_owned_name(ns) then
    return false, "has the form that omnihost makes for its own pipelines (o and 8 of a-z, 2-7)"
  end
  return true
end

local function seconds(n) return n >= 0, "must be seconds from 0 on" end

local OPEN = {
  namespace = { type = "string", check = check_namespace },
  lock_dir = { type = { "string", "nil" } },
  shm_dir = { type = { "string", "nil" } },
  view_limit = { type = { "integer", "nil" }, check = function(n) return n >= 1, "must be bytes from 1 on" end },
}
local PUT = { timeout = { type = "number", default = 5, check = seconds } }
local WAIT = { timeout = { type = { "number", "nil" }, check = seconds } }

--- Opens a connector. All who use one namespace (and one lock_dir) share its keys.
---@param opts { namespace: string, lock_dir?: string, shm_dir?: string, view_limit?: integer } view_limit in bytes
---@return omni.Shm? connector
---@return string? error "ECODE: …" when a directory cannot be used
---@return string? code
function M.open(opts) return native.open(check.table(opts, OPEN, "shm.open")) end

local function remaining(deadline) return math.max(0, deadline - sched.now()) end

-- The lock is held: tries again and again, less and less often, while others run.
local function put_patiently(self, key, value, deadline)
  local pause = PAUSE_MIN
  while true do
    local left = remaining(deadline)
    sched.park("connector:put", math.min(pause, left))
    local ok, message, code = self:_put(key, value)
    if ok or code ~= "EBUSY" or left <= 0 then return ok, message, code end
    pause = math.min(pause * 4, PAUSE_MAX)
  end
end

--- Stores bytes under a key, in place of what is unread there. Suspends while somebody holds the key's lock.
---@param key string
---@param value string|omni.ShmView
---@param opts? { timeout?: number } seconds that the lock may be held by somebody else (5)
---@return boolean? ok
---@return string? error "ENOSPC: …", "EBUSY: …" …
---@return string? code
function Shm:put(key, value, opts)
  local timeout = opts == nil and PUT.timeout.default or check.table(opts, PUT, "connector:put").timeout
  local ok, message, code = self:_put(key, value)
  if ok or code ~= "EBUSY" or timeout == 0 then return ok, message, code end
  return put_patiently(self, key, value, sched.now() + timeout)
end

-- Until the key is there. The waiter is in the watch's table before each look, so an event that comes after the look
-- ends the wait; where the lock is held none may come, and a timer does.
local function wait_patiently(self, waiter, key, deadline)
  local pause = PAUSE_MIN
  while true do
    local data, message, code = self:_try(key)
    if data or code then return data, message, code end
    if waiter:_gone() then return nil, "ENOENT: the lock directory is gone", "ENOENT" end
    local left = deadline and remaining(deadline)
    if left == 0 then return nil, "ETIMEDOUT: nothing was put under the key in time", "ETIMEDOUT" end
    local busy = message == "busy"
    waiter:_wait(busy and math.min(pause, left or pause) or left or -1)
    pause = busy and math.min(pause * 4, PAUSE_MAX) or PAUSE_MIN
  end
end

--- Waits until a value is there and takes it. Idle, it costs nothing: the kernel announces what is put.
---@param key string
---@param opts? { timeout?: number } seconds; default: no limit
---@return string? bytes
---@return string? error "ETIMEDOUT: …" …
---@return string? code
function Shm:wait(key, opts)
  local timeout = opts ~= nil and check.table(opts, WAIT, "connector:wait").timeout
  local deadline = timeout and sched.now() + timeout
  local data, message, code = self:_try(key)
  if data or code then return data, message, code end
  local waiter
  waiter, message, code = self:_waiter(key)
  if not waiter then return nil, message, code end
  data, message, code = wait_patiently(self, waiter, key, deadline)
  waiter:close()
  return data, message, code
end

return M
