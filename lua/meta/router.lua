---@meta omni.native.router

--- The steps of a router that never suspend; use `omni.router`.
---@class omni.native.router
---@field methods table class table of all routers, to which `omni.router` adds
---@field waiter_methods table class table of all waiters, to which `omni.router` adds
local router = {}

--- A router.
---@return omni.Router
function router.new() end

--- A waiter that waits for nothing yet.
---@return omni.Waiter
function router.waiter() end

---@class omni.Router
local Router = {}

--- Lets the waiter stand for a key until a result comes. It must be new, or its last answer was taken.
---@param key omni.RouterKey
---@param waiter omni.Waiter
---@return true|nil
---@return string? message
---@return string? code "EEXIST": the key has a live waiter; none where fail_all latched the message
function Router:_enter(key, waiter) end

--- Hands a result to who waits.
---@param key omni.RouterKey
---@param value any
---@return boolean found
function Router:deliver(key, value) end

--- Takes this waiter, and no other, off its key.
---@param key omni.RouterKey
---@param waiter omni.Waiter
---@return boolean found
function Router:unregister(key, waiter) end

--- What it counted so far.
---@return omni.RouterStats
function Router:stats() end

--- Hands an error to who waits.
---@param key omni.RouterKey
---@param text string
---@return boolean found
function Router:_fail(key, text) end

--- Fails all who wait, and latches.
---@param text string
function Router:_fail_all(text) end

---@class omni.Waiter
local Waiter = {}

--- The result, if it is there.
---@return boolean|nil ok nil: not yet; false: an error
---@return any value or error text
function Waiter:_take() end

--- Suspends until the result is there.
---@param timeout number seconds, -1 = no limit
---@return boolean woken false on timeout
function Waiter:_wait(timeout) end

--- Fails this waiter, and no other that has its key by now.
---@param text string
---@return boolean found false: its answer is there or on its way
function Waiter:_fail(text) end

--- Off its key, and no more.
function Waiter:_release() end
