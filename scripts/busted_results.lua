-- Output handler of busted for scripts/test: a line per spec as it ends, and the same for the summary in the files
-- `results` and `failed` of $OMNI_TEST_DIR (see scripts/lib.sh).

local busted = require "busted"
local base = require "busted.outputHandlers.base"
local pretty = require "pl.pretty"

local dir = os.getenv "OMNI_TEST_DIR"

local function append(name, text)
  if not dir then return end
  local file = assert(io.open(dir .. "/" .. name, "ae"))
  file:write(text)
  file:close()
end

local function say(text)
  io.stdout:write(text, "\n")
  io.stdout:flush()
end

local function record(result, name, reason)
  append("results", ("%s\t%s\t%s\n"):format(result, name:gsub("%s+", " "), (reason or ""):gsub("%s+", " ")))
end

local function describe(failure)
  local message = failure.message
  if message == nil then message = "nil error" end
  if type(message) ~= "string" then message = pretty.write(message) end
  local trace = failure.trace or {}
  return message .. (failure.isError and trace.traceback or "")
end

return function()
  local handler = base()
  local started

  local function name_of(element)
    local file = busted.parent(element)
    while file and file.descriptor ~= "file" do file = busted.parent(file) end
    return (file and file.name .. ": " or "") .. handler.getFullName(element)
  end

  local function failed(element, failure)
    local name = name_of(element)
    local text = ("not ok - %s\n  %s"):format(name, describe(failure):gsub("\n", "\n  "))
    record("fail", name)
    append("failed", text .. "\n")
    say(text)
  end

  -- A spec that takes the process with it leaves its name behind.
  function handler.testStart(element)
    started = os.clock()
    append("running", name_of(element) .. "\n")
    return nil, true
  end

  function handler.testEnd(element, _, status)
    local name = name_of(element)
    if status == "success" then
      record("pass", name)
      say(("ok - %s (%d ms cpu)"):format(name, (os.clock() - started) * 1000))
    elseif status == "pending" then
      local reason = handler.pendings[#handler.pendings].message or "pending"
      record("skip", name, tostring(reason))
      say(("skipped - %s: %s"):format(name, reason))
    elseif status == "failure" then
      failed(element, handler.failures[#handler.failures])
    else
      failed(element, handler.errors[#handler.errors])
    end
    return nil, true
  end

  -- Outside of any spec: a file that does not load, a setup that raises.
  function handler.error(element)
    if element.descriptor ~= "it" then failed(element, handler.errors[#handler.errors]) end
    return nil, true
  end

  busted.subscribe({ "test", "start" }, handler.testStart)
  busted.subscribe({ "test", "end" }, handler.testEnd)
  busted.subscribe({ "error" }, handler.error)
  busted.subscribe({ "failure" }, handler.error)

  return handler
end
