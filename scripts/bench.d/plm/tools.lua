-- Tools of the measurements.
local json = require "omni.json"

local table_of = {}
for i = 1, 64 do table_of["k" .. i] = { id = i, name = "item " .. i, tags = json.array { "a", "b" } } end

return {
  nop = { allow_early_read = true, call = function() end },
  lookup = { allow_early_read = true, call = function(_, key) return table_of[key] end },
  read = { allow_early_read = true, call = function(ctx, _, seconds) ctx:sleep(seconds) return 1 end },
}
