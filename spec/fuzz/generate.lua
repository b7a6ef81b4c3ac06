--- Random guest programs over random manifests: mostly reads that can overlap, and all that stands in the way of it.

local generate = {}

-- Park and Miller's generator: the same programs for a seed on every machine.
local function random_source(seed)
  local state = (seed * 7919 + 12345) % 2147483646 + 1
  local function random(n)
    state = state * 16807 % 2147483647
    return math.floor(state / 2147483647 * n) + 1
  end
  for _ = 1, 8 do random(2) end
  return random
end

local G = {}
G.__index = G

function G:chance(percent) return self.random(100) <= percent end
function G:pick(list) return list[self.random(#list)] end

function G:weighted(choices)
  local total = 0
  for index = 1, #choices, 2 do total = total + choices[index] end
  local left = self.random(total)
  for index = 1, #choices, 2 do
    left = left - choices[index]
    if left <= 0 then return choices[index + 1] end
  end
end

local READS = { "get", "lookup", "db.get", "search", "kv.read.one", "profile" }
local WRITES = { "put", "db.set", "tick" }

local function manifest_of(g)
  local reads, tools = {}, {}
  for _, name in ipairs(READS) do
    local early = g:chance(85) or name == "get"
    tools[#tools + 1] = { name = name, early = early }
    if early then reads[#reads + 1] = name end
  end
  for _, name in ipairs(WRITES) do tools[#tools + 1] = { name = name, early = false } end
  g.reads = reads
  return tools
end

-- Locals in scope, innermost last, by kind: s(tring), n(umber), t(able), a(ny).
function G:declare(kind)
  self.count = self.count + 1
  local name = self:chance(6) and #self.scope > 0 and self:pick(self.scope).name or ("v%d"):format(self.count)
  self.scope[#self.scope + 1] = { name = name, kind = kind }
  return name
end

-- A name that no statement assigns.
function G:counter()
  self.count = self.count + 1
  self.scope[#self.scope + 1] = { name = "c" .. self.count, kind = "f" }
  return "c" .. self.count
end

function G:variable(kinds)
  for _ = 1, 4 do
    local var = #self.scope > 0 and self.scope[math.max(1, #self.scope + 1 - self.random(6))]
    if var and kinds:find(var.kind, 1, true) then return var.name end
  end
end

function G:literal()
  return self:weighted {
    6, ('"k%d"'):format(self.random(5)), 4, tostring(self.random(9)), 1, "-" .. self.random(9), 1, "true", 1, "nil",
    1, '"é\\n\\x41\\"%d"', 1, "0x1F", 1, "1.5e3", 1, "'k1'", 1, "[[k2]]", 1, "(3)",
  }
end

function G:number()
  local var = self:variable "n"
  return self:weighted {
    3, var or "2", 2, tostring(self.random(9)), 1, (var or "5") .. " + 1", 1, (var or "5") .. " * 2 - inputs.n",
  }
end

function G:field()
  return self:weighted {
    3, "inputs.a", 2, "inputs.user.id", 2, "inputs.list[1]", 2, "inputs.n", 1, "inputs.user.name", 1, 'inputs["a"]',
    1, "g1", 1, "g2", 1, "store.x", 1, "store.y", 1, "inputs.list[2]", 1, "lazy.k", 1, "missing",
  }
end

function G:silent(depth)
  local var, text = self:variable "sna", self:variable "sn"
  local choice = self.random(depth > 2 and 5 or 8)
  if choice <= 2 then return self:literal() end
  if choice <= 4 then return var or self:field() end
  if choice == 5 then return self:field() end
  if choice == 6 then return ('"u:" .. %s'):format(text or "inputs.n") end
  if choice == 7 then return self:number() end
  local form = self:weighted { 9, "{ %s, %s }", 9, "{ j = %s, k = %s }", 1, "{ %s, k = %s }" }
  return form:format(self:silent(depth + 1), self:silent(depth + 1))
end

function G:loud(depth)
  local var = self:variable "sna" or "inputs.a"
  return self:weighted {
    4, self:call(depth + 1), 2, ("tostring(%s)"):format(var), 1, "#inputs.list", 1, ("%s or 1"):format(var),
    1, ("%s and %s"):format(var, self:call(depth + 1)), 1, ('%s .. "x"'):format(self.reads[1] .. '("q")'),
    1, (self.functions > 0 or self:chance(4)) and "..." or "nil",
    1, ("(function(...) return %s end)()"):format(self:call(depth + 1)), 1, "2 ^ 3", 1, "not " .. var, 1, "lazy.other",
    1, "inputs.n / 2", 1, "noisy .. 1", 1, ("noisy + %d"):format(self.random(3)),
  }
end

function G:arguments(depth)
  local args = {}
  for index = 1, self:weighted { 1, 0, 8, 1, 3, 2, 1, 3 } do
    args[index] = (self:chance(12) and depth < 3) and self:loud(depth) or self:silent(depth)
  end
  return args
end

-- A call of a read in one of the forms of Lua, the odd ones included.
function G:call(depth)
  depth = depth or 1
  local name = self:pick(self.reads)
  if self:chance(3) then name = self:pick(READS) end
  if self:chance(2) then return ("%s{ k = %s }"):format(name, self:silent(2)) end
  if self:chance(2) then return name .. self:weighted { 3, '"k1"', 1, "'k2'", 1, "[[k3]]", 1, "[[k\n4]]" } end
  local args = table.concat(self:arguments(depth), self:chance(5) and ",\n  " or ", ")
  if self:chance(3) then name = name:gsub("%.", "\n.") end
  if name == "db.get" and self:chance(8) then name = self:pick { 'db["get"]', "db . get", "_G.db.get" } end
  return name .. self:weighted {
    20, "(" .. args .. ")", 1, " (" .. args .. ")", 1, "(\n" .. args .. ")", 1, "( --[[ c ]] " .. args .. " )",
    1, "(" .. args .. " -- é\n)",
  }
end

-- A value that may hold several calls.
function G:value()
  return self:weighted {
    10, self:call(), 2, ("%s .. %s"):format(self:call(), self:call()),
    1, ("{ x = %s, y = %s }"):format(self:call(), self:call()),
    1, ("{ %s, %s }"):format(self:call(), self:call()), 1, ("both(%s, %s)"):format(self:call(), self:call()),
    1, ("%s == %s"):format(self:call(), self:call()), 1, self:silent(1),
    1, ("tostring(%s) < tostring(%s)"):format(self:call(), self:call()),
    1, ("tostring(%s):rep(2)"):format(self:call()),
    1, ("{ k = %s, [ %s ] = 1, %s }"):format(self:call(), self:number(), self:call()), 1, ("(%s)"):format(self:call()),
    1, ("%s and %s or %s"):format(self:call(), self:call(), self:call()), 1, ("select('#', %s)"):format(self:call()),
  }
end

local statements = {}

-- One, two or three locals at once.
function statements.locals(g)
  local values = { g:value() }
  for index = 2, g:weighted { 8, 1, 3, 2, 1, 3 } do values[index] = g:call() end
  local names = {}
  for index = 1, #values + (g:chance(8) and 1 or 0) do names[index] = g:declare(index == 1 and "a" or "s") end
  g:line(("local %s = %s"):format(table.concat(names, ", "), table.concat(values, ", ")))
end

function statements.plain(g)
  local value, kind = g:literal(), "a"
  if g:chance(50) then value, kind = tostring(g.random(20)), "n" end
  if g:chance(15) then value, kind = "{ x = 1 }", "t" end
  g:line(("local %s = %s"):format(g:declare(kind), value))
end

function statements.assign(g)
  local var = g:variable "as" or "g1"
  local target = g:weighted { 3, var, 2, "g1", 1, "g2", 2, "store.x", 1, "store[g1]", 1, "store.y, g2" }
  local values = target:find(",", 1, true) and g:call() .. ", " .. g:call() or g:value()
  g:line(("%s = %s"):format(target, values))
end

function statements.reassign(g)
  local var = g:variable "na"
  if var then g:line(("%s = %s"):format(var, g:weighted { 2, g:number(), 1, g:literal(), 1, g:field() })) end
end

function statements.write(g)
  g.features.write = true
  g:line(("%s(%s, %s)"):format(g:pick(WRITES), g:silent(2), g:silent(2)))
end

-- A read, a write and the same read: what comparing requests alone would get wrong.
function statements.stale(g)
  g.features.write = true
  local args, name = g:silent(2), g:pick(g.reads)
  g:line(("local %s = %s(%s)"):format(g:declare "a", name, args))
  g:line(("%s(%s)"):format(g:pick(WRITES), args))
  g:line(("local %s, %s = %s(%s), %s"):format(g:declare "a", g:declare "a", name, args, g:call()))
end

function statements.effect(g)
  g:line(g:weighted {
    3, g:call(), 1, ("print(%s, %s)"):format(g:call(), g:call()), 1, ("both(%s, %s)"):format(g:silent(2), g:call()),
    1, ("note(%s)"):format(g:silent(2)), 1, ("obj:get(%s)"):format(g:call()), 1, ("store.k = %s"):format(g:silent(2)),
    1, ("local _ = both; (_ or note)(%s, %s)"):format(g:call(), g:call()), 1, ("lazy.z = %s"):format(g:call()),
  })
end

function statements.closure(g)
  local name = g:declare "f"
  g.functions = g.functions + 1
  g:line(g:chance(50) and ("local function %s(p, ...)"):format(name) or ("local %s = function(p, ...)"):format(name))
  local last = g:chance(60) and ("return %s"):format(g:call())
  g:block(function() g.scope[#g.scope + 1] = { name = "p", kind = "a" } end, last)
  g:line "end"
  g.functions = g.functions - 1
  if g:chance(80) then g:line(("local %s = %s(%s)"):format(g:declare "a", name, g:silent(2))) end
end

-- A closure that writes what the arguments around it read.
function statements.upvalue(g)
  local n, step = g:counter(), g:counter()
  g:line(("local %s = 1"):format(n))
  g:line(("local function %s() %s = %s + 1 return %s end"):format(step, n, n, n))
  g:line(("local %s, %s = %s(%s), %s(%s)"):format(g:declare "a", g:declare "a", g:pick(g.reads), n, g:pick(g.reads), n))
  g:line(("note(%s(%s), %s(%s()), %s(%s))"):format(g:pick(g.reads), n, g:pick(g.reads), step, g:pick(g.reads), n))
end

function statements.recursion(g)
  local name = g:counter()
  g:line(("local function %s(p, ...)"):format(name))
  g.functions = g.functions + 1
  g:block(function() g.scope[#g.scope + 1] = { name = "p", kind = "n" } end)
  g:line(("if p > 2 then return %s end"):format(g:call()))
  g:line(("local a, b = %s(p), %s"):format(g:pick(g.reads), g:call()))
  g:line(("return %s(p + 1, a, %s)"):format(name, g:call()))
  g:line "end"
  g.functions = g.functions - 1
  g:line(("note(%s(%d))"):format(name, g.random(3)))
end

-- Back to a label, in a block of its own.
function statements.back(g)
  local n = g:counter()
  g:line(("do local %s = 0 ::t%s::"):format(n, n))
  g:line(("%s = %s + 1"):format(n, n))
  g:block()
  g:line(("if %s < 2 then goto t%s end"):format(n, n))
  g:line "end"
end

function statements.branch(g)
  g:line(("if %s then"):format(g:weighted { 2, g:value(), 1, ("%s ~= %s"):format(g:call(), g:call()), 1, g:silent(2) }))
  g:block()
  if g:chance(30) then
    g:line(("elseif %s then"):format(g:value()))
    g:block()
  end
  if g:chance(40) then
    g:line "else"
    g:block()
  end
  g:line "end"
end

function statements.count(g)
  local i = ("i%d"):format(g.count)
  g:line(("for %s = 1, %s do"):format(i, g:weighted {
    6, "2", 1, "#inputs.list", 1, ("(%s and 2 or 1)"):format(g:call()), 1, ("2, %s and 1 or 2"):format(g:call()),
  }))
  g:block(function() g.scope[#g.scope + 1] = { name = i, kind = "n" } end, g:chance(10) and "break")
  g:line "end"
end

function statements.iterate(g)
  g.features.pairs = true
  g:line(("for k, v in pairs(%s) do"):format(g:weighted { 3, "inputs.map", 1, "inputs.user", 1, "{ b = 1, a = 2 }" }))
  g:block(function()
    g.scope[#g.scope + 1] = { name = "k", kind = "s" }
    g.scope[#g.scope + 1] = { name = "v", kind = "a" }
  end)
  g:line "end"
end

function statements.loop(g)
  local n = g:counter()
  g:line(("local %s = 0"):format(n))
  if g:chance(50) then
    g:line(("while %s < 2 do"):format(g:chance(70) and n or ("(%s and %s)"):format(g:call(), n)))
    g:line(("%s = %s + 1"):format(n, n))
    g:block()
    g:line "end"
  else
    g:line "repeat"
    g:line(("%s = %s + 1"):format(n, n))
    g:block()
    g:line(("until %s >= 2 or %s == 1"):format(n, g:call()))
  end
end

function statements.skip(g)
  g.count = g.count + 1
  local label, n = "l" .. g.count, "j" .. g.count
  g:line(("for %s = 1, 3 do"):format(n))
  g:line(("if %s == 2 then goto %s end"):format(n, label))
  g:block(function() g.scope[#g.scope + 1] = { name = n, kind = "n" } end)
  g:line(("::%s::"):format(label))
  g:line "end"
end

function statements.guard(g)
  local ok, err = g:declare "a", g:declare "e"
  if g:chance(30) then
    g:line(("local %s, %s = pcall(%s, %s)"):format(ok, err, g:pick(g.reads), g:silent(2)))
  else
    g:line(("local %s, %s = pcall(function(...)"):format(ok, err))
    g.functions = g.functions + 1
    g:block(nil, g:chance(50) and ("error(%s)"):format(g:call()) or ("return %s"):format(g:call()))
    g:line "end)"
    g.functions = g.functions - 1
  end
  g:line(("note(%s, %s)"):format(ok, err))
end

function statements.shadow(g)
  g.features.shadow = true
  g:line(g:weighted {
    3, "local get = function(...) note(...) return 'mine' end", 1, "local db = { get = note }", 2, "local get = get",
    1, "function get(...) return 'other' end", 1, "lookup = get", 1, "db.get = note", 1, "db = { get = db.get }",
    1, "_G.get = lookup", 1, "_G['search'] = nil", 1, "rawset(_G, 'get', note)", 1, "rawset(db, 'get', lookup)",
    1, "setmetatable(db, { __index = function(_, k) put(k) return note end })", 1, "local inputs = inputs",
  })
end

function statements.raise(g)
  g.features.raise = true
  g:line(g:weighted {
    3, ("error(%s)"):format(g:silent(2)), 2, ("local %s = missing.field"):format(g:declare "a"), 1, 'get("fail")',
    2, ("local %s, %s = %s, get('fail')"):format(g:declare "a", g:declare "a", g:call()),
    1, ("local %s = get(missing.field, %s)"):format(g:declare "a", g:call()), 1, "missing(1)", 1, "get({}, note)",
    1, ("assert(nil, %s)"):format(g:call()),
  })
end

function statements.coroutine(g)
  local co = g:declare "f"
  g:line(("local %s = coroutine.wrap(function(p, ...)"):format(co))
  g.functions = g.functions + 1
  g:block()
  g:line(("local q = %s coroutine.yield(q) local r = %s"):format(g:call(), g:call()))
  g:line(("return r, %s"):format(g:call()))
  g:line "end)"
  g.functions = g.functions - 1
  g:line(("note(%s(1), %s, %s(2))"):format(co, g:call(), co))
end

function statements.global_magic(g)
  g:line(g:weighted {
    2, "setmetatable(_G, { __index = function(_, k) put(k) return 'magic' end })", 1, "setmetatable(_G, nil)",
    1, "setmetatable(inputs, { __index = function(_, k) note(k) end })",
    1, "g1 = setmetatable({}, { __index = note })",
    1, "store = setmetatable({}, { __newindex = function(t, k, v) put(k) rawset(t, k, v) end })",
  })
end

local WEIGHTS = {
  34, "locals", 10, "plain", 8, "assign", 5, "reassign", 4, "write", 3, "stale", 8, "effect", 4, "closure",
  5, "branch", 3, "count", 3, "iterate", 2, "loop", 2, "skip", 4, "guard", 2, "shadow",
  2, "upvalue", 1, "recursion", 1, "back", 1, "raise", 1, "coroutine", 1, "global_magic",
}

function G:line(text) self.out[#self.out + 1] = text end

function G:statement()
  self.budget = self.budget - 1
  statements[self.depth > 3 and "locals" or self:weighted(WEIGHTS)](self)
end

-- The body of a block: what it declares is gone after it.
function G:block(before, last)
  local scope = { unpack(self.scope) }
  self.depth = self.depth + 1
  if before then before() end
  for _ = 1, self.random(self.depth > 2 and 2 or 4) do
    if self.budget > 0 then self:statement() end
  end
  if last then self:line(last) end
  self.depth = self.depth - 1
  self.scope = scope
end

function G:finish()
  local values = { "g1", "g2", "store.x" }
  for _, var in ipairs(self.scope) do
    if var.kind ~= "f" and #values < 20 then values[#values + 1] = var.name end
  end
  if self:chance(15) then self:line(("return %s"):format(self:call()))
  elseif self:chance(15) then self:line(("return %s .. %s, %s"):format(self:call(), self:call(), self:call()))
  else self:line(("return %s"):format(table.concat(values, ", "))) end
end

-- Statements on a line of their own, or beside the one before.
local function join(g)
  local text = { g.out[1] }
  for index = 2, #g.out do
    local before = g.out[index - 1]
    local comment = before:find("--", 1, true) and not before:find "\n[^\n]*$"
    text[#text + 1] = (comment or not g:chance(12)) and "\n" or g:pick { " ", "  --[[ é ]] ", "\t" }
    text[#text + 1] = g.out[index]
  end
  return table.concat(text)
end

local PRELUDE = [[
g1, g2, store = "k1", 7, { x = "k2", y = 3 }
local function note(...) print("note", ...) return ... end
local function both(a, b) return type(a) .. "/" .. type(b) end
local obj = { get = function(self, x) return x end }
local lazy = setmetatable({ k = "k3" }, { __index = function(_, name) print("lazy", name) return put(name) end })
local noisy = setmetatable({}, {
  __concat = function() print("concat") return tick() end, __add = function(_, n) return put(n) end })
]]

--- A program.
---@param seed integer
---@return table program text, manifest (name and early of each tool), features (what it contains), seed
function generate.program(seed)
  local g = setmetatable({
    random = random_source(seed), out = {}, scope = {}, count = 0, depth = 1, functions = 0, features = {},
  }, G)
  local manifest = manifest_of(g)
  g.budget = 4 + g.random(22)
  if g:chance(12) then statements.shadow(g) end
  while g.budget > 0 do g:statement() end
  if g:chance(8) then statements.raise(g) else g:finish() end
  return { text = PRELUDE .. join(g), manifest = manifest, features = g.features, seed = seed }
end

return generate
