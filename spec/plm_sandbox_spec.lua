-- What guest programs cannot do: get out, stay alive past their limits, or end the process.

local native = require "omni.native.guest"
local omni = require "omni"

local SECONDS = 0.15 -- what an attack on the deadline gets
-- How late its end may be. TSan holds signals back, the alarm among them, and slows the rest down.
local LATE = require("omni.native.host").facts().exe:find("/tsan/", 1, true) and 0.5 or 0.05

local function run(source, options)
  local o = { source = source, chunk = "@guest.lua", seconds = 5, deadline = omni.now() + 5 }
  for key, value in pairs(options or {}) do o[key] = value end
  local guest = native.start(o)
  while not guest:_ended() do guest:_wait() end
  local outcome = guest:_result()
  assert.equal(0, outcome.memory_left)
  return outcome
end

local function results(source, options)
  local outcome = run(source, options)
  assert.is_true(outcome.ok, outcome.message)
  return outcome.results
end

local function fails(source, pattern, options)
  local outcome = run(source, options)
  assert.is_false(outcome.ok)
  assert.matches(pattern, outcome.message)
  return outcome
end

-- A program that has to be ended: by one of these codes, in time. A busy machine may need a second try.
local function ended(source, codes, options)
  local late
  for _ = 1, 4 do
    local deadline = omni.now() + SECONDS
    local o = { seconds = SECONDS, deadline = deadline }
    for key, value in pairs(options or {}) do o[key] = value end
    local outcome = run(source, o)
    assert.is_false(outcome.ok)
    assert.matches(codes, outcome.code, nil, nil, outcome.message)
    late = outcome.ended - o.deadline
    if late < LATE then return outcome end
  end
  error(("ended %.0f ms late: %s"):format(late * 1000, source))
end

-- The names in one of the guest's tables.
local function names_in(where)
  return results(([[
    local names = {}
    for name in pairs(%s) do names[#names + 1] = name end
    return table.concat(names, " ")
  ]]):format(where))
end

describe("a guest's environment", function()
  it("has the allow-list and nothing else", function()
    assert.equal('["_G _VERSION array assert bit coroutine error getmetatable inputs ipairs math next null pairs pcall '
      .. 'print rawequal rawget rawset select setmetatable string table tonumber tostring type unpack xpcall"]',
      names_in "_G")
    assert.equal('["byte char find format gmatch gsub len lower match rep reverse sub upper"]', names_in "string")
    assert.equal('["concat insert maxn pack remove sort unpack"]', names_in "table")
    assert.equal('["create isyieldable resume running status wrap yield"]', names_in "coroutine")
  end)

  it("lets nobody at the metatable of strings or the mark of arrays", function()
    assert.equal('["locked","array"]', results [[return getmetatable(""), getmetatable(array())]])
    fails([[setmetatable(array(), {})]], "protected metatable")
    fails([[setmetatable("", {})]], "table expected")
    assert.equal('["AB"]', results [[string.rep = nil return ("ab"):upper()]])
    assert.equal("[1]", results [[function string.one(s) return #s end return ("x"):one()]])
  end)

  it("takes text only, and no literals that load the FFI", function()
    local bytecode = string.dump(function() return 1 end)
    assert.equal("ESYNTAX", fails(bytecode, "only source text").code)
    for _, literal in ipairs { "5LL", "5ULL", "5i", "0x7fLL" } do
      assert.equal("ESYNTAX", fails("return " .. literal, "literals").code)
    end
    assert.equal("ESYNTAX", fails(("x"):rep(2 ^ 20 + 1), "larger").code)
    assert.equal(2, fails("x = 1\nx = = 2", "guest.lua:2: ").line)
    assert.equal("ESYNTAX", fails(("("):rep(1000) .. "1" .. (")"):rep(1000), "levels").code)
    assert.equal("ESYNTAX", fails(("do "):rep(1000) .. ("end "):rep(1000), "levels").code)
    assert.equal("ESYNTAX", fails("return " .. ("function() return "):rep(500) .. ("end "):rep(500), "levels").code)
    assert.equal("ESYNTAX", fails("local a = " .. ("{"):rep(500) .. ("}"):rep(500), "levels").code)
  end)

  it("shows no addresses", function()
    local shown = results [[
      local t, co = {}, coroutine.create(print)
      return tostring(t), tostring(print), tostring(co), ("%s %p"):format(t, t), tostring(null)
    ]]
    assert.equal('["table: 0x00000001","function: 0x00000002","thread: 0x00000003","table: 0x00000001 1","null"]',
      shown)
  end)

  it("walks tables in one order, whatever the state", function()
    local source = [[
      local t = { 3, 2, 1, zeta = 1, alpha = 2, [10] = 4, [-1] = 5, [0.5] = 6, [true] = 7, [false] = 8, ["10"] = 9 }
      for i = 1, 50 do t["key" .. i] = i end
      local seen = {}
      for key in pairs(t) do seen[#seen + 1] = tostring(key) end
      local again, key = {}, next(t)
      while key ~= nil do again[#again + 1] = tostring(key) key = next(t, key) end
      local third = {}
      for k in next, t do third[#third + 1] = tostring(k) end
      assert(table.concat(seen, " ") == table.concat(again, " ") and #seen == 61)
      assert(table.concat(seen, " ") == table.concat(third, " "))
      return table.concat(seen, " ", 1, 12)
    ]]
    local first = results(source)
    assert.equal('["1 2 3 -1 0.5 10 10 alpha key1 key10 key11 key12"]', first)
    for _ = 1, 5 do assert.equal(first, results(source)) end
  end)

  it("walks on when entries are cleared, and refuses keys that are not there", function()
    assert.equal("[0,6]", results [[
      local t, n = { 1, 2, 3, a = 1, b = 2, c = 3 }, 0
      for key in pairs(t) do t[key] = nil n = n + 1 end
      local left = 0
      for _ in pairs(t) do left = left + 1 end
      return left, n
    ]])
    assert.equal("[4]", results [[
      local t, n = { 1, 2, 3, a = 1 }, 0
      local key = next(t)
      while key do t[key] = nil n = n + 1 key = next(t, key) end
      return n
    ]])
    fails("return (next({}, 1))", "invalid key to 'next'")
    fails("for _ in pairs() do end", "table expected")
    assert.equal("[null]", results "return (next {})")
  end)

  it("gives random numbers that are the same in every run", function()
    local source = "return math.random(), math.random(100)"
    assert.equal(results(source), results(source))
  end)

  it("keeps the guest's print, up to a limit", function()
    local outcome = run([[print("a", 1, nil, true) print(("x"):rep(100))]], { output = 20 })
    assert.equal("a\t1\tnil\ttrue\nxxxxxxx", outcome.printed)
    assert.equal(94, outcome.printed_lost)
  end)
end)

describe("a guest's errors", function()
  it("carry file, line and the guest's frames", function()
    local outcome = fails("local function f()\n  error 'boom'\nend\nf()", "^guest.lua:2: boom$")
    assert.equal(2, outcome.line)
    assert.equal("ERUN", outcome.code)
    assert.matches("guest.lua:2: in function 'f'\n\tguest.lua:4: in main chunk$", outcome.traceback)
  end)

  it("may be any value", function()
    assert.equal("told", fails("error { message = 'told' }", "told").message)
    fails("error(setmetatable({}, { __tostring = function() return 'shown' end }))", "^shown$")
    fails("error(nil)", "nil")
    fails("error(function() end)", "function: ")
    fails("error(null)", "null")
    fails("error(setmetatable({}, { __tostring = function() error 'again' end }))", "without a message")
    fails("error(setmetatable({}, { __tostring = function() return 1 end }))", "1")
    fails("error(setmetatable({}, { __tostring = function() return {} end }))", "without a message")
  end)

  it("are caught with the words that Lua has for them", function()
    assert.equal('[false,"attempt to call a nil value",false,"attempt to call a table value",true,1,2,false,"plain"]',
      results [[
        local a, b = pcall(nil)
        local c, d = pcall({})
        local callable = setmetatable({}, { __call = function(_, x, y) return x, y end, __metatable = false })
        local e, f, g = pcall(callable, 1, 2)
        return a, b, c, d, e, f, g, pcall(error, "plain")
      ]])
    fails("pcall()", "guest.lua:1: bad argument #1 to 'pcall'")
  end)

  it("unwind before xpcall's handler runs", function()
    assert.equal('[false,"guest.lua:1: x!",true,1,2]', results [[
      local a, b = xpcall(function() error "x" end, function(m) return m .. "!" end)
      local c, d, e = xpcall(function(...) return ... end, print, 1, 2)
      return a, b, c, d, e
    ]])
    assert.equal('[false,"error in error handling"]',
      results [[return xpcall(function() error "x" end, function() error "y" end)]])
  end)

  it("of results that cannot be returned are the program's", function()
    fails("return print", "results cannot be returned: .*function")
    fails("local t = {} t.t = t return t", "contains itself")
    fails([[return "\255"]], "UTF%-8")
  end)
end)

describe("the guest's string library", function()
  it("matches as Lua's own does", function()
    local texts = { "", "a", "hello world", "key = value", "  pad  ", "THE (quick) fox", "a.b-c%d", "x=1, y=22",
      "[[x]]", "\0a\0", "aaa", "abcabc" }
    local patterns = { "", ".", "a*", "a+", "a-", "a?", "^a", "a$", "^a*$", "%a+", "%s*", "[%w_]+", "[^%s]+", "%b()",
      "%f[%w]%w+", "(%w+)%s*=%s*(%w+)", "()", "(a)()", "(.)%1", "[a-c]+", "[]]", "[^]]", "%.", "%-", "(%a+)(%d*)", "x-",
      "%z", "((a)b)", ".-b", "[%a%-]+", "$", "^", "a.-c$" }
    local source = { "local out = {}\n", [[
      local function show(...)
        local list = { n = select("#", ...), ... }
        for i = 1, list.n do list[i] = tostring(list[i]) end
        out[#out + 1] = table.concat(list, ",", 1, list.n)
      end
      local function try(t, p)
        show(t:find(p)) show(t:match(p)) show(t:gsub(p, "<%0>")) show(t:find(p, 2)) show(t:find(p, -2))
        show(t:gsub(p, "%1%%", 2)) show(t:find(p, 1, true)) show(t:gsub(p, { a = "A" }))
        show(t:gsub(p, function(m, n) if m ~= "b" then return n or m end end))
        for a, b in t:gmatch(p) do show(a, b) end
      end
    ]] }
    for _, text in ipairs(texts) do
      for _, pattern in ipairs(patterns) do source[#source + 1] = ("try(%q, %q)\n"):format(text, pattern) end
    end
    source[#source + 1] = [[return (table.concat(out, "\n"):gsub("%z", "0"))]]
    local text = table.concat(source)
    assert.equal(assert(omni.json.encode(assert(loadstring(text))())), assert(results(text)):match "^%[(.*)%]$")
  end)

  it("refuses what Lua's own refuses", function()
    for _, case in ipairs {
      { [[("x"):find "["]], "missing ']'" }, { [[("x"):find "%"]], "ends with '%%'" },
      { [[("x"):find "(x"]], "unfinished" },
      { [[("x"):find "(x))"]], "invalid pattern capture" }, { [[("x"):find "%1"]], "invalid capture" },
      { [[("x"):find "%b"]], "unbalanced" }, { [[("x"):find "%f"]], "missing '%['" },
      { [[("x"):gsub("x", "%2")]], "invalid capture" },
      { [[("x"):gsub("x", function() return {} end)]], "invalid repl" },
      { [[("x"):gsub("x")]], "string/function/table expected" }, { [[("x"):rep()]], "number expected" },
      { [[("x"):find(("("):rep(40))]], "too many captures" },
      { [[("a"):rep(300):find(("a?"):rep(300))]], "too complex" },
    } do
      fails("local x = " .. case[1], case[2])
    end
  end)

  it("formats as Lua's own does, without addresses", function()
    local source = [[
      return string.format("%5d|%-5d|%05.1f|%x|%X|%o|%c|%e|%g|%i|%u|%q|%s|%5s|%-5s|%.2s|%%|%a",
        42, 42, 3.14159, 255, 255, 8, 65, 12345.678, 0.1, 7, 8, 'a "b"\n\0c', nil, "ab", "ab", "abc", 1)
    ]]
    assert.equal(omni.json.encode(loadstring(source)()), results(source):match "^%[(.*)%]$")
    fails([[("%y"):format(1)]], "invalid option")
    fails([[("%d"):format("x")]], "number expected, got string")
    fails([[("%d"):format()]], "no value")
    fails([[("%123d"):format(1)]], "too long")
    assert.equal('["[x]"]',
      results [[return ("[%s]"):format(setmetatable({}, { __tostring = function() return "x" end }))]])
  end)

  it("sorts and concatenates as Lua's own does", function()
    assert.equal('["1 2 3 5 8","8 5 3 2 1"]', results [[
      local t = { 5, 3, 8, 1, 2 }
      table.sort(t)
      local up = table.concat(t, " ")
      table.sort(t, function(a, b) return a > b end)
      return up, table.concat(t, " ")
    ]])
    fails("table.sort { 1, 'x' }", "attempt to compare")
    fails("table.sort({ 3, 2, 1 }, 1)", "function expected")
    fails("table.concat { 1, {}, 2 }", "invalid value %(table%) at index 2")
    assert.equal("[true]", results "table.sort({ 3, 1, 2 }, function() return true end) return true")
    assert.equal('["0 1 9 2 3 4",4,null,2,"0 1 9 3"]', results [[
      local t = { 1, 2, 3 }
      table.insert(t, 4) table.insert(t, 1, 0) table.insert(t, 3, 9)
      local all = table.concat(t, " ")
      return all, table.remove(t), table.remove(t, 9), table.remove(t, 4), table.concat(t, " ")
    ]])
  end)
end)

describe("a guest's coroutines", function()
  it("work", function()
    assert.equal('[1,2,"end","dead",false,"cannot resume dead coroutine"]', results [[
      local co = coroutine.create(function(a) local b = coroutine.yield(a) coroutine.yield(b) return "end" end)
      local _, a = coroutine.resume(co, 1)
      local _, b = coroutine.resume(co, 2)
      local _, c = coroutine.resume(co)
      return a, b, c, coroutine.status(co), coroutine.resume(co)
    ]])
    assert.equal("[6]", results [[
      local sum = 0
      for i in coroutine.wrap(function() for i = 1, 3 do pcall(coroutine.yield, i) end end) do sum = sum + i end
      return sum
    ]])
    assert.equal('[true,1,"x"]', results [[
      local f = coroutine.wrap(function() return xpcall(function() return coroutine.yield "x" end, print) end)
      local x = f()
      local ok, one = f(1)
      return ok, one, x
    ]])
  end)

  it("cannot resume themselves or who resumed them", function()
    assert.equal('[false,"cannot resume non-suspended coroutine"]', results [[
      local co
      co = coroutine.create(function() return coroutine.resume(co) end)
      return select(2, coroutine.resume(co))
    ]])
    assert.equal('[false,"cannot resume non-suspended coroutine"]', results [[
      local outer
      outer = coroutine.create(function()
        return select(2, coroutine.resume(coroutine.create(function() return coroutine.resume(outer) end)))
      end)
      return select(2, coroutine.resume(outer))
    ]])
    fails("coroutine.resume(1)", "coroutine expected")
    fails("coroutine.wrap(1)", "function expected")
    fails("local f = coroutine.wrap(function() error 'in' end) f()", "guest.lua:1: .*in")
    fails("coroutine.yield(1)", "attempt to yield")
  end)
end)

describe("a guest that does not end", function()
  local DEADLINE = "^EDEADLINE$"
  for name, source in pairs {
    ["loops"] = "while true do end",
    ["loops with goto"] = "::again:: goto again",
    ["repeats"] = "repeat until false",
    ["counts"] = "for i = 1, math.huge do end",
    ["catches its end"] = "while true do pcall(function() while true do end end) end",
    ["catches its end with xpcall"] = [[
      local function loop() while true do end end
      while true do xpcall(loop, loop) end]],
    ["loops in a handler"] = "xpcall(error, function() while true do end end)",
    ["loops in coroutines"] = "while true do coroutine.wrap(function() while true do end end)() end",
    ["resumes for ever"] = "while true do coroutine.resume(coroutine.create(function() while true do end end)) end",
    ["yields for ever"] = [[
      local f = coroutine.wrap(function() while true do coroutine.yield() end end)
      while true do f() end]],
    ["loops in __index"] = "local t = setmetatable({}, { __index = function() while true do end end }) return t.x",
    ["loops in __tostring"] = "tostring(setmetatable({}, { __tostring = function() while true do end end }))",
    ["loops in its error's __tostring"] = [[
      error(setmetatable({}, { __tostring = function() while true do end end }))]],
    ["loops in a gsub callback"] = "('x'):gsub('.', function() while true do end end)",
    ["loops in a comparator"] = "table.sort({ 1, 2, 3 }, function() while true do end end)",
    ["loops in an iterator"] = "for _ in function() while true do end end do end",
    ["calls itself at the end"] = "local function f() return f() end f()",
    ["matches for ever"] = [[return ("a"):rep(28):find(("a?"):rep(28) .. ("a"):rep(28) .. "b")]],
    ["matches .- for ever"] = [[return ("a"):rep(100000):find(".-.-.-.-b")]],
    ["matches in gsub"] = [[return ("a"):rep(100000):gsub("a*a*a*a*b", "")]],
    ["matches in gmatch"] = [[for _ in ("a"):rep(100000):gmatch("a-a-a-b") do end]],
    ["balances for ever"] = [[while true do (("("):rep(100000)):find("%b()") end]],
    ["goes back for ever"] = [[return ("a"):rep(30000):find("(.-)%1%1b")]],
    ["searches long strings"] = [[local s = ("a"):rep(2 ^ 23) while true do s:find("b", 1, true) end]],
    ["compares long strings"] = [[
      local a, b = ("a"):rep(2 ^ 23) .. "a", ("a"):rep(2 ^ 23) .. "b" while a < b do end]],
    ["turns long strings around"] = [[local s = ("a"):rep(2 ^ 23) while true do s:reverse() end]],
    ["shouts"] = [[local s = ("a"):rep(2 ^ 22) while true do s:upper() end]],
    ["concatenates long strings"] = [[
      local s, i = ("a"):rep(2 ^ 22), 0
      while true do i = i + 1 local _ = s .. i end]],
    ["formats long strings"] = [[local s = ("a"):rep(2 ^ 20) while true do ("%q"):format(s) end]],
    ["sorts"] = [[local t = {} for i = 1, 200000 do t[i] = (i * 7919) % 200003 end while true do table.sort(t) end]],
    ["walks"] = [[local t = {} for i = 1, 20000 do t["k" .. i] = i end while true do for _ in pairs(t) do end end]],
    ["asks for the first key"] = [[local t = {} for i = 1, 20000 do t["k" .. i] = i end while true do next(t) end]],
    ["inserts in front"] = [[local t = {} for i = 1, 500000 do t[i] = i end while true do table.insert(t, 1, 0) end]],
    ["prints"] = [[while true do print(("x"):rep(1000)) end]],
    ["inserts where there is nothing"] = "while true do pcall(table.insert, { 1 }, -2 ^ 31, 1) end",
    ["removes where there is nothing"] = "while true do table.remove({ 1 }, -2 ^ 31) end",
    ["converts"] = [[local s = (" "):rep(2 ^ 22) .. "1" while true do tonumber(s) end]],
    ["takes bytes"] = [[local s = ("x"):rep(7000) while true do s:byte(1, -1) end]],
    ["unpacks"] = [[local t = {} for i = 1, 7000 do t[i] = i end while true do select("#", unpack(t)) end]],
    ["hides in builtins"] = [[while pcall(pcall, pcall, pcall, error) do end]],
    ["makes garbage"] = [[while true do local t = {} for i = 1, 100 do t[i] = { i } end end]],
    ["makes strings"] = [[local i = 0 while true do i = i + 1 local _ = "k" .. i end]],
    ["makes coroutines"] = [[while true do coroutine.wrap(function() coroutine.yield() end)() end]],
    ["encodes"] = [[while true do pcall(function() local t = {} for i = 1, 60 do t = { t, t } end return t end) end]],
  } do
    it(name .. ", is ended", function() ended(source, DEADLINE) end)
  end

  it("is ended by its budget of instructions", function()
    ended("while true do pcall(function() while true do end end) end", "^EINSTRUCTIONS$", { instructions = 1e5 })
    ended([[return ("a"):rep(28):find(("a?"):rep(28) .. ("a"):rep(28) .. "b")]], "^EINSTRUCTIONS$",
      { instructions = 1e5 })
  end)

  it("tells where it was", function()
    local outcome = ended("local x = 1\n\nwhile true do\n  x = x + 1 end", "^EDEADLINE$")
    assert.matches("^guest.lua:[34]: EDEADLINE: the program ran longer than 0.15 seconds$", outcome.message)
    assert.is_true(outcome.line == 3 or outcome.line == 4)
  end)

  it("ends when it is cancelled, and when its handle goes", function()
    local guest = native.start { source = "while true do pcall(function() while true do end end) end" }
    guest:cancel()
    while not guest:_ended() do guest:_wait() end
    assert.equal("ECANCELED", guest:_result().code)
    native.start { source = "while true do end" }
    collectgarbage()
    collectgarbage()
  end)
end)

describe("a guest that wants too much memory", function()
  local MEMORY = "^EMEMORY$"
  for name, source in pairs {
    ["doubles a string"] = "local s = 'x' while true do s = s .. s end",
    ["doubles a string and catches"] = "local s = 'x' while true do pcall(function() s = s .. s end) end",
    ["fills a table"] = "local t = {} while true do t[#t + 1] = 'item' .. #t end",
    ["fills a table and catches"] = [[
      local t = {}
      while true do pcall(function() while true do t[#t + 1] = {} end end) end]],
    ["fills keys"] = "local t, i = {}, 0 while true do i = i + 1 t['k' .. i] = i end",
    ["nests tables"] = "local t = {} while true do t = { t } end",
    ["keeps coroutines"] = [[local t = {} while true do t[#t + 1] = coroutine.create(print) end]],
    ["keeps functions"] = [[local t = {} while true do t[#t + 1] = function() return t end end]],
    ["captures"] = [[local t = {} while true do t[#t + 1] = (("x"):rep(10000) .. #t):gsub("x+", "%0%0") end]],
  } do
    it(name .. ", is ended", function()
      ended(source, MEMORY, { memory = 8 * 2 ^ 20, seconds = 5, deadline = omni.now() + 5 })
    end)
  end

  it("is told where", function()
    local outcome = ended("local t = {}\nwhile true do\n t[#t + 1] = {}\nend", MEMORY, { memory = 2 ^ 20 })
    assert.equal(3, outcome.line)
    assert.is_true(outcome.memory_peak < 2 ^ 20 + 2 ^ 17)
  end)

  it("is refused single strings and blocks that are too large", function()
    for _, source in ipairs {
      [[return ("x"):rep(1e9)]], [[return ("x"):rep(2 ^ 24 + 1)]], [[return ("x"):rep(1e6, ("y"):rep(1000))]],
[[local t = {} for i = 1, 40 do t[i] = ("x"):rep(2 ^ 19) end
        return table.concat(t)]],
      [[local s = ("x"):rep(2 ^ 20) return ("x"):rep(20):gsub("x", s)]],
      [[local t = {} for i = 1, 20 do t[i] = ("x"):rep(2 ^ 20) end return ("%s"):rep(20):format(unpack(t))]],
    } do fails(source, "longer than 16777216 bytes") end
  end)

  it("lives with half of its limit, whatever garbage it makes", function()
    assert.equal("[true]", results([[
      local keep = {}
      for i = 1, 40000 do keep[i] = { i } end
      for i = 1, 300000 do local _ = { i, tostring(i) } end
      local s = ("x"):rep(500000)
      for i = 1, 200 do local _ = s .. i end
      return #keep == 40000
    ]], { memory = 12 * 2 ^ 20, seconds = 60, deadline = omni.now() + 60 }))
  end)

  it("gets no state where the limit is too small for one", function()
    for _, memory in ipairs { 0, 100, 5000, 20000 } do
      assert.equal("EMEMORY", run("return 1", { memory = memory }).code)
    end
  end)
end)

describe("a guest that recurses", function()
  for name, source in pairs {
    ["in Lua"] = "local function f() return 1 + f() end f()",
    ["through pcall"] = "local function g() return 1 + select(2, pcall(g)) end g()",
    ["through gsub"] = "local function f() return (('x'):gsub('.', f)) end f()",
    ["through gsub's table"] = [[
      local t t = setmetatable({}, { __index = function() return (("x"):gsub(".", t)) end })
      local _ = ("x"):gsub(".", t)]],
    ["through sort"] = "local function f() table.sort({ 1, 2 }, f) end f()",
    ["through sort's __lt"] = [[
      local mt = {} local function two() return { setmetatable({}, mt), setmetatable({}, mt) } end
      mt.__lt = function() table.sort(two()) return true end table.sort(two())]],
    ["through tostring"] = [[
      local t t = setmetatable({}, { __tostring = function() return tostring(t) end }) local _ = tostring(t)]],
    ["through print"] = "local t t = setmetatable({}, { __tostring = function() print(t) return '' end }) print(t)",
    ["through format"] = [[
      local t t = setmetatable({}, { __tostring = function() return ('%s'):format(t) end }) local _ = tostring(t)]],
    ["through wrap"] = "local function f() return coroutine.wrap(f)() end f()",
    ["through resume"] = [[
      local function f()
        local ok, why = coroutine.resume(coroutine.create(f))
        if not ok then error(why, 0) end
      end
      f()]],
    ["through __index"] = [[
      local t t = setmetatable({}, { __index = function(_, k) return t[k .. 'x'] end }) return t.x]],
    ["through a chain of __index"] = [[
      local t = {} for i = 1, 1000 do t = setmetatable({}, { __index = t }) end return t.x]],
    ["through __call"] = "local t t = setmetatable({}, { __call = function() return 1 + t() end }) t()",
    ["through __concat"] = [[
      local t t = setmetatable({}, { __concat = function() return t .. 'x' end }) return t .. 'x']],
    ["through __eq"] = [[
      local mt = {} local a, b = setmetatable({}, mt), setmetatable({}, mt) mt.__eq = function() return not (a == b) end
      return a == b]],
    ["through its own error"] = [[
      local mt = {} mt.__tostring = function(e) error(setmetatable({}, mt)) end error(setmetatable({}, mt))]],
    ["through pcall as __call"] = [[
      local t = setmetatable({}, { __call = pcall })
      local function last(...) return (select(select("#", ...), ...)) end
      error(last(pcall(t, 1)))]],
    ["through xpcall as __call"] = [[
      local t = setmetatable({}, { __call = xpcall })
      local function last(...) return (select(select("#", ...), ...)) end
      error(last(xpcall(t, t)))]],
    ["through xpcall"] = "local function f() return 1 + select(2, xpcall(f, print)) end f()",
    ["through handlers"] = "local function f() return 1 + select(2, xpcall(error, f)) end f()",
  } do
    it(name .. ", gets an error and not more", function()
      local outcome = run(source, { seconds = 2, deadline = omni.now() + 2 })
      assert.is_false(outcome.ok)
      local said = outcome.message
      assert.is_truthy(said:find "overflow" or said:find "loop" or said:find "arithmetic"
        or said:find "without a message" or said:find "error handling", said)
    end)
  end

  it("can do so to a depth that programs need", function()
    assert.equal("[20,20,100,5000]", results [[
      local function g(n)
        if n == 0 then return "" end
        return (("x"):gsub(".", function() return g(n - 1) .. "y" end))
      end
      local function s(n) if n > 0 then table.sort({ 1, 2 }, function() s(n - 1) return false end) end return n end
      local function w(n) if n == 0 then return 0 end return coroutine.wrap(function() return w(n - 1) + 1 end)() end
      local function r(n) if n == 0 then return 0 end return 1 + r(n - 1) end
      return #g(20), s(20), w(100), r(5000)
    ]])
  end)
end)

describe("many guests", function()
  it("run side by side and leave nothing", function()
    local guests = {}
    for i = 1, 24 do
      local seconds = i % 3 == 1 and 10 or 0.3
      guests[i] = native.start {
        source = ({ "return 1", "local t = {} while true do t[#t + 1] = {} end", [0] = "while true do end" })[i % 3],
        memory = 4 * 2 ^ 20, seconds = seconds, deadline = omni.now() + seconds,
      }
    end
    local codes = {}
    for _, guest in ipairs(guests) do
      while not guest:_ended() do guest:_wait() end
      local outcome = guest:_result()
      assert.equal(0, outcome.memory_left)
      local code = outcome.ok and "OK" or outcome.code
      codes[code] = (codes[code] or 0) + 1
    end
    assert.equal(8, codes.OK)
    assert.equal(24, codes.OK + (codes.EDEADLINE or 0) + (codes.EMEMORY or 0))
  end)
end)
