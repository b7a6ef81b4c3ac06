---@meta omni.native.sink

--- The steps of a sink that never suspend; use `omni.sink`.
---@class omni.native.sink
---@field methods table class table of all sinks, to which `omni.sink` adds
local sink = {}

--- A sink without a consumer.
---@param capacity? number 0 or none = unlimited
---@return omni.Sink
function sink.new(capacity) end

---@class omni.Sink
local Sink = {}

--- Makes this state the consumer.
---@return true|nil
---@return string? message
---@return "EEXIST"? code
function Sink:bind() end

--- Appends a value. From any state that holds the sink.
---@param value any
---@return true|nil
---@return string? message
---@return "EFULL"|"ECLOSED"|"ECODEC"? code
function Sink:put(value) end

--- No more puts; the consumer gets what is queued, then ECLOSED.
function Sink:close() end

--- What it counted so far.
---@return omni.SinkStats
function Sink:stats() end

--- At most max of the items that are there, oldest first.
---@param max number
---@return any[]|nil items nil when it is empty
function Sink:_drain(max) end

--- Raises where a get cannot begin: not the consumer, or somebody waits already.
function Sink:_ready() end

--- Lowers the flag, so that the next put rings, then drains once more.
---@param max number
---@return any[]|nil|false batch false: empty, and closed for good
function Sink:_arm(max) end

--- Suspends until woken.
---@param timeout number seconds, -1 = none
---@return boolean woken false on timeout
function Sink:_wait(timeout) end

return sink
