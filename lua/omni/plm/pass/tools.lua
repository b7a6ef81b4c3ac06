--- What the pass knows of a manifest: the early tools by name, and looks at a text that are much cheaper than parsing.

local tools = {}
tools.__index = tools

-- The parts are needed for every program and manifests do not change.
local cache = setmetatable({}, { __mode = "k" })

--- The names of a manifest, taken apart.
---@param manifest omni.plm.manifest
---@return table known early: by name; all: by name; roots and ends: first and last parts of dotted names
function tools.of(manifest)
  local known = cache[manifest]
  if known then return known end
  known = setmetatable({ early = {}, all = {}, roots = {}, ends = {}, early_ends = {} }, tools)
  for _, name in ipairs(manifest:names()) do
    local path = {}
    for part in name:gmatch "[^.]+" do path[#path + 1] = part end
    known.all[name] = path
    known.roots[path[1]] = true
    known.ends[path[#path]] = true
    if manifest:early(name) then
      known.early[name] = path
      known.early_ends[path[#path]] = true
    end
  end
  cache[manifest] = known
  return known
end

--- Whether the text names early tools twice. Comments and strings count too: a doubt only costs a parse.
---@param source string
---@return boolean
function tools:twice(source)
  local count = 0
  for name in pairs(self.early_ends) do
    local from, to = source:find(name, 1, true)
    while from do
      count = count + 1
      if count == 2 then return true end
      from, to = source:find(name, to + 1, true)
    end
  end
  return false
end

-- What stands between two calls of which one is before, in or after a branch, a loop or a block, and the other is not.
local APART = {}
for word in ("then else elseif do end while repeat until goto break ::"):gmatch "%S+" do APART[word] = true end

--- Whether two early tools are named with nothing between that keeps them apart. What a closure holds does not.
---@param tokens table of parser.read
---@return boolean
function tools:together(tokens)
  local ends, kinds, values = self.early_ends, tokens.kinds, tokens.values
  local seen, apart, closure = false, false, false
  for index = 1, #kinds do
    local kind = kinds[index]
    if (kind == "name" or kind == "string") and ends[values[index]] then
      if seen and not apart then return true end
      seen, apart, closure = true, false, false
    elseif kind == "function" then
      closure = true
    elseif APART[kind] and not closure then
      apart = true
    end
  end
  return false
end

return tools
