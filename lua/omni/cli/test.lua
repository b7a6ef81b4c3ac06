--- `omnihost test`: busted inside the host, so that specs may call everything that suspends.

local host = require "omni.native.host"

local test = {}

--- Runs the specs. A failed run ends by an error without a value, as busted's own program does.
---@param ... string busted's arguments
function test.main(...)
  -- busted runs -e when it is set up and before it loads a spec.
  _G.arg = { [0] = "omnihost test", "-e", 'require "omni.testing.busted"', ... }
  host.script_dir(require("luv").cwd())
  require "busted.runner" { standalone = false }
end

return test
