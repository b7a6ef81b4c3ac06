--- What a stage answers when it is asked: its module's `rpc` functions and those that every stage has. Each question is
--- a task of its own, so that a slow one delays nothing else.

local check = require "omni.check"
local errors = require "omni.errors"
local log = require "omni.log"
local omni = require "omni"
local uv = require "luv"
local waits = require "omni.waits"
local wire = require "omni.wire"

local methods = {}

---@class omni.methods.context
---@field module table the stage's module
---@field instance any what its open returned
---@field requests table<string, table> records of the requests, finished ones included

local function unfinished(context)
  local list = {}
  for _, record in pairs(context.requests) do
    if not record.finished and not record.ended then list[#list + 1] = record end
  end
  return list
end

local builtin = {}

--- {pid, running, memory_kib}: the process, its requests at work, the size of its Lua state.
function builtin.stats(context)
  return { pid = uv.os_getpid(), running = #unfinished(context), memory_kib = collectgarbage "count" }
end

--- {running, oldest_seconds, waits_for}: how long ago the request that stands still began or last sent a chunk, and
--- what it waits for ("input", "credit"; nothing while it computes).
function builtin.health(context)
  local list, oldest = unfinished(context), nil
  for _, record in ipairs(list) do
    if not oldest or record.moved < oldest.moved then oldest = record end
  end
  if not oldest then return { running = 0, oldest_seconds = 0 } end
  local first = waits.report(oldest).waits[1]
  return { running = #list, oldest_seconds = omni.now() - oldest.moved, waits_for = first and first.on }
end

--- Sets the log's level where one is given. Returns what it was.
function builtin.log_level(_, level) return log.level(level) end

local function names_of(context)
  local all = {}
  for name in pairs(builtin) do all[name] = true end
  for name in pairs(context.module.rpc or {}) do all[name] = true end
  return check.sorted_keys(all)
end

local function run(context, method, args)
  local own = context.module.rpc and context.module.rpc[method]
  if own then return own(context.instance, args) end
  if builtin[method] then return builtin[method](context, args) end
  local hint = check.hint(method, names_of(context))
  error(('ENOENT: there is no method "%s"%s'):format(method, hint), 0)
end

-- The answer's line. What cannot cross, or is too long for the control channel, is told instead.
local function line_of(id, value)
  local ok, line = pcall(wire.encode, { type = "answer", id = id, value = value })
  if ok and #line <= wire.LIMIT then return line end
  local why = ok and "E2BIG: the answer is longer than a control message may be"
    or "ECODEC: the answer cannot cross: " .. errors.text_of(line)
  return wire.encode { type = "answer", id = id, error = why, code = why:match "^E%w+" }
end

--- Answers a question.
---@param context omni.methods.context
---@param message table rpc {id, method, args}
---@return string line
function methods.answer(context, message)
  local ok, value = pcall(run, context, message.method, message.args)
  if ok then return line_of(message.id, value) end
  local text, code = errors.text_of(value)
  return wire.encode { type = "answer", id = message.id, error = text, code = code or "ESTAGE" }
end

return methods
