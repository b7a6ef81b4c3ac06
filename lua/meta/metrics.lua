---@meta omni.native.metrics

--- The registry of metrics; use `omni.metrics`.
---@class omni.native.metrics
local metrics = {}

--- A metric; equal name and labels give the same one.
---@param kind "counter"|"gauge"|"histogram"
---@param name string
---@param labels string `a="1",b="x"`, or ""
---@return omni.metrics.counter|omni.metrics.gauge|omni.metrics.histogram metric
function metrics.new(kind, name, labels) end

--- All metrics, in order of name and labels; as `omni.metrics.snapshot`, but labels are text.
---@return table[]
function metrics.list() end

return metrics
