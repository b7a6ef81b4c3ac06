---@meta omni.native.shm

--- The steps of a connector that never suspend; use `omni.shm`.
---@class omni.native.shm
---@field methods table class table of all connectors, to which `omni.shm` adds
---@field view_methods table class table of all views
---@field waiter_methods table class table of all waiters
local shm = {}

--- Opens a connector. `owned` takes the namespaces that hosts make, and only them.
---@param opts { namespace: string, lock_dir?: string, shm_dir?: string, view_limit?: number, owned?: boolean }
---@return omni.Shm|nil
---@return string? message
---@return string? code
function shm.open(opts) end

---@class omni.Shm
local Shm = {}

--- One try to put.
---@param key string
---@param value string|omni.ShmView
---@return true|nil
---@return string? message
---@return string? code "EBUSY": somebody holds the lock
function Shm:_put(key, value) end

--- Takes a value; never waits.
---@param key string
---@return string|nil bytes nil when nothing is there or it is being written
---@return string? message
---@return string? code "ECORRUPT": its writer died
function Shm:get(key) end

--- As get, and tells why nothing came.
---@param key string
---@return string|nil bytes
---@return string? why "absent", "busy", or the message
---@return string? code
function Shm:_try(key) end

--- Takes a value without copying it; never waits.
---@param key string
---@return omni.ShmView|nil
---@return string? message
---@return string? code "E2BIG": live views would hold more than view_limit
function Shm:get_view(key) end

--- From now on events of the key are noticed: look once more, then wait.
---@param key string
---@return omni.ShmWaiter|nil
---@return string? message
---@return string? code
function Shm:_waiter(key) end

--- Removes one key, whoever wrote it.
---@param name string of its segment
---@return true|nil
---@return string? message
---@return string? code "EBUSY": its lock is held
function Shm:_discard_name(name) end

--- Removes the unread keys that were put through this handle and start so.
---@param prefix string
---@return integer removed
function Shm:cleanup_prefix(prefix) end

--- Name of the segment that holds a key's value.
---@param key string
---@return string
function Shm:shm_name(key) end

--- Path of a key's lock file.
---@param key string
---@return string
function Shm:lock_path(key) end

--- Later calls fail with ECLOSED, as do waits under way; what was put stays.
function Shm:close() end

---@return omni.ShmStats
function Shm:stats() end

--- A value that lies where its writer put it, read-only, until it is closed or collected.
---@class omni.ShmView
local View = {}

---@return integer bytes
function View:len() end

--- A copy of bytes i to j, as string.sub counts.
---@param i? integer
---@param j? integer
---@return string
function View:string(i, j) end

--- Its first byte, for `ffi.cast("const uint8_t *", view:ptr())`; valid until close.
---@return lightuserdata
function View:ptr() end

--- Gives the memory back. May be called again.
function View:close() end

---@class omni.ShmWaiter
local Waiter = {}

--- Suspends until something may have come.
---@param timeout number seconds, -1 = none
---@return boolean woken false on timeout
function Waiter:_wait(timeout) end

--- Whether the lock directory was removed.
---@return boolean
function Waiter:_gone() end

function Waiter:close() end

return shm
