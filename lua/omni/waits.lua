--- What the requests of a worker wait for: input or credit, edge by edge. A wait for credit that lasts is told to the
--- orchestrator, which then asks all stages of the request (`omni.deadlock`).

local buffer = require "string.buffer"
local json = require "omni.json"
local omni = require "omni"

local waits = {}

local PATIENCE, MOST = 0.05, 2 -- seconds that credit is waited for before that is told: at first, and at most

--- Prepares a request's record.
---@param record table
function waits.begin(record)
  record.credit, record.sent, record.patience, record.moved = {}, {}, PATIENCE, omni.now()
end

local function await(record, out, on_stall)
  if not on_stall then return out:credit(record.req) end
  while true do
    local ok, why, code = out:credit(record.req, record.patience)
    if code ~= "ETIMEDOUT" then return ok, why end
    -- A slow reader is no deadlock: the more often it was none, the less often that is asked.
    record.patience = math.min(record.patience * 2, MOST)
    on_stall(record)
  end
end

--- Suspends until a request may send on an edge.
---@param record table
---@param out omni.edge.outbound
---@param on_stall? fun(record: table) called each time that this takes long
---@return true|nil ok
---@return string? error
function waits.credit(record, out, on_stall)
  local id = out.spec.id
  record.credit[id] = (record.credit[id] or 0) + 1
  local ok, why = await(record, out, on_stall)
  record.credit[id] = record.credit[id] > 1 and record.credit[id] - 1 or nil
  return ok, why
end

--- Counts a chunk that was sent.
---@param record table
---@param out omni.edge.outbound
function waits.sent(record, out)
  record.sent[out.spec.id] = (record.sent[out.spec.id] or 0) + 1
  record.moved = omni.now()
end

--- How many chunks a request has taken and sent, on all edges.
---@param record table
---@return integer chunks_in
---@return integer chunks_out
function waits.counts(record)
  local taken, sent = 0, 0
  for _, stream in ipairs(record.streams) do taken = taken + stream.taken end
  for _, n in pairs(record.sent) do sent = sent + n end
  return taken, sent
end

local function size_of(data)
  if type(data) == "string" then return #data end
  return #buffer.encode(data)
end

-- Chunks of a stream that run has not taken, and their bytes.
local function held(stream)
  local bytes = 0
  for i = stream.first, stream.last do
    local data = stream.queue[i].data
    if data ~= nil then bytes = bytes + size_of(data) end
  end
  return stream.last - stream.first + 1, bytes
end

local function by_edge(a, b) return a.edge < b.edge end

--- What a request waits for now and what it has of each edge, sorted by edge.
---@param record table
---@return table report {waits = {{on, edge}}, sent = {{edge, n}}, got = {{edge, n, held, bytes}}}
function waits.report(record)
  local report = { waits = {}, sent = {}, got = {} }
  for _, stream in ipairs(record.streams) do
    local edge = stream.inbound.spec.id
    if next(stream.tickets) then table.insert(report.waits, { on = "input", edge = edge }) end
    local chunks, bytes = held(stream)
    table.insert(report.got, { edge = edge, n = stream.last, held = chunks, bytes = bytes })
  end
  for id in pairs(record.credit) do table.insert(report.waits, { on = "credit", edge = id }) end
  for id, n in pairs(record.sent) do table.insert(report.sent, { edge = id, n = n }) end
  for key, list in pairs(report) do
    table.sort(list, by_edge)
    report[key] = json.array(list)
  end
  return report
end

return waits
