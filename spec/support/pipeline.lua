--- Pipelines for specs: made of the stages in spec/fixtures, started for one function, stopped after it.
local omni = require "omni"
local program = require "omni.program"
local uv = require "luv"

local M = {}

--- A line of stages, not started.
---@param stages table[] {name, definition}: a string is the name of a module in spec/fixtures
---@param edges? table options of every edge
function M.line(stages, edges)
  local p = omni.pipeline "spec"
  for i, stage in ipairs(stages) do
    local name, definition = stage[1], stage[2]
    if type(definition) == "string" then definition = { module = "spec.fixtures." .. definition } end
    p:stage(name)(definition)
    if i > 1 then p:connect(stages[i - 1][1], name, edges) end
  end
  return p
end

--- The definition of a stage that runs a program.
---@param config table
function M.filter(config) return { module = "omni.stages.filter", config = config } end

--- The definition of a stage that waits before the chunk "gate" until the fifo is opened.
---@param fifo string
function M.gate_stage(fifo) return { module = "spec.fixtures.gate", config = { fifo = fifo } } end

--- The definition of a stage that runs Lua text with self, request, input and emit in reach.
---@param text string
---@param extra? table more keys of the stage
function M.inline(text, extra)
  local definition = { module = "spec.fixtures.inline", config = { run = text } }
  for key, value in pairs(extra or {}) do definition[key] = value end
  return definition
end

--- Declares a pipeline, starts it, runs the function with the app, stops.
---@param declare fun(p: omni.pipeline)
---@param fn fun(app: omni.app)
---@param options? table of the pipeline
function M.with_pipeline(declare, fn, options)
  local p = omni.pipeline("spec", options)
  declare(p)
  local app = assert(p:start())
  local ok, err = xpcall(fn, debug.traceback, app)
  app:stop { abort = true }
  assert(ok, err)
end

--- Starts a line, runs the function with the app, stops.
function M.with_app(stages, fn, edges)
  local app = assert(M.line(stages, edges):start())
  local ok, err = xpcall(fn, debug.traceback, app)
  app:stop { abort = true }
  assert(ok, err)
end

--- Runs the function with a fifo's path and what opens it (which waits for who reads it).
function M.with_fifo(fn)
  local dir = assert(uv.fs_mkdtemp "/tmp/omnihost-spec-XXXXXX")
  local path = dir .. "/gate"
  program.run { command = { "mkfifo", path } }
  local ok, err = pcall(fn, path, function() program.run { command = { "sh", "-c", ': >"$0"', path } } end)
  os.remove(path)
  uv.fs_rmdir(dir)
  assert(ok, err)
end

--- The data of all chunks of a request; raises when it fails.
function M.data_of(request)
  local all = {}
  for chunk in request:chunks() do all[#all + 1] = chunk.data end
  return all
end

--- How a request ends: error and code, or nil.
function M.failure_of(request)
  while true do
    local chunk, err, code = request:next { timeout = 20 }
    if not chunk then return err, code end
  end
end

--- The data of the next chunk.
function M.next_data(request) return assert(request:next { timeout = 20 }).data end

--- Waits until a process is gone, which something else ends.
---@return boolean gone
function M.await_end(pid)
  local deadline = omni.now() + 5
  while uv.kill(pid, 0) == 0 and omni.now() < deadline do omni.sleep(0.005) end
  return uv.kill(pid, 0) ~= 0
end

--- What there is of a namespace in shared memory.
---@return string[] names
function M.shared_names(namespace)
  local found = {}
  local scan = uv.fs_scandir "/dev/shm"
  for name in function() return uv.fs_scandir_next(scan) end do
    if name:find(namespace, 1, true) then found[#found + 1] = name end
  end
  return found
end

return M
