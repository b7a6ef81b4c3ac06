-- Runs once in every new state, before any other Lua: the codec for values that cross states, and a coroutine library
-- through which the host can suspend a task from inside of a user's coroutine.

local sched = require "omni.native.sched"

require "ffi" -- string.buffer decodes int64 only where ffi has been opened
local buffer = require "string.buffer"

-- string.buffer drops metatables but for those it is told of: the mark of JSON arrays crosses. The two buffers are
-- reused; what is large gives its memory back.
local LARGE = 65536
local options = { metatable = { require("omni.native.json").array_mt } }
local writer, reader = buffer.new(options), buffer.new(options)
local put, get = writer.encode, reader.decode

-- Called by pcall itself, the methods name no line of ours in their errors.
local function encode(value)
  local ok, message = pcall(put, writer:reset(), value)
  if not ok then error(message, 0) end
  local text = writer:get()
  if #text > LARGE then writer:free() end
  return text
end

local function decode(text)
  local ok, value = pcall(get, reader:set(text))
  local rest = #reader
  reader:reset() -- lets go of the text
  if not ok then error(value, 0) end
  if rest > 0 then error("left-over data in buffer", 0) end
  return value
end

sched.codec(encode, decode)

-- The host suspends a task by yielding `park`'s sentinel. Where that happens inside of a user's coroutine, it must not
-- surface in the user's resume: it is passed up to the task, and what comes back is passed down.
local resume, yield, create, status = coroutine.resume, coroutine.yield, coroutine.create, coroutine.status
local SENTINEL = sched.sentinel()

local function pass(co, ok, first, ...)
  if ok and first == SENTINEL then return pass(co, resume(co, yield(SENTINEL))) end
  return ok, first, ...
end

function coroutine.resume(co, ...) return pass(co, resume(co, ...)) end

local function unwrap(ok, ...)
  if ok then return ... end
  error((...), 0)
end

function coroutine.wrap(fn)
  local co = create(fn)
  return function(...)
    if status(co) == "dead" then error("cannot resume dead coroutine", 2) end
    return unwrap(pass(co, resume(co, ...)))
  end
end

-- Every task's function runs under this: an error that nobody caught is reported with its traceback.
local failed, traceback = sched.failed, sched.traceback

local function check(ok, err)
  if not ok then failed(err) end
end

sched.guard(function(fn, ...) check(xpcall(fn, traceback, ...)) end)

-- os.exit ends the run in order; the code becomes the process's.
local host = require "omni.native.host"
os.exit = host.exit -- luacheck: ignore 122
