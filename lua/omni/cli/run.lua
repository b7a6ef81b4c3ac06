--- `omnihost SCRIPT`: runs a script; a pipeline that it returns is run with requests from a file or a pipe.

local check = require "omni.check"
local cli = require "omni.cli"
local host = require "omni.native.host"
local pipeline = require "omni.pipeline"
local uv = require "luv"

local run = {}

local function fail(message)
  io.stderr:write("omnihost: ", message, "\n")
  os.exit(1)
end

local function script_folder(path)
  local folder = path:match "^(.*)/[^/]*$" or "."
  return uv.fs_realpath(folder == "" and "/" or folder)
end

local function load_file(path)
  if not uv.fs_stat(path) then
    local hint = not path:find "[./]" and check.nearest(path, { "run", "check", "graph", "plm", "shm", "test" })
    if hint then cli.usage(('there is no script %s (did you mean the verb "%s"?)'):format(path, hint)) end
    fail(("cannot open %s: there is no such file"):format(path))
  end
  return loadfile(path)
end

--- Loads a script and makes its folder the place where modules are looked for, in this and every later state.
---@param first string path of the script, "-" or "-e"
---@param ... string the arguments after it
---@return function chunk
---@return string name for messages
---@return string[] arguments of the script
function run.load(first, ...)
  local chunk, why
  local arguments, name = { ... }, first
  if first == "-e" then
    local code = table.remove(arguments, 1) or cli.usage "-e needs the code to run"
    chunk, why = loadstring(code, "=(command line)")
  elseif first == "-" then
    chunk, why = loadstring(io.read "*a", "=stdin")
  else
    chunk, why = load_file(first)
  end
  if not chunk then fail(why) end
  local inline = first == "-" or first == "-e"
  host.script_dir(inline and uv.cwd() or script_folder(first))
  _G.arg = { [0] = name, unpack(arguments) }
  return chunk, name, arguments
end

--- Runs a script and, where it returns one, its pipeline.
---@param ... string script and arguments
function run.main(...)
  if (...) == nil then return cli.usage "run needs a script" end
  local chunk, name, arguments = run.load(...)
  local result = chunk(unpack(arguments))
  if pipeline.is(result) then return require("omni.cli.drive").main(result, name, arguments) end
  local app = package.loaded["omni.app"]
  if app then app.stop_all() end
end

return run
