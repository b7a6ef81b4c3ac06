local rewrite = require "omni.plm.rewrite"
local reference = require "spec.fuzz.reference"

local EARLY = { get = true, look = true, ["db.get"] = true, ["kv.read.one"] = true }
local NAMES = { "get", "look", "db.get", "kv.read.one", "put", "now" }
local manifest = { names = function() return NAMES end, early = function(_, name) return EARLY[name] or false end }

-- The text without what stands before its first statement, the same in all.
local PREFIX = "local P,R=...;"
local function rewritten(source)
  local text, info = rewrite(source, manifest)
  assert(info.changed, ("%s: %s"):format(source, info.reason))
  local from, to = text:find(PREFIX, 1, true)
  return text:sub(1, from - 1) .. text:sub(to + 1), info
end

local function reasons(source)
  local _, info = rewrite(source, manifest)
  local out = {}
  for index, call in ipairs(info.calls) do out[index] = call.hoisted and ("at %d"):format(call.at) or call.why end
  return out, info
end

local function unchanged(source)
  local text, info = rewrite(source, manifest)
  assert.equal(source, text)
  assert.is_false(info.changed)
  assert.is_string(info.reason)
  assert.same({}, info.sites)
  assert.same({}, info.plan)
end

local function newlines(text) return select(2, text:gsub("\n", "")) end

-- Both texts, run by a host in plain Lua.
local function same_runs(source)
  local program = { text = source, seed = 50, manifest = {} }
  for index, name in ipairs(NAMES) do program.manifest[index] = { name = name, early = EARLY[name] or false } end
  local text, info = rewrite(source, manifest)
  local off, on = reference.run(program, source), reference.run(program, text, info)
  assert.is_nil(on.defect)
  for _, key in ipairs { "ok", "results", "logical", "printed" } do assert.equal(off[key], on[key]) end
  return on, info
end

describe("the pass", function()
  describe("starts together what is certain to happen", function()
    local shapes = {
      { "locals, one after the other", "local a = get(x) local b = get(y)",
        "P(1);local a = get(R(1,x)) local b = get(R(2,y))" },
      { "several locals of one statement", "local a, b = get(1), look(2)",
        "P(1);local a, b = get(R(1,1)), look(R(2,2))" },
      { "globals, fields and indices", "a = get(1) t.x = get(2) t[i] = get(3)",
        "P(1);a = get(R(1,1)) t.x = get(R(2,2)) t[i] = get(R(3,3))" },
      { "arguments of an unknown call", "f(get(a), get(b))", "P(1);f(get(R(1,a)), get(R(2,b)))" },
      { "arguments of a method", "o:f(get(a), get(b))", "P(1);o:f(get(R(1,a)), get(R(2,b)))" },
      { "arguments of a tool that writes", "put(get(a), get(b))", "P(1);put(get(R(1,a)), get(R(2,b)))" },
      { "a constructor", "v = {x = get(a), y = get(b)}", "P(1);v = {x = get(R(1,a)), y = get(R(2,b))}" },
      { "both sides of an operator", "return get(a) .. get(b)", "P(1);return get(R(1,a)) .. get(R(2,b))" },
      { "a comparison", "local same = get(a) == get(b)", "P(1);local same = get(R(1,a)) == get(R(2,b))" },
      { "dotted tools", "local a = db.get(1) local b = kv.read.one(2)",
        "P(1);local a = db.get(R(1,1)) local b = kv.read.one(R(2,2))" },
      { "calls that open with a table or a string", "local a = get{k = 1} local b = get'x' local c = get \"y\"",
        "P(1);local a = get(R(1,{k = 1})) local b = get(R(2,'x')) local c = get (R(3,\"y\"))" },
      { "calls without arguments", "local a = get() local b = look( )",
        "P(1);local a = get(R(1)) local b = look(R(2 ))" },
      { "statements that are calls", "get(1) get(2)", "P(1);get(R(1,1)) get(R(2,2))" },
      { "results that are used at once", "local a = get(1).name local b = get(2)[1]",
        "P(1);local a = get(R(1,1)).name local b = get(R(2,2))[1]" },
      { "results cut to one", "local a, b = (get(1)), get(2)", "P(1);local a, b = (get(R(1,1))), get(R(2,2))" },
      { "the first condition of an if", "if get(1) == get(2) then f() end",
        "P(1);if get(R(1,1)) == get(R(2,2)) then f() end" },
      { "what a loop begins with", "local n = get(1) for i = n, get(2) do f() end",
        "P(1);local n = get(R(1,1)) for i = n, get(R(2,2)) do f() end" },
      { "what an iteration is over", "local n = get(1) for k in f(get(2)) do end",
        "P(1);local n = get(R(1,1)) for k in f(get(R(2,2))) do end" },
      { "a read before a conditional one", "local a = get(1) or get(2) local b = get(3)",
        "P(1);local a = get(R(1,1)) or get(2) local b = get(R(2,3))" },
      { "bodies of functions", "local function f(k) local a = get(k) return a, get(1) end",
        "local function f(k) P(1,k);local a = get(R(1,k)) return a, get(R(2,1)) end" },
      { "bodies of loops", "for i = 1, 9 do local a = get(i) local b = look(i) end",
        "for i = 1, 9 do P(1,i);local a = get(R(1,i)) local b = look(R(2,i)) end" },
      { "bodies of branches", "if x then get(1) get(2) else look(1) look(2) end",
        "if x then P(1);get(R(1,1)) get(R(2,2)) else P(2);look(R(3,1)) look(R(4,2)) end" },
      { "bodies of repeat", "repeat local a = get(1) local b = get(2) until a == b",
        "repeat P(1);local a = get(R(1,1)) local b = get(R(2,2)) until a == b" },
      { "past locals, literals, closures, constructors and operators",
        "local a = get(1) local n, f, t = 1, function() return put(1) end, {2} local m = a.x + 1 local b = get(x)",
        "P(1);local a = get(R(1,1)) local n, f, t = 1, function() return put(1) end, {2} local m = a.x + 1 "
          .. "local b = get(R(2,x))" },
    }
    for _, shape in ipairs(shapes) do
      it(shape[1], function()
        assert.equal(shape[3], (rewritten(shape[2])))
        same_runs("x, y, a, b, i, t, o, f = 1, 2, 'k1', 'k2', 3, {}, { f = print }, type " .. shape[2])
      end)
    end

    it("each call of a diamond at its own earliest boundary", function()
      local source = "local a = get(1) local b = get(a,1) local c = get(a,2) local d = get(b,c) local e = get(3)"
      assert.equal("P(1);local a = get(R(1,1)) P(2,a);local b = get(R(2,a,1)) local c = get(R(3,a,2)) "
        .. "local d = get(b,c) local e = get(R(4,3))", (rewritten(source)))
    end)

    it("reads after the last write to what they need", function()
      for _, write in ipairs {
        { "local n = 5", "n", true }, { "g = 1", "g" }, { "t.x = 1", "t.x" }, { "t[k] = 1", "t.x" },
        { "_G.g = 1", "g" }, { "t.x = 1", "t" }, { "t.x.y = 1", "{ k = t }" }, { "local function f() end", "f", true },
      } do
        local source, text = "get(1) %s get(%s) get(%s, 2)", "get(1) %s P(1%s);get(R(1,%s)) get(R(2,%s, 2))"
        local value = write[3] and "," .. write[2] or ""
        source = source:format(write[1], write[2], write[2])
        assert.equal(text:format(write[1], value, write[2], write[2]), (rewritten(source)))
      end
      for _, write in ipairs {
        { "t.y = 1", "'a' .. t.x" }, { "h = 1", "g" }, { "t.x = 1", "'a' .. n" }, { "local m = 5", "n" },
      } do
        local source, text = "get(1) %s get(%s)", "P(1);get(R(1,1)) %s get(R(2,%s))"
        assert.equal(text:format(unpack(write)), (rewritten(source:format(unpack(write)))))
      end
    end)

    it("calls after a break of their statement's group in the next group", function()
      assert.equal("local a, b = f(), get(1) P(1);get(R(1,2)) get(R(2,3))",
        (rewritten "local a, b = f(), get(1) get(2) get(3)"))
    end)
  end)

  describe("evaluates arguments early where that is silent", function()
    local function code(source)
      local _, info = rewritten(source)
      return info.plan[1]
    end

    it("encodes each form as postfix code over the locals it reads", function()
      assert.equal("S1,1,4:g1:xS2,0,0:", code "get(x) get()")
      assert.equal('S1,3,12:s3:a\nbn2:-3zS2,2,2:tf', code 'get("a\\nb", -3, nil) get(true, false)')
      assert.equal("S1,1,23:g6:inputss4:useris2:idiS2,1,9:g1:tn1:1i", code "get(inputs.user.id) get(t[1])")
      assert.equal("S1,1,11:s2:u:g2:id.S2,1,19:n1:2g1:x*n1:1+n1:3-", code 'get("u:" .. id) get(2 * x + 1 - 3)')
      assert.equal("S1,1,19:{n1:1n1:7=s1:kg1:x=S2,1,10:{n1:2n1:3=", code "get{7, k = x} get({[2] = 3})")
      local text, info = rewrite("local a, b = f(), g() get(a, b, a) get(b)", manifest)
      assert.is_truthy(text:find("P(1,a,b);", 1, true))
      assert.equal("S1,3,9:v1:v2:v1:S2,1,3:v2:", info.plan[1])
    end)

    it("leaves calls with any other argument where they are", function()
      for _, argument in ipairs {
        "f()", "o:m()", "#t", "a or b", "a and b", "not a", "a == b", "a / b", "a % b", "a ^ b", "-a", "function() end",
        "t[k]", "f().x", "{[k] = 1}", "{1, [1] = 2}", "1LL", "2i", "('x').len", "{} .. 1", "get(f())",
      } do
        local source, text = "get(9) get(8) get(%s)", "P(1);get(R(1,9)) get(R(2,8)) get(%s)"
        assert.equal(text:format(argument), (rewritten(source:format(argument))))
      end
      assert.equal("P(1);get(R(1,9)) get(get(R(2,8)))", (rewritten "get(9) get(get(8))"))
      assert.equal("local function f(...) P(1);get(R(1,1)) get(R(2,2)) get(...) end",
        (rewritten "local function f(...) get(1) get(2) get(...) end"))
    end)

    it("declines a value that would run code, without running it", function()
      local on = same_runs [[
local log = {}
local odd = setmetatable({}, { __index = function() print "index" end, __concat = function() print "concat" end })
local a, b, c = get(1), get(odd.x), get("u" .. odd)
return a, b, c]]
      assert.equal("index\nconcat", on.printed)
    end)
  end)

  describe("never hoists", function()
    local nevers = {
      { "a single read", "local a = get(1)" },
      { "a chain of reads", "local a = get(1) local b = get(a) local c = get(b)" },
      { "a read nested in another", "local a = get(look(1))" },
      { "across an unknown call", "get(1) f() get(2)" },
      { "across a method call", "get(1) o:f() get(2)" },
      { "across a tool that writes", "get(1) put(1) get(2)" },
      { "across a tool that reads a clock", "get(1) now() get(2)" },
      { "across if", "get(1) if x then y = 1 end get(2)" },
      { "out of a branch", "get(1) if x then get(2) end" },
      { "across while", "get(1) while x do x = nil end get(2)" },
      { "across for", "get(1) for i = 1, 2 do x = i end get(2)" },
      { "across an iteration", "get(1) for k in next, t do x = k end get(2)" },
      { "across repeat", "get(1) repeat x = 1 until x get(2)" },
      { "across do", "get(1) do x = 1 end get(2)" },
      { "across a label", "get(1) ::again:: get(2)" },
      { "across goto", "do get(1) goto done end ::done:: get(2)" },
      { "across break", "while x do get(1) break end get(2)" },
      { "across return", "if x then get(1) return end get(2)" },
      { "the right operand of and", "local a = get(1) and get(2)" },
      { "the right operand of or", "local a = x or (get(1) .. get(2))" },
      { "the condition of while", "while get(1) == get(2) do x = 1 end" },
      { "the condition of repeat", "repeat x = 1 until get(1) == get(2)" },
      { "the condition of elseif", "if x then y = 1 elseif get(1) == get(2) then y = 2 end" },
      { "out of a closure", "get(1) local f = function() return get(2) end" },
      { "out of the body of a pcall", "get(1) pcall(function() get(2) end)" },
      { "pcall of a tool", "pcall(get, 1) pcall(get, 2)" },
      { "methods that have a tool's name", "o:get(1) o:get(2)" },
      { "fields that have a tool's name", "o.get(1) o.get(2)" },
      { "a tool that a local hides", "local get = f get(1) get(2)" },
      { "a tool that a parameter hides", "local function f(get) return get(1), get(2) end" },
      { "a tool that a loop hides", "for get = 1, 2 do get(1) get(2) end" },
      { "a table of tools that a local hides", "local db = {} db.get(1) db.get(2)" },
      { "a tool whose name is assigned later", "get(1) get(2) get = nil" },
      { "a tool that is defined anew", "get(1) get(2) function get() end" },
      { "a tool whose table is assigned", "db.get(1) db.get(2) db = {}" },
      { "a tool whose field is assigned", "db.get(1) db.get(2) function db.get() end" },
      { "a tool that is assigned through _G", "get(1) get(2) _G.get = 1" },
      { "tools that are not early", "put(1) put(2) now() now()" },
    }
    for _, never in ipairs(nevers) do
      it(never[1], function()
        unchanged(never[2])
        for _, why in ipairs(reasons(never[2])) do assert.is_nil(why:find "^at ") end
      end)
    end
  end)

  describe("keeps out of the traps of Lua:", function()
    it("adds no newline and leaves each token on its line", function()
      local source = "-- é\nlocal a = get(\n  1,\n  2\n)\nlocal b = get{\n  k = 1 }\nlocal c = get( -- here\n 3)\n"
      local text, info = rewrite(source, manifest)
      assert.is_true(info.changed)
      assert.equal(newlines(source), newlines(text))
      local a, b = {}, {}
      for line in (source .. "\n"):gmatch "(.-)\n" do a[#a + 1] = line end
      for line in (text .. "\n"):gmatch "(.-)\n" do b[#b + 1] = line end
      for index, line in ipairs(a) do -- what is left when the insertions are taken out
        local rest = b[index]:gsub("local P,R=...;", ""):gsub("P%(1%);", ""):gsub("%(R%(%d,{", "{"):gsub("R%(%d,", "")
        assert.equal(line:gsub("[%)%s]", ""), rest:gsub("[%)%s]", ""))
      end
      assert.is_truthy(select(2, pcall(load(text), function() end, function() end)):find ":2:") -- get is nil, in line 2
    end)

    it("delivers errors of tools and of arguments on their lines", function()
      for _, source in ipairs {
        "local a = get(1)\nlocal b = get('fail')\nlocal c = get(2)",
        "local a = get(\n'fail'\n)\nlocal c = get(2)",
        "local a, b = get(1),\n  get{\n'fail' }\nlocal c = get(2)",
        "local a = get(1)\nlocal b = get(nope.x)",
        "local a = get(1)\nlocal b = get('u' ..\n {})\nget(2)",
        "rawset(_G, 'look', nil)\nlocal a = get(1)\nlocal b = look(2)",
        "rawset(_G, 'look', print)\nlocal a = get(1)\nlocal b = look(2)",
        "rawset(db, 'get', nil)\nlocal a = get(1)\nlocal b = db.get(2)",
        "local a, b = get(1),\nget(print)",
      } do
        local on, info = same_runs(source)
        assert.is_true(info.changed)
        if on.ok then assert.is_truthy(source:find "print") end
      end
    end)

    it("keeps the names in messages", function()
      local on = same_runs "rawset(_G, 'look', nil)\nlocal a = get(1)\nlocal b = look(2)"
      assert.is_truthy(on.results:find("guest:3: attempt to call global 'look'", 1, true))
    end)

    it("leaves calls alone whose parenthesis is not on the line of their name", function()
      for _, call in ipairs {
        "db\n.get(2)", "db.\nget(2)", "get\n{2}", "get[[2]]", "get[[\n2]]", "get'a\\\nb'", "get --[[c]] (2)",
        "db[\n'get'](2)",
      } do
        local source = "get(0) get(1) " .. call
        assert.equal("P(1);get(R(1,0)) get(R(2,1)) " .. call, (rewritten(source)))
        assert.is_string(reasons(source)[3])
      end
    end)

    it("goto past a group", function()
      local on, info = same_runs [[
for i = 1, 3 do
  if i == 2 then goto continue end
  get(i) look(i)
  x = get(i) y = get(i, 2)
  ::continue::
  z = i
end]]
      assert.is_true(on.ok)
      assert.equal(4, #info.sites)
    end)

    it("a function that is full of locals", function()
      local function source(count)
        local lines = { "local function f()" }
        for index = 1, count do lines[#lines + 1] = ("local a%d = get(%d)"):format(index, index) end
        lines[#lines + 1] = ("return a1, a%d end return f()"):format(count)
        return table.concat(lines, "\n")
      end
      assert.is_true(load(source(200)) ~= nil and load(source(201)) == nil)
      assert.equal(200, #select(2, same_runs(source(200))).sites)
      unchanged(source(201))
    end)

    it("a main function that is full of locals: falls back to the source", function()
      local lines = {}
      for index = 1, 200 do lines[#lines + 1] = ("local a%d = get(%d)"):format(index, index) end
      local source = table.concat(lines, "\n")
      local why, info = reasons(source)
      unchanged(source)
      assert.equal("the text does not compile", info.reason)
      assert.equal("the text does not compile", why[7])
    end)

    it("a statement that begins with a parenthesis", function()
      local text = rewritten "local a = 1 ;(f or g)(get(1), get(2))"
      assert.equal("x = f() ;P(1);(f or g)(get(R(1,1)), get(R(2,2)))", (rewritten "x = f() ;(f or g)(get(1), get(2))"))
      assert.equal("P(1);local a = 1 ;(f or g)(get(R(1,1)), get(R(2,2)))", text)
      same_runs "local f = print local a = 1 ;(f or g)(get(1), get(2)) ;(f or g)(get(3), get(4))"
    end)

    it("tail calls stay tail calls", function()
      local text = rewritten "local a = get(1) return get(2)"
      assert.equal("P(1);local a = get(R(1,1)) return get(R(2,2))", text)
      assert.is_true(same_runs [[
local function loop(n) if n == 0 then return get(1) end local a = get(n % 5) return loop(n - 1, get(2), get(3)) end
return loop(1000)]].ok)
    end)

    it("helpers have names that the source does not contain", function()
      local text = rewrite("local P, P1, R = 1 get(P) get(R)", manifest)
      assert.equal("local P2,R1=...;local P, P1, R = 1 P2(1,P,R);get(R1(1,P)) get(R1(2,R))", text)
      assert.is_true(same_runs("P, R = 1, 2 get(P) get(R) return P, R, _G.P1, rawget(_G, 'R1')").ok)
    end)

    it("names that a source uses by the thousand", function()
      local names = { "local x = P, R get(1) get(2)" }
      for number = 1, 5000 do names[#names + 1] = "P" .. number end
      local text = rewrite(table.concat(names, " x = "), manifest)
      assert.is_truthy(text:find("local P5001,R1=...;", 1, true))
    end)

    it("the main function's varargs would show the helpers: no rewrite", function()
      unchanged "local a, b = ... get(1) get(2)"
      assert.equal("the main function reads ...", reasons("get(1) get(2) return ...")[1])
      rewritten "local f = function(...) return ... end get(1) get(2)"
    end)

    it("offsets in sources that are not ASCII, valid UTF-8 or not", function()
      for _, text in ipairs { "é", "日本", "\255\254", "\195" } do
        local line = ("-- %s\nlocal s = f('%s') "):format(text, text)
        assert.equal(line .. ("P(1);get(R(1,'%s')) get(R(2,1))"):format(text),
          (rewritten(line .. ("get('%s') get(1)"):format(text))))
      end
      assert.equal("\239\187\191P(1);get(R(1,1)) get(R(2,2))", (rewritten "\239\187\191get(1) get(2)"))
      local shebang = "#!/usr/bin/env omnihost\n"
      assert.equal(shebang .. "P(1);get(R(1,1)) get(R(2,2))", (rewritten(shebang .. "get(1) get(2)")))
    end)

    it("line ends of every kind", function()
      assert.equal("x()\r\nP(1);get(R(1,1))\r\nget(R(2,2))\r\n", (rewritten "x()\r\nget(1)\r\nget(2)\r\n"))
    end)

    it("text that only one of the two grammars knows is not rewritten and not an error", function()
      for _, source in ipairs {
        "x += 1 get(1) get(2)", "local a <const> = 1 get(1) get(2)", "get(1 // 2) get(2)", "get(1 & 2) get(2)",
        "goto = 1 get(1) get(2)", "local é = get(1) get(2)", "get(1) get(2", "get(1) get(2) end", "get(1) get(2) '",
        "get(1) get(2) return 1 return 2", "", "\27LJ get(1) get(2)", "get(1) get(2) [[", "f\n(get(1), get(2))",
      } do
        unchanged(source)
      end
    end)

    it("nesting without end", function()
      unchanged("get(1) get(2) x = " .. ("("):rep(5000) .. "1" .. (")"):rep(5000))
      unchanged("get(1) get(2) x = " .. ("{"):rep(5000) .. ("}"):rep(5000))
      local text = rewrite("get(1) get(2) x = 1" .. ("+1"):rep(30000), manifest)
      assert.is_string(text)
      unchanged("get(1) get(2) " .. ("x = 1 "):rep(11000)) -- longer than the pass looks at
    end)

    it("more calls than a run keeps pending, more locals than a call takes", function()
      local lines, names, values = {}, {}, {}
      for index = 1, 150 do lines[index] = ("get(%d)"):format(index) end
      local text, info = rewritten(table.concat(lines, " "))
      assert.equal(150, #info.sites)
      assert.is_truthy(text:find("get(R(1,1)) P(2);get(R(2,2))", 1, true)) -- the 65th, when the first has its result
      assert.is_truthy(text:find("P(87);get(R(87,87)) get(R(88,88))", 1, true)) -- the 150th
      assert.equal(64, select(2, info.plan[1]:gsub("S", "")))
      rewritten("f(" .. table.concat(lines, ", ", 1, 100) .. ")")
      for index = 1, 150 do names[index], values[index] = "a" .. index, tostring(index) end
      lines = { ("local %s = %s"):format(table.concat(names, ","), table.concat(values, ",")) }
      for index = 1, 150, 5 do lines[#lines + 1] = ("get(%s)"):format(table.concat(names, ",", index, index + 4)) end
      info = select(2, same_runs(table.concat(lines, " ")))
      assert.equal(30, #info.sites)
      assert.equal(5, #info.plan)
    end)
  end)

  it("tells of every call where it starts or why it stays", function()
    assert.same({ "nothing overlaps with it" }, (reasons "get(1)")) -- where the text was not even parsed
    local why, info = reasons [[
local a = get(1)
local b = look(a.id)
local c = get(x / 2)
local d = db.get(x)
if x and get(3) then
  put(get(4), 5)
end
local e, f = print(1), get(6)
pcall(get, 7)
while get(8) do local put = 1 put(9) end]]
    assert.same({
      "at 1", "nothing overlaps with it", "argument 1 needs an operation that could run code or raise", "at 1",
      "on the right of and/or: not certain to run", "nothing overlaps with it", "the tool is not early",
      "follows an unknown call in the same statement", "called by pcall",
      "the condition of a loop: runs again and again", "a local hides the tool",
    }, why)
    assert.same({ { first = 1, last = 5, number = 1, sites = { 1, 2 }, calls = { 1, 4 } } }, info.groups)
    assert.same({ tool = "db.get", path = { "db", "get" }, line = 4, group = 1, last = 2 }, info.sites[2])
    assert.equal(11, info.calls[1].column)
  end)

  it("sees at a glance what is kept apart, and never too much", function()
    local quick = "no two calls of early tools can overlap"
    for _, source in ipairs {
      "get(1)", "x.get = 1 if x then get(1) end", "do get(1) end local function f() end get(2)",
      "if get(1) then get(2) else look(3) end", "while x do get(1) end get(2)",
      "for i = 1, 2 do get(i) end get(3)", "repeat get(1) until get(2)", "get(1) while get(2) do x = 1 end",
      "get(1) ::again:: get(2)",
    } do
      assert.equal(quick, select(2, rewrite(source, manifest)).reason)
    end
    for _, source in ipairs {
      "get(1) local f = function() if x then return end end get(2)", "local a = get(1) return get(2)",
      "get(1) if get(2) then x = 1 end", "get(1) for i = 1, get(2) do x = i end", "get(1) x = function() end get(2)",
    } do
      assert.is_true(select(2, rewrite(source, manifest)).changed)
    end
  end)

  it("numbers the sites of a group in the order of evaluation, with the last of the group", function()
    local _, info = rewritten "get(1) get(2) f() look(1) local g = function() get(7) get(8) end look(2, look(3))"
    local seen = {}
    for index, site in ipairs(info.sites) do seen[index] = ("%s %d %d"):format(site.tool, site.group, site.last) end
    assert.same({ "get 1 2", "get 1 2", "get 2 4", "get 2 4", "look 3 6", "look 3 6" }, seen)
  end)
end)
