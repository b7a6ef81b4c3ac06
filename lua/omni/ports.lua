--- What `run` reads and writes through: `input` and `emit` of one request, over the streams and edges of its stage.

local check = require "omni.check"
local graph = require "omni.graph"
local sched = require "omni.native.sched"

local ports = {}

-- The streams of a request by port. Streams of edges that name no port are also found by the stage that they come
-- from, so that a join of plain edges can tell them apart.
local function by_port(inputs, streams)
  local named, own = {}, {}
  for i, inbound in ipairs(inputs) do
    local port = inbound.spec.to_port
    named[port] = named[port] or {}
    table.insert(named[port], streams[i])
    own[port] = true
  end
  for i, inbound in ipairs(inputs) do
    local from = inbound.spec.from
    if inbound.spec.to_port == graph.INPUT and not own[from] then
      named[from] = named[from] or {}
      table.insert(named[from], streams[i])
    end
  end
  return named, check.sorted_keys(own)
end

-- The next chunk of several streams, whichever has one; the first in order where several have.
local function next_of_any(streams)
  while true do
    local open = false
    for _, stream in ipairs(streams) do
      local data = stream:poll()
      if data ~= nil then return data end
      open = open or not stream.ended
    end
    if not open then return nil end
    local ticket = sched.ticket "input"
    for _, stream in ipairs(streams) do stream:want(ticket) end
    sched.park("input", nil, streams[1].inbound.adapter)
    for _, stream in ipairs(streams) do stream:wanted(ticket) end
  end
end

local function reader(streams)
  -- One value and no more: `emit(input())` would take a second one for a chunk after a port.
  return function()
    if #streams > 1 then return next_of_any(streams) end
    return streams[1]:next()
  end
end

--- The input of a request: `for chunk in input do` where the stage has one port, `input.NAME` for each port.
---@param inputs omni.edge.inbound[]
---@param streams omni.edge.stream[] in the same order
---@return table input
function ports.input(inputs, streams)
  local named, names = by_port(inputs, streams)
  local input, single = {}, #names == 1 and reader(named[names[1]])
  for name, list in pairs(named) do input[name] = reader(list) end
  local listed = table.concat(names, ", ")
  return setmetatable(input, {
    __call = function()
      if single then return single() end
      check.misuse(("this stage has several input ports (%s): read one, as input.%s"):format(listed, names[1]))
    end,
    __index = function(_, name)
      local text = 'this stage has no input port "%s"%s'
      check.misuse(text:format(tostring(name), check.hint(name, check.sorted_keys(named))))
    end,
  })
end

-- The edges of the port that an emit names; of the only one, or the default one, where it names none.
local function port_edges(named, names, port)
  if port == nil then port = #names == 1 and names[1] or graph.OUTPUT end
  local found = named[port]
  if found then return found end
  if port == graph.OUTPUT then
    local text = 'emit: this stage has no edge at its default port: name one of %s, as emit("%s", chunk)'
    check.misuse(text:format(table.concat(names, ", "), names[1]))
  end
  check.misuse(('emit: this stage has no output port "%s"%s'):format(tostring(port), check.hint(port, names)))
end

--- The emit of a request: `emit(chunk)` sends to all edges of the default (or only) port, `emit("port", chunk)` to
--- those of one.
---@param outputs omni.edge.outbound[]
---@param send fun(out: omni.edge.outbound, data: any) suspends for credit; raises what ended the request
---@return fun(...)
function ports.emit(outputs, send)
  local named = {}
  for _, out in ipairs(outputs) do
    local port = out.spec.from_port
    named[port] = named[port] or {}
    table.insert(named[port], out)
  end
  local names = check.sorted_keys(named)
  return function(...)
    local n, first, second = select("#", ...), ...
    if n > 2 then check.misuse(("emit takes a chunk, or a port and a chunk, not %d values"):format(n)) end
    local port, data
    if n == 2 then port, data = first, second else data = first end
    if data == nil then check.misuse "emit takes one value, or a port and a value: there was none, or nil" end
    if n == 2 and type(port) ~= "string" then
      check.misuse(("emit: the port's name must be a string, not a %s"):format(type(port)))
    end
    for _, out in ipairs(port_edges(named, names, port)) do send(out, data) end
  end
end

return ports
