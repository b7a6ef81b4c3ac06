--- How many requests a pipeline takes: so many run at once, so many wait for one of those to end, the rest is refused.

local admission = {}

---@class omni.admission
---@field running integer admitted and not ended
---@field waiting integer
---@field max integer
---@field queue integer
local Admission = {}
Admission.__index = Admission

--- The gate of one pipeline.
---@param max integer requests that run at once
---@param queue integer requests that may wait
---@return omni.admission
function admission.new(max, queue)
  return setmetatable({ max = max, queue = queue, running = 0, waiting = 0, list = {}, first = 1, last = 0 }, Admission)
end

--- Lets a request in, or to the end of the queue.
---@param record table
---@param hold? boolean nobody is let in now
---@return "in"|"queued"|nil outcome nil when there is no place
---@return string? error
function Admission:enter(record, hold)
  if not hold and self.running < self.max and self.waiting == 0 then
    self.running = self.running + 1
    return "in"
  end
  if self.waiting >= self.queue then
    local text = "EFULL: the pipeline has %d requests and %d waiting, all it takes (max_requests = %d, queue = %d)"
    return nil, text:format(self.running, self.waiting, self.max, self.queue)
  end
  self.waiting, self.last = self.waiting + 1, self.last + 1
  self.list[self.last] = record
  return "queued"
end

--- A request ends: its place is free. Where it waited, `next` skips it.
---@param record table
function Admission:leave(record)
  if record.state == "queued" then self.waiting = self.waiting - 1 else self.running = self.running - 1 end
end

--- Takes the oldest request that waits out of the queue; it still counts as waiting.
---@return table|nil record
function Admission:next_queued()
  while self.first <= self.last do
    local record = self.list[self.first]
    self.list[self.first] = nil
    self.first = self.first + 1
    if record.state == "queued" then return record end
  end
end

--- The request that is next, let in.
---@return table|nil record
function Admission:next()
  local record = self.running < self.max and self:next_queued()
  if not record then return nil end
  self.waiting, self.running = self.waiting - 1, self.running + 1
  return record
end

return admission
