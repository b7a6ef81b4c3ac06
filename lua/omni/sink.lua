--- Sink: many producers in any state or thread, one consumer that takes batches. One wakeup per burst, none lost.
local check = require "omni.check"
local native = require "omni.native.sink"
local sched = require "omni.native.sched"

local M = {}

---@class omni.Sink
---@field put fun(self: omni.Sink, value: any): boolean?, string?, string? true | nil, "EFULL: …", "EFULL"
---@field bind fun(self: omni.Sink): boolean?, string?, string? makes this state the consumer
---@field close fun(self: omni.Sink) no more puts; the consumer gets what is queued, then ECLOSED
---@field stats fun(self: omni.Sink): omni.SinkStats
local Sink = native.methods

---@class omni.SinkStats
---@field puts integer items accepted
---@field gets integer items handed out
---@field refused integer puts beyond the capacity or after close
---@field wakeups_scheduled integer wakeup cycles: doorbells that puts asked for
---@field depth integer items waiting now

-- Hooks of a sink, for specs that force an interleaving; keyed by handle.
local hooks_of = setmetatable({}, { __mode = "k" })

local NEW = {
  capacity = { type = { "integer", "nil" }, check = function(n) return n >= 1, "must be 1 or more" end },
  hooks = { type = { "table", "nil" } },
  bind = { type = { "boolean", "nil" } },
}
local HOOKS = { after_empty_drain = { type = { "function", "nil" } } }
local GET = {
  max_items = { type = { "integer", "nil" }, check = function(n) return n >= 1, "must be 1 or more" end },
  timeout = { type = { "number", "nil" }, check = function(n) return n >= 0, "must be seconds from 0 on" end },
}

--- A sink, bound to this state unless `bind = false`.
---@param opts? { capacity?: integer, hooks?: { after_empty_drain?: fun() }, bind?: boolean } capacity in items
---@return omni.Sink
function M.new(opts)
  opts = check.table(opts or {}, NEW, "sink.new")
  local sink = native.new(opts.capacity)
  if opts.hooks then hooks_of[sink] = check.table(opts.hooks, HOOKS, "sink.new: hooks") end
  if opts.bind ~= false then assert(sink:bind()) end
  return sink
end

-- The deadline is computed once, so that spurious wakes cannot stretch it.
local function remaining(deadline)
  local left = deadline - sched.now()
  return left > 0 and left or 0
end

-- What get_batch is asked, without the full check where nothing is wrong: it is called very often.
local function get_options(opts)
  local max, timeout = math.huge, nil
  if type(opts) ~= "table" then check.table(opts, GET, "sink:get_batch") end
  for key, value in next, opts do
    local number = type(value) == "number"
    if number and key == "max_items" and value >= 1 and value % 1 == 0 then max = value
    elseif number and key == "timeout" and value >= 0 then timeout = value
    else check.table(opts, GET, "sink:get_batch") end
  end
  return max, timeout
end

--- Waits until there is something and takes it.
---@param opts? { max_items?: integer, timeout?: number } timeout in seconds
---@return any[]? batch 1..max_items values, oldest first; {} on timeout; nil when the sink is closed and empty
---@return string? error "ECLOSED: …"
---@return string? code "ECLOSED"
function Sink:get_batch(opts)
  local max, timeout = math.huge, nil
  if opts ~= nil then max, timeout = get_options(opts) end
  local deadline
  self:_ready()
  while true do
    local batch = self:_drain(max)
    if batch then return batch end
    local hooks = hooks_of[self]
    if hooks and hooks.after_empty_drain then hooks.after_empty_drain() end
    -- A put between the empty drain and the arm saw the flag up and did not ring: _arm drains again to find its item.
    batch = self:_arm(max)
    if batch then return batch end
    if batch == false then return nil, "ECLOSED: the sink is closed", "ECLOSED" end
    local left = deadline and remaining(deadline) or timeout or -1
    deadline = deadline or timeout and sched.now() + timeout
    if not self:_wait(left) and deadline and sched.now() >= deadline then return self:_drain(max) or {} end
  end
end

return M
