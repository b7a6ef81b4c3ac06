--- Chunk adapter: numbered chunks per request from one stage to another over a shared-memory connector. The calls here
-- only enqueue and poll; one SAVE and one RECV thread per process build, put and get.
local check = require "omni.check"
local native = require "omni.native.chunks"
local sched = require "omni.native.sched"

local M = {}

-- The methods written in C are described in lua/meta/chunks.lua.
---@class omni.Chunks
local Chunks = native.methods

---@class omni.Chunk
---@field data any nil where the sender gave nil, or cancelled
---@field finished boolean the last chunk of the request
---@field error? string "ECODE: …": the stream broke here; then there is no data
---@field code? string "ECODE"
---@field sender? true the error is of this adapter's own sending side

---@class omni.ChunksStats
---@field saved integer enqueued
---@field sent integer stored
---@field sent_bytes integer
---@field received integer committed
---@field received_bytes integer
---@field skipped integer nil and not final
---@field dropped integer by cancel, cleanup or failure
---@field stale integer refused because their registration had ended
---@field put_retries integer
---@field put_failures integer
---@field credit_waits integer times that credit was asked for and not there
---@field queued integer waiting for SAVE now
---@field outstanding integer stored and not known to be consumed now (with window or budget)
---@field outstanding_bytes integer
---@field registered integer requests being received now
---@field senders integer requests with sender state now

local NEW = {
  connector = { type = "userdata" },
  stage_id = { type = { "string", "nil" } },
  src_stage_id = { type = { "string", "nil" } },
  window = { type = { "integer", "nil" }, check = function(n) return n >= 1 and n < 2 ^ 31, "must be 1 or more" end },
  budget = { type = { "integer", "nil" }, check = function(n) return n >= 1, "must be 1 byte or more" end },
  put_timeout = { type = { "number", "nil" }, check = function(n) return n > 0, "must be seconds above 0" end },
  build_payload = { type = { "string", "nil" } },
  encoding = {
    type = "string",
    default = "buffer",
    check = function(name)
      local names = { "buffer", "bytes", "json" }
      for _, valid in ipairs(names) do
        if name == valid then return true end
      end
      return false, ("%q is no encoding%s"):format(name, check.hint(name, names))
    end,
  },
}
local WAIT = {
  timeout = { type = { "number", "nil" }, check = function(n) return n >= 0, "must be seconds from 0 on" end },
}

---@class omni.chunks.options
---@field connector omni.Shm
---@field stage_id? string names the chunks that are sent: without it the adapter cannot send
---@field src_stage_id? string names the chunks that are received: without it the adapter cannot receive
---@field window? integer chunks per request that may be stored or in memory unconsumed; both ends need the same
---@field budget? integer bytes that may be queued or stored unconsumed, shared by all requests of this adapter
---@field put_timeout? number seconds that a chunk may take to be stored before its request fails (5)
---@field build_payload? string module that returns function(value, req, is_final) -> payload; runs on the SAVE thread
---@field encoding? "buffer"|"json"|"bytes" of values that are no strings; "buffer" only between omnihosts of one build

--- An adapter. It can be passed to threads; one state waits on it.
---@param opts omni.chunks.options
---@return omni.Chunks
function M.new(opts)
  opts = check.table(opts, NEW, "chunks.new")
  if not opts.stage_id and not opts.src_stage_id then
    check.misuse 'chunks.new: key "stage_id" (to send) or "src_stage_id" (to receive) is needed'
  end
  return native.new(opts.connector, opts.stage_id, opts.src_stage_id, opts.window or 0, opts.budget or 0,
    opts.put_timeout or 0, opts.encoding, opts.build_payload)
end

-- The deadline is computed once, so that spurious wakes cannot stretch it; -1 waits without limit.
local function remaining(deadline)
  if not deadline then return -1 end
  local left = deadline - sched.now()
  return left > 0 and left or 0
end

--- Suspends until poll_ready would give something.
---@param opts? { timeout?: number } timeout in seconds
---@return true|nil ready
---@return string? error "ETIMEDOUT: …", or "ECLOSED: …" when the adapter is stopped and nothing is left to poll
---@return string? code
function Chunks:wait(opts)
  local timeout = check.options(opts, WAIT, "chunks:wait").timeout
  local deadline = timeout and sched.now() + timeout
  while not self:_pending() do
    if self:_stopped() then return nil, "ECLOSED: the adapter is stopped", "ECLOSED" end
    local left = remaining(deadline)
    if not self:_wait(left) and deadline and sched.now() >= deadline and not self:_pending() then
      return nil, "ETIMEDOUT: no chunk came in time", "ETIMEDOUT"
    end
  end
  return true
end

--- Suspends until the request may send one more chunk under window and budget. Without them it returns at once. A
-- request with nothing unconsumed may always send.
---@param req string
---@param timeout? number seconds
---@param bytes? integer size of the chunk, where it is known: the budget is then kept exactly
---@return true|nil may
---@return string? error "ETIMEDOUT: …", "ECLOSED: …", or "EPUT: …" when the request's stream has failed
---@return string? code
function Chunks:credit(req, timeout, bytes)
  local deadline = timeout and sched.now() + timeout
  while true do
    local may, err, code = self:_credit(req, bytes)
    if may ~= false then return may, err, code end
    local left = remaining(deadline)
    if not self:_credit_wait(req, bytes or 0, left) then
      self:_credit_giveup(req)
      if deadline and sched.now() >= deadline then
        return nil, "ETIMEDOUT: nothing was consumed in time", "ETIMEDOUT"
      end
    end
  end
end

return M
