--- Writes the rewritten text: the source with insertions, none of which holds a newline.

jit.off(true, true) -- as in parser.lua

local forms = require "omni.plm.pass.forms"

local MAX_VALUES = 32 -- of one P: a function may have 200 locals already, and 250 registers

-- A name that the source does not use: the letter, or the letter and a number.
local function fresh(source, letter)
  local used, number = {}, 0
  for digits in source:gmatch(letter .. "(%d*)") do used[digits] = true end
  if not used[""] then return letter end
  repeat number = number + 1 until not used[tostring(number)]
  return letter .. number
end

local function insert(inserts, at, text)
  inserts[#inserts + 1] = { at = at, order = #inserts, text = text }
end

local function apply(source, inserts)
  table.sort(inserts, function(a, b) return a.at < b.at or (a.at == b.at and a.order < b.order) end)
  local out, from = {}, 1
  for _, edit in ipairs(inserts) do
    out[#out + 1] = source:sub(from, edit.at - 1)
    out[#out + 1] = edit.text
    from = edit.at
  end
  out[#out + 1] = source:sub(from)
  return table.concat(out)
end

-- The calls of a boundary as code over numbered values; more than one P where the values are many.
local function prepare(burst, P, plan)
  local text, code, names, slots = {}, {}, {}, {}
  local function slot(node)
    if not slots[node.var] then
      names[#names + 1] = node[1]
      slots[node.var] = #names
    end
    return slots[node.var]
  end
  local function finish()
    plan[#plan + 1] = table.concat(code)
    text[#text + 1] = ("%s(%s);"):format(P, table.concat({ #plan, unpack(names) }, ","))
    code, names, slots = {}, {}, {}
  end
  for _, call in ipairs(burst) do
    if #names > MAX_VALUES then finish() end
    local body, count = forms.encode(call.node, slot)
    code[#code + 1] = ("S%d,%d,%d:%s"):format(call.site, count, #body, body)
  end
  finish()
  return table.concat(text)
end

local function in_place(inserts, source, call, R)
  local node, open = call.node, call.open
  local comma = #node > 1 and "," or ""
  if source:byte(open) == 40 then -- "("
    insert(inserts, open + 1, ("%s(%d%s"):format(R, call.site, comma))
    insert(inserts, node.end_offset, ")")
  else
    insert(inserts, open, ("(%s(%d,"):format(R, call.site))
    insert(inserts, node.end_offset + 1, "))")
  end
end

local function site(call, known)
  local sites = call.group.sites
  return {
    tool = call.tool, path = known.all[call.tool], line = call.line, group = call.group.number, last = sites[#sites],
  }
end

--- The rewritten text of a program and what its numbers mean.
---@param source string
---@param tree table
---@param found table of the walk
---@param known table the manifest's tools
---@return string text
---@return table[] sites
---@return string[] plan
return function(source, tree, found, known)
  local P, R = fresh(source, "P"), fresh(source, "R")
  local inserts, sites, plan = {}, {}, {}
  insert(inserts, tree[1].offset, ("local %s,%s=...;"):format(P, R))
  for _, burst in ipairs(found.bursts) do insert(inserts, burst.offset, prepare(burst, P, plan)) end
  for _, call in ipairs(found.calls) do
    if call.site then
      in_place(inserts, source, call, R)
      sites[call.site] = site(call, known)
    end
  end
  return apply(source, inserts), sites, plan
end
