--- Guest programs and their tools: `local plm = require "omni.plm"`.
---@class omni.plm
local plm = {}

-- What is behind each name is loaded when it is first used.
local FUNCTIONS = {
  manifest = { "omni.plm.manifest", "new" },
  open_run = { "omni.plm.run", "open" },
  rewrite = { "omni.plm.rewrite", "rewrite" },
  runner = { "omni.plm.runner", "new" },
}

setmetatable(plm, {
  __index = function(_, name)
    local where = FUNCTIONS[name]
    if not where then return end
    local module = require(where[1])
    plm[name] = type(module) == "table" and module[where[2]] or module
    return plm[name]
  end,
})

return plm
