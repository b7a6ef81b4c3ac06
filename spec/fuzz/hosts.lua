--- What runs the fuzzer's programs: the reference in plain Lua.

local rewrite = require "omni.plm.rewrite"
local reference = require "spec.fuzz.reference"

local hosts = {}

-- The pass asks a manifest for names and for who may be read early.
local function manifest_of(program)
  if program.for_pass then return program.for_pass end
  local names, early = {}, {}
  for index, tool in ipairs(program.manifest) do names[index], early[tool.name] = tool.name, tool.early end
  program.for_pass = { names = function() return names end, early = function(_, name) return early[name] end }
  return program.for_pass
end

hosts.reference = {
  off = function(program, text) return reference.run(program, text) end,
  on = function(program, text)
    local rewritten, info = rewrite(text, manifest_of(program))
    return reference.run(program, rewritten, info), info
  end,
}

return hosts
