-- Loaded by `omnihost test` into every busted run: each `it` must leave nothing behind, and an error in a callback or
-- in a spawned task fails the `it` that runs instead of ending the process.
local host = require "omni.native.host"
local testing = require "omni.testing"

local busted = require "busted"

local before, errors

host.on_error(function(text)
  -- Where the spec waits, the error is raised there: what it waits for may never come.
  if not host.raise_main(text) then
    errors = errors or {}
    errors[#errors + 1] = text
  end
  return true
end)

-- Errors while no spec runs (a file that is loaded, a setup): reported when the run ends, which then fails.
busted.subscribe({ "suite", "end" }, function()
  if errors then io.stderr:write(table.concat(errors, "\n"), "\n") os.exit(1) end
  return nil, true
end)

busted.before_each(function()
  before = testing.snapshot()
end)

busted.after_each(function()
  local snapshot, caught = before, errors
  before, errors = nil, nil
  if caught then error(table.concat(caught, "\n"), 0) end
  if snapshot then testing.check(snapshot) end
end)
