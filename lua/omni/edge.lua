--- One edge as one of its two processes sees it: streams of chunks per request over a chunk adapter. The worker uses it
-- for its stage, the orchestrator for the pipeline's outer ends.

local chunks = require "omni.chunks"
local omni = require "omni"
local sched = require "omni.native.sched"
local shm = require "omni.native.shm" -- host-made namespaces are refused by omni.shm

local edge = {}

-- The connector of one edge. Lock files live in the folder of the replica that reads, so a chunk wakes nobody else.
local function connector(namespace, dir)
  local handle, why = shm.open { namespace = namespace, lock_dir = dir, owned = true }
  return handle or error(why, 0)
end

---@class omni.edge.stream the chunks of one request that arrive on an edge
local Stream = {}
Stream.__index = Stream

---@class omni.edge.inbound
local Inbound = {}
Inbound.__index = Inbound

--- The reading end of an edge.
---@param namespace string
---@param spec table {id, from, to, window, budget, dir, encoding}
---@return omni.edge.inbound
function edge.inbound(namespace, spec)
  local shm_handle = connector(namespace, spec.dir)
  local adapter = chunks.new {
    connector = shm_handle, src_stage_id = tostring(spec.id), window = spec.window, encoding = spec.encoding,
  }
  local self = setmetatable({ spec = spec, shm = shm_handle, adapter = adapter, streams = {} }, Inbound)
  self.task = omni.spawn(Inbound.pump, self)
  return self
end

-- Hands what arrives to the streams. Ends when the adapter is stopped.
function Inbound:pump()
  while self.adapter:wait {} do
    for req, items in pairs(self.adapter:poll_ready()) do
      local stream = self.streams[req]
      if stream then stream:push(items) end
    end
  end
end

--- Starts to receive a request. Chunks put before this arrive too.
---@param req string
---@return omni.edge.stream
function Inbound:open(req)
  local stream = setmetatable({
    inbound = self, req = req, queue = {}, first = 1, last = 0, tickets = {}, ahead = 0, used = 0, taken = 0,
  }, Stream)
  self.streams[req] = stream
  local ok, why = self.adapter:load_async(req)
  if not ok then stream:fail(why) end -- whoever reads is told
  return stream
end

--- Ends this end of the edge; suspends until its task has ended.
function Inbound:close()
  self.adapter:stop()
  self.task:join(1)
  self.shm:close()
end

-- Uses chunks up in advance while more of them wait than were, and asks for those that may still come.
local function use_ahead(self)
  local waiting = self.last - self.first + 1
  local more = math.min(waiting, self.ahead) - self.used
  if more > 0 then
    self.used = self.used + more
    self.inbound.adapter:consumed(self.req, more)
  end
  if waiting < self.ahead and not self.ended then self.inbound.adapter:want(self.req, self.ahead - waiting) end
end

function Stream:push(items)
  for _, item in ipairs(items) do
    if item.error then
      self:fail(item.error)
    elseif self.dropping then
      self.inbound.adapter:consumed(self.req, 1)
    else
      self.last = self.last + 1
      self.queue[self.last] = item
      if self.ahead > 0 then use_ahead(self) end
    end
    if item.finished then self.ended = true end
  end
  if self.on_items then return self.on_items(self) end
  self:wake()
end

function Stream:wake()
  local tickets = self.tickets
  if not next(tickets) then return end
  self.tickets = {}
  for ticket in pairs(tickets) do sched.unpark(ticket) end
end

--- The oldest chunk that waits, without suspending.
---@return table|nil item {data, finished}
function Stream:take()
  local item = self.queue[self.first]
  if not item then return nil end
  self.queue[self.first] = nil
  self.first = self.first + 1
  return item
end

--- Tells the sender's window that n chunks were used.
---@param n integer
function Stream:consumed(n)
  if self.closed then return end
  local before = math.min(self.used, n) -- these were told in advance
  self.used = self.used - before
  if n > before then self.inbound.adapter:consumed(self.req, n - before) end
  if self.ahead > 0 and not self.dropping then use_ahead(self) end
end

--- Takes n chunks more than the window, into memory: nobody would ever read this stream otherwise.
---@param n integer
function Stream:grow(n)
  if self.closed or self.dropping then return end
  self.ahead = self.ahead + n
  use_ahead(self)
end

--- The data of the next chunk, if one waits. Raises the request's error.
---@return any|nil data
function Stream:poll()
  while true do
    if self.error then error(self.error, 0) end
    local item = self:take()
    if not item then return nil end
    self:consumed(1)
    if item.data ~= nil then
      self.taken = self.taken + 1
      return item.data
    end
  end
end

--- The next chunk is waited for: whoever has this ticket is woken when something comes.
---@param ticket integer
function Stream:want(ticket)
  if self.ended or self.error then return end
  self.inbound.adapter:want(self.req, 1)
  self.tickets[ticket] = true
end

--- A wait that `want` began is over.
---@param ticket integer
function Stream:wanted(ticket)
  self.tickets[ticket] = nil
end

--- The data of the next chunk; suspends. Raises the request's error.
---@return any|nil data nil at the end
function Stream:next()
  while true do
    local data = self:poll()
    if data ~= nil then return data end
    if self.ended then return nil end
    local ticket = sched.ticket "input"
    self:want(ticket)
    sched.park("input", nil, self.inbound.adapter)
    self:wanted(ticket)
  end
end

--- Ends the stream with an error for whoever reads it. What still arrives is dropped.
---@param message string
function Stream:fail(message)
  self.error = self.error or message
  self:drop()
  self:wake()
end

--- Reads on without keeping anything, so that a sender whose reader lost interest does not wait for ever.
function Stream:drop()
  if self.dropping then return end
  self.dropping = true
  self:consumed(self.last - self.first + 1)
  self.queue, self.first, self.last = {}, 1, 0
end

--- Ends the registration. Nothing arrives afterwards.
---@param discard boolean also remove chunks that are stored and were not read (the sender must be silent by now)
function Stream:close(discard)
  if self.closed then return end
  self.closed = true
  self.inbound.adapter:cleanup_receiver(self.req, discard)
  self.inbound.streams[self.req] = nil
end

---@class omni.edge.outbound
local Outbound = {}
Outbound.__index = Outbound

--- The writing end of an edge.
---@param namespace string
---@param spec table {id, from, to, window, budget, dir, encoding}
---@param on_failure fun(req: string, message: string) a chunk of this request could not be stored
---@return omni.edge.outbound
function edge.outbound(namespace, spec, on_failure)
  local shm_handle = connector(namespace, spec.dir)
  local adapter = chunks.new {
    connector = shm_handle, stage_id = tostring(spec.id), window = spec.window, budget = spec.budget,
    encoding = spec.encoding,
  }
  local self = setmetatable({ spec = spec, shm = shm_handle, adapter = adapter, on_failure = on_failure }, Outbound)
  self.task = omni.spawn(Outbound.pump, self)
  return self
end

---@class omni.edge.writers
local Writers = {}
Writers.__index = Writers

--- The writing ends of an edge whose reader has replicas: one for each that is written to.
---@param namespace string
---@param spec table as for `outbound`; dir is that of the first replica
---@param on_failure fun(req: string, message: string)
---@return omni.edge.writers
function edge.writers(namespace, spec, on_failure)
  return setmetatable({ namespace = namespace, spec = spec, on_failure = on_failure, ends = {} }, Writers)
end

--- The end that writes to a replica.
---@param replica? integer the first without it
---@return omni.edge.outbound
function Writers:to(replica)
  replica = replica or 0
  if not self.ends[replica] then
    local spec = {}
    for key, value in pairs(self.spec) do spec[key] = value end
    spec.dir = edge.replica_dir(spec.dir, replica)
    self.ends[replica] = edge.outbound(self.namespace, spec, self.on_failure)
  end
  return self.ends[replica]
end

--- Ends all of them; suspends.
function Writers:close()
  for _, one in pairs(self.ends) do one:close() end
end

--- The folder of a reader's replica.
---@param dir string that of the first
---@param replica integer
---@return string
function edge.replica_dir(dir, replica)
  return (dir:gsub("%.0$", "." .. replica))
end

function Outbound:pump()
  while self.adapter:wait {} do
    for req, items in pairs(self.adapter:poll_ready()) do
      for _, item in ipairs(items) do
        if item.error then self.on_failure(req, item.error) end
      end
    end
  end
end

--- Suspends until the request may send one more chunk on this edge.
---@param req string
---@param timeout? number seconds
---@return true|nil ok
---@return string? error
---@return string? code
function Outbound:credit(req, timeout)
  return self.adapter:credit(req, timeout)
end

--- Sends a chunk; never waits. Ask for credit first.
---@param req string
---@param data any
---@param finished boolean
---@return true|nil ok
---@return string? error
---@return string? code
function Outbound:send(req, data, finished)
  return self.adapter:save_async(req, data, finished)
end

--- Forgets a request and removes what its reader did not take. Waiters for credit are woken.
---@param req string
function Outbound:forget(req)
  self.adapter:cleanup_sender(req)
end

--- Ends this end of the edge; suspends until its task has ended.
function Outbound:close()
  self.adapter:stop()
  self.task:join(1)
  self.shm:close()
end

return edge
