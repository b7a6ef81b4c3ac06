--- Silent forms: expressions that the host can evaluate early without running code of the guest's, raising or writing.
-- `check` finds out whether a node is one and what it reads; `encode` writes it as postfix code (rewrite.lua).

jit.off(true, true) -- as in parser.lua

local forms = {}

local MAX_DEPTH = 30 -- of nested constructors and operators: bounds the stack of who runs the code

---@class omni.plm.reads what an argument depends on
---@field locals table[] variables
---@field globals string[] names
---@field keys any[] constant keys of chains
---@field deep boolean a whole value is passed on, which may be a table that a field assignment changes

local constant = { Nil = "z", True = "t", False = "f" }
local operators = { concat = ".", add = "+", sub = "-", mul = "*" }

-- nil for cdata literals (1LL, 2i), which are no constants to us.
local function number(node)
  if node.tag == "Number" then
    return not node[1]:find "[iIlLuU]" and tonumber(node[1]) or nil
  elseif node.tag == "Op" and node[1] == "unm" and node[2].tag == "Number" then
    local value = number(node[2])
    return value and -value
  end
end

--- The value of a key that the text gives as a constant; nil where it does not.
---@param node table
---@return string|number|boolean|nil key
function forms.key(node)
  if node.tag == "String" then return node[1] end
  if node.tag == "True" then return true end
  if node.tag == "False" then return false end
  local value = number(node)
  return value == value and value or nil
end

local check

local function check_chain(node, reads)
  local key = forms.key(node[2])
  if key == nil then return "indexes with a key that is not constant" end
  reads.keys[#reads.keys + 1] = key
  local base = node[1]
  if base.tag ~= "Id" and base.tag ~= "Index" then return "indexes something other than a variable" end
  return check(base, reads, true, 0)
end

local function check_table(node, reads, depth)
  local seen, items = {}, 0
  for _, item in ipairs(node) do
    local value, key = item, items + 1
    if item.tag == "Pair" then
      key, value = forms.key(item[1]), item[2]
      if key == nil then return "has a key that is not constant" end
    else
      items = key
    end
    if seen[key] then return "sets a key twice" end
    seen[key] = true
    local why = check(value, reads, false, depth + 1)
    if why then return why end
  end
end

local refused = {
  Call = "needs the result of a call", Invoke = "needs the result of a method call", Dots = "passes ...",
  Function = "is a function",
}

--- Why a node is not silent; nil when it is.
---@param node table
---@param reads omni.plm.reads filled in
---@param shallow boolean the value is an operand or the base of a chain, and not passed on as a whole
---@param depth integer
---@return string|nil why
function check(node, reads, shallow, depth)
  local tag = node.tag
  if depth > MAX_DEPTH then return "is nested too deeply" end
  if tag == "String" or constant[tag] or number(node) then return nil end
  if tag == "Paren" then return check(node[1], reads, shallow, depth + 1) end
  if tag == "Id" then
    if node.var then reads.locals[#reads.locals + 1] = node.var else reads.globals[#reads.globals + 1] = node[1] end
    if not shallow then reads.deep = true end
    return nil
  end
  if tag == "Index" then
    if not shallow then reads.deep = true end
    return check_chain(node, reads)
  end
  if tag == "Table" then return shallow and "operates on a table" or check_table(node, reads, depth) end
  if tag == "Op" and operators[node[1]] then
    return check(node[2], reads, true, depth + 1) or check(node[3], reads, true, depth + 1)
  end
  return refused[tag] or "needs an operation that could run code or raise"
end

--- Why the arguments of a call are not silent; nil when they are.
---@param node table a Call
---@return string|nil why
---@return omni.plm.reads reads
function forms.check(node)
  local reads = { locals = {}, globals = {}, keys = {}, deep = false }
  for index = 2, #node do
    local why = check(node[index], reads, false, 0)
    if why then return ("argument %d %s"):format(index - 1, why), reads end
  end
  return nil, reads
end

local function put_string(out, letter, text)
  out[#out + 1] = letter .. #text .. ":" .. text
end

local function put_number(out, value) put_string(out, "n", ("%.17g"):format(value)) end

local function put_key(out, key)
  if type(key) == "string" then put_string(out, "s", key)
  elseif type(key) == "number" then put_number(out, key)
  else out[#out + 1] = key and "t" or "f" end
end

local encode

local function encode_table(node, out, slot)
  out[#out + 1] = "{"
  local items = 0
  for _, item in ipairs(node) do
    local value = item
    if item.tag == "Pair" then
      put_key(out, forms.key(item[1]))
      value = item[2]
    else
      items = items + 1
      put_number(out, items)
    end
    encode(value, out, slot)
    out[#out + 1] = "="
  end
end

--- Appends the code of a silent node.
---@param node table
---@param out string[]
---@param slot fun(node: table): integer the number of a local among the values of its P
function encode(node, out, slot)
  local tag, value = node.tag, number(node)
  if value then put_number(out, value)
  elseif tag == "String" then put_string(out, "s", node[1])
  elseif constant[tag] then out[#out + 1] = constant[tag]
  elseif tag == "Paren" then encode(node[1], out, slot)
  elseif tag == "Id" then
    if node.var then out[#out + 1] = "v" .. slot(node) .. ":" else put_string(out, "g", node[1]) end
  elseif tag == "Index" then
    encode(node[1], out, slot)
    put_key(out, forms.key(node[2]))
    out[#out + 1] = "i"
  elseif tag == "Table" then encode_table(node, out, slot)
  else
    encode(node[2], out, slot)
    encode(node[3], out, slot)
    out[#out + 1] = operators[node[1]]
  end
end

--- The code of a call's arguments.
---@param node table a Call whose arguments are silent
---@param slot fun(node: table): integer
---@return string code
---@return integer count how many values it leaves
function forms.encode(node, slot)
  local out = {}
  for index = 2, #node do encode(node[index], out, slot) end
  return table.concat(out), #node - 1
end

return forms
