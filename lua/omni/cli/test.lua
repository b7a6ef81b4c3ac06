--- `omnihost test`: busted inside the host, so that specs may call everything that suspends.

local host = require "omni.native.host"

local test = {}

--- Runs the specs. A failed run ends by an error without a value, as busted's own program does.
---@param ... string busted's arguments
function test.main(...)
  _G.arg = { [0] = "omnihost test", ... }
  host.script_dir(require("luv").cwd())
  local unseen = {}
  -- Errors of callbacks and of spawned tasks go to the spec that runs. It waits, or they could not have happened; where
  -- it was woken in the same turn, they are kept for the end.
  host.on_error(function(text)
    if not host.raise_main(text) then unseen[#unseen + 1] = text end
    return true
  end)
  require "busted.runner" { standalone = false }
  host.on_error(nil)
  if #unseen == 0 then return end
  io.stderr:write("omnihost test: errors outside of any spec:\n", table.concat(unseen, "\n"), "\n")
  os.exit(1)
end

return test
