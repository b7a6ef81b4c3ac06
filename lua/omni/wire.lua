--- Control messages between the orchestrator and its stages: newline-delimited JSON, one object with a `type` a line.
--- Payloads never travel here.
---
---   stage → host   hello {protocol, build, pid}   ready {}   broken {error, traceback?}   (start-up)
---                  done {req, chunks_in?, chunks_out?, seconds?}   failed {req, code, error, traceback?}
---                  ended {req, was}   (requests)
---                  answer {id, value?} or {id, error, code}   (to rpc)
---                  stalled {req}   waits {req, inquiry, waits, sent, got}   (see omni.deadlock)
---   host → stage   init {stage, replica, config, namespace, inputs, outputs, joins}
---                  start {req, label, deadline}   abort {req, code, error}   forget {req}   stop {}
---                  rpc {id, method, args?}
---                  waits {req, inquiry}   grow {req, edge, chunks}   (to stages that are Lua modules)
---
--- A program whose data goes through its worker (`omni.stages.inline`) also gets `data {req, data | data_b64}` and
--- `end {req}`, and says `data` itself.

local check = require "omni.check"
local json = require "omni.json"

local wire = {}

wire.PROTOCOL = 1
-- A line longer than this is no message of ours; the peer is broken.
wire.LIMIT = 16 * 1024 * 1024

--- One message as a line.
---@param message table
---@return string line with its newline
function wire.encode(message)
  return assert(json.encode(message)) .. "\n"
end

--- One message as a line, where it may hold what its users gave.
---@param message table
---@return string|nil line nil where it cannot cross, or is longer than a message may be
---@return string? error "EJSON: ..." or "E2BIG: ..."
---@return string? code
function wire.line(message)
  local line, why, code = json.encode(message)
  if not line then return nil, why, code end
  if #line <= wire.LIMIT then return line .. "\n" end
  local text = "E2BIG: %d bytes are more than a control message may have (%d)"
  return nil, text:format(#line, wire.LIMIT), "E2BIG"
end

--- The message of one line.
---@param line string without its newline
---@return table|nil message
---@return string? error "EPROTOCOL: ..." with the line's beginning
---@return string? code
function wire.decode(line)
  local message, why = json.decode(line)
  if type(message) == "table" and type(message.type) == "string" then return message end
  why = message == nil and why or "it has no type"
  return nil, wire.broken(tostring(why), line), "EPROTOCOL"
end

-- What a stage may say, and what its messages must carry.
local FROM_STAGE = {
  hello = { protocol = "number" },
  ready = {},
  broken = { error = "string" },
  done = { req = "string" },
  failed = { req = "string", code = "string", error = "string" },
  ended = { req = "string", was = "string" },
  answer = { id = "number" },
  stalled = { req = "string" },
  waits = { req = "string", inquiry = "number", waits = "table", sent = "table", got = "table" },
}

-- What each item of the lists in `waits` must carry, all of it numbers.
local WAITS = { waits = { "edge" }, sent = { "edge", "n" }, got = { "edge", "n", "held", "bytes" } }

local function waits_problem(message)
  for list, fields in pairs(WAITS) do
    for _, item in ipairs(message[list]) do
      for _, field in ipairs(fields) do
        if type(item) ~= "table" or type(item[field]) ~= "number" then
          return ('each of %s needs "%s", a number'):format(list, field)
        end
      end
    end
  end
  for _, wait in ipairs(message.waits) do
    if wait.on ~= "input" and wait.on ~= "credit" then return 'a wait is on "input" or "credit"' end
  end
end

-- What is wrong with what not every message has.
local function optional_problem(message)
  if message.type == "waits" then return waits_problem(message) end
  if message.traceback ~= nil and type(message.traceback) ~= "string" then return "a traceback is a string" end
  if message.type == "answer" and message.error == nil then return nil end
  if message.type ~= "failed" and message.type ~= "answer" then return nil end
  if type(message.error) ~= "string" then return "an error is a string" end
  if type(message.code) ~= "string" or not message.code:find "^E[A-Z0-9]+$" then
    return "a code is E and capital letters"
  end
end

-- What is wrong with a message of a stage, or nil. `data` is for those who have no edges of their own.
local function from_stage_problem(message, inline)
  if inline and message.type == "data" then return type(message.req) ~= "string" and "data needs its req" or nil end
  local fields = FROM_STAGE[message.type]
  if not fields then
    return ('there is no message "%s"%s'):format(message.type, check.hint(message.type, check.sorted_keys(FROM_STAGE)))
  end
  for name, kind in pairs(fields) do
    if type(message[name]) ~= kind then
      return ('%s needs "%s", a %s'):format(message.type, name, kind)
    end
  end
  return optional_problem(message)
end

--- What broke the protocol, with the beginning of the line.
---@param why string
---@param line string
---@return string error
function wire.broken(why, line)
  return ("EPROTOCOL: not a control message (%s): %s"):format(why, line:sub(1, 200))
end

--- The message of a stage's line, which may come from a program that is not ours.
---@param line string without its newline
---@param inline? boolean the stage's data comes here too
---@return table|nil message
---@return string? error "EPROTOCOL: ..." with the line's beginning
---@return string? code
function wire.from_stage(line, inline)
  local message, why, code = wire.decode(line)
  if not message then return nil, why, code end
  local problem = from_stage_problem(message, inline)
  if problem then return nil, wire.broken(problem, line), "EPROTOCOL" end
  return message
end

--- Cuts a byte stream into lines.
---@param on_line fun(line: string) called for each whole line, without its newline
---@param on_long? fun(beginning: string) called once for each line that passes the limit; the rest of it is skipped
---@param limit? integer
---@return fun(bytes: string|nil) feed nil = the end: an unfinished last line is delivered too
function wire.lines(on_line, on_long, limit)
  limit = limit or wire.LIMIT
  local parts, size, skipping = {}, 0, false
  local function take()
    local line = table.concat(parts)
    parts, size = {}, 0
    return line
  end
  local function keep(piece)
    if skipping or piece == "" then return end
    parts[#parts + 1], size = piece, size + #piece
    if size <= limit then return end
    skipping = true
    local beginning = take()
    if on_long then on_long(beginning) end
  end
  local function finish()
    if not skipping then return on_line(take()) end
    skipping = false
  end
  return function(bytes)
    if bytes == nil then
      if size > 0 then finish() end
      return
    end
    local from = 1
    while true do
      local at = bytes:find("\n", from, true)
      keep(bytes:sub(from, at and at - 1))
      if not at then return end
      finish()
      from = at + 1
    end
  end
end

return wire
