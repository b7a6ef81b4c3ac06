--- The command line: finds out what is to be done and hands it to the module that does it.

local check = require "omni.check"
local host = require "omni.native.host"

local cli = {}

local HELP = [[
Usage: omnihost SCRIPT [ARGUMENT...]     run a Lua script, or the pipeline that it returns
       omnihost - [ARGUMENT...]          the same, read from standard input
       omnihost -e CODE [ARGUMENT...]    the same, given here
       omnihost VERB ...

Verbs:
  run SCRIPT ...      the same as omnihost SCRIPT ..., for a script that is named like a verb
  check SCRIPT        check the pipeline that a script returns, without starting it
  graph SCRIPT        draw it, as DOT or Mermaid: omnihost graph --help
  plm FILE ...        run a guest program against tools: omnihost plm --help
  shm ls|gc           list what lies in shared memory, remove what nobody will read
  test [ARGUMENT...]  run specs with busted, inside the host

Options:
  -h, --help          this text
  -v, --version       the version
  --platform          versions of what the host stands on, and its shared memory

A script that returns a pipeline takes options of its own: omnihost SCRIPT --help
Exit codes: 0 done, 1 script or request failed, 2 wrong usage, 130 and 143 ended by a signal, in order.
]]

local VERBS = { run = "omni.cli.run", check = "omni.cli.check", graph = "omni.cli.graph",
  plm = "omni.cli.plm", shm = "omni.cli.shm", test = "omni.cli.test" }

--- Ends the run because it was called wrongly.
---@param message string
function cli.usage(message)
  io.stderr:write("omnihost: ", message, "\nTry: omnihost --help\n")
  os.exit(2)
end

local function version()
  print("omnihost " .. host.facts().version)
end

local options = {
  ["-h"] = function() io.stdout:write(HELP) end,
  ["-v"] = version,
  ["--platform"] = function() require("omni.cli.platform").print() end,
}
options["--help"], options["--version"] = options["-h"], options["-v"]

--- What `main` of the process runs.
---@param ... string the process's arguments
function cli.main(...)
  local first = ...
  if first == nil then
    io.stderr:write(HELP)
    return os.exit(2)
  end
  if VERBS[first] then return require(VERBS[first]).main(select(2, ...)) end
  if options[first] then return options[first]() end
  if first ~= "-" and first ~= "-e" and first:sub(1, 1) == "-" then
    return cli.usage(("unknown option %s%s"):format(first, check.hint(first, check.sorted_keys(options))))
  end
  return require("omni.cli.run").main(...)
end

return cli
