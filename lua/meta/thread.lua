---@meta omni.native.thread

--- Threads with states of their own; use `omni.thread`.
---@class omni.native.thread
---@field methods table class table of all threads, to which `omni.thread` adds
local thread = {}

--- Starts a thread. Raises where the payload or a handle cannot cross.
---@param name string of the thread and of its state
---@param payload any plain data for `omni.thread`'s entry
---@param handles userdata[]
---@return omni.Thread
function thread.start(name, payload, handles) end

--- In the thread: what join returns. Called once.
---@param ok boolean
---@param value any the results, or the error's text
---@return boolean? sent false when the value cannot cross
---@return string? why
function thread.finish(ok, value) end

---@class omni.Thread
local Thread = {}

--- Asks its state to end as os.exit(0) would.
function Thread:stop() end

---@return boolean
function Thread:_ended() end

--- Suspends until it has ended.
---@param timeout number seconds, -1 = none
---@return boolean ended false on timeout
function Thread:_wait(timeout) end

--- Of a thread that has ended.
---@return boolean ok
---@return any value
function Thread:_result() end

return thread
