--- Requests whose stages wait for each other. A join that reads one port to its end first leaves the other branch full,
--- and the stage that feeds both waits for room on it: nobody can go on. Then the full edge's reader takes more than
--- its window, up to the request's limit of bytes; beyond that the request fails and the circle is named.
---
--- A stage tells `stalled` when it has waited long for credit. All stages of the request are asked what they wait for,
--- twice: who waits for the same in both answers and has neither sent nor received has waited all the time between,
--- so the answers belong together although they were given one after the other.

local graph = require "omni.graph"
local omni = require "omni"
local requests = require "omni.requests"
local uv = require "luv"

local deadlock = {}

-- ms after which a request that was helped is looked at again: at first, and at most.
local AGAIN, SELDOM = 20, 1000
local STALE = 1 -- seconds after which an inquiry that some stage does not answer (it computes) may be repeated

--- Whether requests can get into each other's way at all: only where edges meet.
---@param edges table[]
---@return boolean
function deadlock.possible(edges)
  local fed = {}
  for _, edge in ipairs(edges) do
    if fed[edge.to] and edge.to ~= graph.HOST then return true end
    fed[edge.to] = true
  end
  return false
end

local function count_of(list, edge)
  for _, item in ipairs(list) do
    if item.edge == edge then return item.n end
  end
  return 0
end

-- The stage that a wait is for.
local function other_of(edges, wait)
  local edge = edges[wait.edge]
  return wait.on == "input" and edge.from or edge.to
end

-- Whether this wait may end without any of the stuck stages doing something.
local function hopeful(edges, answers, stuck, name, wait)
  local other = other_of(edges, wait)
  if not stuck[other] then return true end
  local on_its_way = count_of(answers[other].sent, wait.edge) > count_of(answers[name].got, wait.edge)
  return wait.on == "input" and on_its_way
end

-- Stages that wait for nothing but each other: who waits for somebody else is taken out until nobody is.
local function find_stuck(edges, answers)
  local stuck, changed = {}, true
  for name, answer in pairs(answers) do stuck[name] = #answer.waits > 0 or nil end
  while changed do
    changed = false
    for name in pairs(stuck) do
      for _, wait in ipairs(answers[name].waits) do
        if stuck[name] and hopeful(edges, answers, stuck, name, wait) then stuck[name], changed = nil, true end
      end
    end
  end
  return stuck
end

--- The circle in which stages wait for each other.
---@param edges table<integer, table> by number
---@param answers table<string, table> of each stage that has not finished: see `waits.report`
---@return {stage: string, on: string, edge: integer}[]|nil circle nil when somebody can go on
function deadlock.find(edges, answers)
  local stuck, names = find_stuck(edges, answers), {}
  for name in pairs(stuck) do names[#names + 1] = name end
  if #names == 0 then return nil end
  table.sort(names)
  local path, at, name = {}, {}, names[1]
  while not at[name] do
    local wait = answers[name].waits[1]
    table.insert(path, { stage = name, on = wait.on, edge = wait.edge })
    at[name] = #path
    name = other_of(edges, wait)
  end
  return { unpack(path, at[name]) }
end

local function describe(edges, circle)
  local parts = {}
  for _, wait in ipairs(circle) do
    local text = wait.on == "input" and "%s waits for input (%s)" or "%s waits for room (%s)"
    parts[#parts + 1] = text:format(wait.stage, graph.show(edges[wait.edge]))
  end
  return table.concat(parts, ", ")
end

-- What the readers of all edges hold of the request: bytes in all, and per edge.
local function survey(answers)
  local total, by_edge = 0, {}
  for _, answer in pairs(answers) do
    for _, got in ipairs(answer.got) do
      total, by_edge[got.edge] = total + got.bytes, got
    end
  end
  return total, by_edge
end

--- What is to be done about a circle: the edge whose reader takes more, and how many chunks.
---@param edges table<integer, table>
---@param answers table<string, table>
---@param circle table[]
---@param limit integer bytes of the request
---@return integer|nil edge nil when the limit is reached
---@return integer chunks how many more; or the bytes that are held
function deadlock.relief(edges, answers, circle, limit)
  local total, held = survey(answers)
  local best
  for _, wait in ipairs(circle) do
    local got = wait.on == "credit" and held[wait.edge]
    if got and (not best or got.bytes < best.bytes) then best = got end
  end
  local room = limit - total
  if not best or room <= 0 then return nil, total end
  local size = best.held > 0 and best.bytes / best.held or 0
  local chunks = math.max(edges[best.edge].window, best.held)
  if size > 0 then chunks = math.min(chunks, math.floor(room / size)) end
  if chunks < 1 then return nil, total end
  return best.edge, chunks
end

local function same(a, b)
  local function counts(list, other)
    for i, item in ipairs(list) do
      local twin = other[i]
      if not twin or twin.edge ~= item.edge or twin.n ~= item.n or twin.on ~= item.on then return false end
    end
    return #list == #other
  end
  return counts(a.waits, b.waits) and counts(a.sent, b.sent) and counts(a.got, b.got)
end

local function edges_by_id(self)
  local edges = {}
  for _, edge in ipairs(self.edges) do edges[edge.id] = edge end
  return edges
end

local function ask(record, previous)
  record.inquiry = (record.inquiry or 0) + 1
  record.probe = { answers = {}, previous = previous, since = omni.now() }
  for name in pairs(record.running) do
    record.on[name]:send { type = "waits", req = record.id, inquiry = record.inquiry }
  end
end

-- A request that was helped will need it again, soon: its stages need not wait long to tell.
local function look_again(record, after)
  record.look_after = math.min(after, SELDOM)
  if not record.timers.probe then record.timers.probe = uv.new_timer() end
  record.timers.probe:start(record.look_after, 0, function()
    if record.state == "running" then ask(record) end
  end)
end

-- The waits for room that can be helped: programs keep nothing that they have not asked for.
local function helpable(record, edges, circle)
  local waits = {}
  for _, wait in ipairs(circle) do
    local reader = record.on[edges[wait.edge].to]
    if reader and reader.definition.module then waits[#waits + 1] = wait end
  end
  return waits
end

-- All stages have answered twice the same: the request is helped, or fails.
local function resolve(self, record, circle, answers)
  local edges = edges_by_id(self)
  local limit = self.topology.request_bytes
  local edge, n = deadlock.relief(edges, answers, helpable(record, edges, circle), limit)
  if not edge then
    local text = "EDEADLOCK: the stages wait for each other: %s; %d bytes are held, the request's limit is %d"
    return requests.finish(self, record, "EDEADLOCK", text:format(describe(edges, circle), n, limit))
  end
  record.on[edges[edge].to]:send { type = "grow", req = record.id, edge = edge, chunks = n }
  look_again(record, AGAIN)
end

--- Messages of the stages: `stalled` and `waits`.
---@type table<string, fun(self: omni.orchestrator, stage: table, message: table)>
deadlock.messages = {}

function deadlock.messages:stalled(_, message)
  local record = self.requests[message.req]
  if not record or record.state ~= "running" then return end
  if record.probe and omni.now() - record.probe.since < STALE then return end
  ask(record)
end

function deadlock.messages:waits(stage, message)
  local record = self.requests[message.req]
  local probe = record and record.state == "running" and record.probe
  if not probe or message.inquiry ~= record.inquiry then return end
  local edges = edges_by_id(self)
  for _, wait in ipairs(message.waits) do
    if not edges[wait.edge] then return ("there is no edge %g"):format(wait.edge) end
  end
  probe.answers[stage.name] = message
  for name in pairs(record.running) do
    if not probe.answers[name] then return end
  end
  record.probe = nil
  local circle = deadlock.find(edges, probe.answers)
  if not circle then
    if record.look_after then look_again(record, record.look_after * 2) end
    return
  end
  if not probe.previous then return ask(record, probe.answers) end
  for _, wait in ipairs(circle) do
    local before = probe.previous[wait.stage]
    if not before or not same(before, probe.answers[wait.stage]) then return ask(record, probe.answers) end
  end
  resolve(self, record, circle, probe.answers)
end

return deadlock
