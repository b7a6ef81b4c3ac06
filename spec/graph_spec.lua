local graph = require "omni.graph"
local omni = require "omni"
local run = require "spec.support.run"
local support = require "spec.support.pipeline"

local data_of = support.data_of
local failure_of = support.failure_of
local inline = support.inline
local with_pipeline = support.with_pipeline

local PASS = { module = "spec.fixtures.pass" }

local function declared(declare)
  local p = omni.pipeline "p"
  declare(p)
  return p
end

-- All problems of a declaration as one text, without the folder of this file.
local function problems(declare)
  local made, found = declared(declare):topology()
  assert.is_nil(made)
  return table.concat(found, "\n")
end

local function stages(p, ...)
  for _, name in ipairs { ... } do p:stage(name)(PASS) end
end

local function edges_of(declare)
  local made, found = declared(declare):topology()
  assert(made, table.concat(found, "\n"))
  local shown = {}
  for i, edge in ipairs(made.edges) do shown[i] = graph.show(edge) end
  return shown, made
end

describe("an edge's text", function()
  it("names stages and, where wanted, ports", function()
    assert.same({ from = "a", from_port = "output", to = "b-1", to_port = "input" }, graph.parse "a->b-1")
    assert.same({ from = "a", from_port = "text", to = "b", to_port = "audio" }, graph.parse " a.text  ->  b.audio ")
    for _, wrong in ipairs { "", "a", "a -> ", "-> b", "a - b", "a. -> b", "a.x.y -> b", "1 -> b", "a -> b -> c" } do
      assert.is_nil(graph.parse(wrong), wrong)
    end
  end)
end)

describe("a graph's declaration", function()
  it("has the same order whatever the script's", function()
    local expected = { "a -> b", "a.x -> c", "b -> d.left", "c -> d.right", "host -> a", "d -> host" }
    local function edge(p, text) p:edge(text) end
    local texts = { "c -> d.right", "a.x -> c", "b -> d.left", "a -> b" }
    for _ = 1, 4 do
      table.insert(texts, 1, table.remove(texts))
      local shown, made = edges_of(function(p)
        stages(p, "d", "b", "c", "a")
        for _, text in ipairs(texts) do edge(p, text) end
      end)
      assert.same(expected, shown)
      assert.same({ "a", "b", "c", "d" }, made.order)
    end
  end)

  it("orders stages behind those that they read from", function()
    local _, made = edges_of(function(p)
      stages(p, "a", "b", "c")
      p:connect("c", "b"):connect("b", "a")
    end)
    assert.same({ "c", "b", "a" }, made.order)
  end)

  it("may have several sources and outlets, and an outlet beside a reader", function()
    assert.same({ "a -> b", "a.raw -> host", "host -> a", "b -> host" }, edges_of(function(p)
      stages(p, "a", "b")
      p:connect("a", "b"):edge "a.raw -> host"
    end))
    assert.same({ "a -> c", "b -> c", "host -> a", "host -> b", "c -> host" }, edges_of(function(p)
      stages(p, "a", "b", "c")
      p:connect("a", "c"):connect("b", "c")
    end))
  end)

  it("keeps each edge's window and budget", function()
    local _, made = edges_of(function(p)
      stages(p, "a", "b", "c")
      p:edge("a -> b", { window = 3 }):edge("a -> c", { budget = 99 })
    end)
    assert.same({ 3, graph.BUDGET, graph.WINDOW, 99 },
      { made.edges[1].window, made.edges[1].budget, made.edges[2].window, made.edges[2].budget })
  end)

  it("tells all problems at once, each with its line and the nearest name", function()
    local line = debug.getinfo(1, "l").currentline
    local text = problems(function(p)
      p:stage "think" { module = "spec.fixtures.pass", outputs = { "text", "mel" } }
      stages(p, "judge", "lonely")
      p:edge "think.txt -> judge"
      p:edge "think.text -> jugde"
      p:edge "think.text - judge"
      p:edge("think.text -> judge", { windw = 2 })
      p:edge("think.text -> judge", {})
      p:edge "judge -> judge"
      p:edge "host.x -> think"
      p:edge "host -> host"
    end)
    for offset, expected in pairs {
      [4] = 'edge "think.txt -> judge": stage "think" has no port "txt" among its outputs (did you mean "text"?)',
      [5] = 'edge "think.text -> jugde": there is no stage "jugde" (did you mean "judge"?)',
      [6] = 'edge "think.text - judge": write it as "stage -> stage" or "stage.port -> stage.port"',
      [7] = 'edge "think.text -> judge": unknown key "windw" (did you mean "window"?)',
      [8] = 'edge "think.text -> judge": is declared twice (first at ',
      [9] = "the edges form a cycle: judge -> judge",
      [10] = 'edge "host.x -> think": the host has no port "x"',
      [11] = 'edge "host -> host": it passes no stage',
    } do
      local full = ("graph_spec.lua:%d: %s"):format(line + offset, expected)
      assert.truthy(text:find(full, 1, true), full .. "\nis not in\n" .. text)
    end
  end)

  it("refuses cycles and names them, not what is behind them", function()
    local text = problems(function(p)
      stages(p, "a", "b", "c", "behind", "first", "x", "y")
      p:connect("first", "y"):connect("first", "b"):connect("c", "behind")
      p:connect("a", "b"):connect("b", "c"):connect("c", "a"):connect("x", "y"):connect("y", "x")
    end)
    local _, n = text:gsub("form a cycle", "")
    assert.equal(2, n)
    assert.truthy(text:find("cycle: a -> b -> c -> a", 1, true), text)
    assert.truthy(text:find("cycle: x -> y -> x", 1, true), text)
  end)

  it("refuses stages that nothing can reach, and ports that lead nowhere", function()
    local text = problems(function(p)
      stages(p, "a", "b", "lonely", "pair1", "pair2")
      p:stage "c" { module = "spec.fixtures.pass", inputs = { "used", "unused" }, outputs = { "nowhere" } }
      p:connect("a", "b"):edge("b -> c.used"):connect("pair1", "pair2")
    end)
    for _, name in ipairs { "lonely", "pair1", "pair2" } do
      assert.truthy(text:find(('graph_spec.lua:%%d+: stage "%s" is unreachable'):format(name)), text)
    end
    assert.truthy(text:find('stage "c": no edge uses its port "unused" (of its inputs)', 1, true), text)
    assert.truthy(text:find('stage "c": no edge uses its port "nowhere" (of its outputs)', 1, true), text)
    assert.same({ "a -> host", "b -> host", "host -> a", "host -> b" }, (function()
      local shown = edges_of(function(p)
        stages(p, "a", "b")
        p:edge("host -> a"):edge "host -> b"
      end)
      table.sort(shown)
      return shown
    end)())
  end)

  it("refuses ports that cannot be named", function()
    local text = problems(function(p)
      p:stage "a" { module = "spec.fixtures.pass", outputs = { "b-c" } }
      p:stage "b" { module = "spec.fixtures.pass", inputs = { "x", "x" } }
    end)
    assert.truthy(text:find('stage "a": key "outputs" has no valid port name in "b-c"', 1, true), text)
    assert.truthy(text:find('stage "b": key "inputs" names the port "x" twice', 1, true), text)
  end)
end)

-- A diamond: words go left, in capitals, and right, reversed; what `join` does with them is the spec's.
local function diamond(join, options)
  return function(p)
    p:stage "split" { module = "spec.fixtures.words" }
    p:stage "left" (inline "for s in input do emit(s:upper()) end")
    p:stage "right" (inline "for s in input do emit(s:reverse()) end")
    p:stage "join" (inline(join))
    p:edge("split -> left", options):edge("split -> right", options)
    p:edge("left -> join.left", options):edge("right -> join.right", options)
  end
end

describe("a graph", function()
  it("sends a plain emit to every edge of the default port and joins by port", function()
    with_pipeline(diamond "for l in input.left do emit(l .. '/' .. input.right()) end", function(app)
      assert.same({ "AB/ba", "CD/dc", "E/e" }, data_of(app:submit { data = "ab cd e" }))
      for i = 1, 20 do
        local word = "x" .. i
        assert.same({ word:upper() .. "/" .. word:reverse() }, data_of(app:submit { data = word }))
      end
    end)
  end)

  it("routes by port, and ends ports that a request never used", function()
    with_pipeline(function(p)
      p:stage "route" (inline "for n in input do for i = 1, n do emit(i % 2 == 0 and 'even' or 'odd', i) end end")
      p:stage "odd" (inline "for n in input do emit(n * 10) end emit 'odd ended'")
      p:stage "even" (inline "for n in input do emit(-n) end emit 'even ended'")
      p:edge("route.odd -> odd"):edge "route.even -> even"
    end, function(app)
      local request = app:submit { data = 1 }
      local seen, finished = {}, {}
      for chunk in function() return request:next() end do
        if chunk.finished then finished[chunk.stage] = chunk.index end
        if chunk.data ~= nil then table.insert(seen, chunk.stage .. ":" .. tostring(chunk.data)) end
      end
      table.sort(seen)
      assert.same({ "even:even ended", "odd:10", "odd:odd ended" }, seen)
      assert.same({ even = 1, odd = 2 }, finished)
    end)
  end)

  it("merges the edges of one port, each in its order", function()
    with_pipeline(function(p)
      p:stage "route" { module = "spec.fixtures.pass" }
      p:stage "a" (inline "for n in input do for i = 1, n do emit { 'a', i } end end")
      p:stage "b" (inline "for n in input do for i = 1, n do emit { 'b', i } end end")
      p:stage "join" (inline [[
        local last, n = { a = 0, b = 0 }, 0
        for item in input do
          local from, i = item[1], item[2]
          assert(i == last[from] + 1, "out of order")
          last[from], n = i, n + 1
        end
        emit(("%d %d %d"):format(last.a, last.b, n))]])
      p:connect("route", "a"):connect("route", "b"):connect("a", "join", { window = 1 }):connect("b", "join")
    end, function(app)
      for _ = 1, 3 do assert.same({ "200 200 400" }, data_of(app:submit { data = 200 })) end
    end)
  end)

  it("finds plain edges of a join by the stages that they come from", function()
    with_pipeline(function(p)
      stages(p, "a", "b")
      p:stage "join" (inline "emit { input.b(), input.a() }")
      p:stage "tag" (inline "for s in input do emit(s .. '!') end")
      p:connect("a", "tag"):connect("tag", "join"):connect("b", "join"):connect("a", "join")
    end, function(app)
      assert.same({ { "x", "x" } }, data_of(app:submit { data = "x" }))
    end)
  end)

  it("keeps the outputs of one stage's ports apart", function()
    with_pipeline(function(p)
      p:stage "a" (inline "for s in input do emit('loud', s:upper()) emit('quiet', s:lower()) end")
      p:edge("a.loud -> host"):edge "a.quiet -> host"
    end, function(app)
      local got = {}
      for chunk in app:submit({ data = "Ab" }):chunks() do got[chunk.port] = { chunk.data, chunk.index } end
      assert.same({ loud = { "AB", 0 }, quiet = { "ab", 0 } }, got)
    end)
  end)

  it("names ports that are not there, with the nearest", function()
    with_pipeline(function(p)
      p:stage "a" (inline "for s in input do assert(loadstring(s))(input, emit) end")
      stages(p, "b", "c")
      p:stage "d" (inline "if request.id == 'whole' then input() end")
      p:edge("a.text -> b"):edge("a.audio -> c"):edge("b -> d.left"):edge "c -> d.right"
    end, function(app)
      local function fails(expected, code, id)
        local err = failure_of(app:submit { id = id, data = "local input, emit = ... " .. code })
        assert.truthy(err:find(expected, 1, true), err)
      end
      fails('this stage has no output port "txt" (did you mean "text"?)', "emit('txt', 1)")
      fails("no edge at its default port: name one of audio, text", "emit(1)")
      fails("not 3 values", "emit(1, 2, 3)")
      fails("the port's name must be a string, not a number", "emit(1, 2)")
      fails('no input port "inptu" (did you mean "input"?)', "input.inptu()")
      fails("this stage has several input ports (left, right): read one, as input.left", "", "whole")
    end)
  end)

  it("fails as a whole when one branch does, names it, and goes on with others", function()
    with_pipeline(function(p)
      stages(p, "a", "c")
      p:stage "b" { module = "spec.fixtures.trouble" }
      p:stage "join" (inline "for x in input do emit(x) end")
      p:connect("a", "b"):connect("a", "c"):connect("b", "join"):connect("c", "join")
    end, function(app)
      assert.truthy(failure_of(app:submit { data = "error" }):find('stage "b" failed: ', 1, true))
      assert.same({ "ok", "ok" }, data_of(app:submit { data = "ok" }))
    end)
  end)

  it("leaves nothing of aborted requests", function()
    with_pipeline(diamond("for l in input.left do emit(l .. input.right()) end", { window = 2 }), function(app)
      for _ = 1, 3 do
        local request = app:submit { data = ("word "):rep(500) }
        support.next_data(request)
        assert.equal("aborted", request:abort().outcome)
      end
      assert.same({ "Aa" }, data_of(app:submit { data = "a" }))
      for _, name in ipairs(support.shared_names(app:stats().namespace)) do
        assert.falsy(name:find("_", 1, true), name)
      end
    end)
  end)
end)

describe("omnihost graph", function()
  local SCRIPT = [[
local p = require("omni").pipeline "the"
p:stage "a" { module = "spec.fixtures.pass" }
p:stage "end" { module = "omni.stages.filter", config = { command = { "tr", "a<b", "\"#" } } }
p:edge("a.text -> end", { window = 3 })
return p
]]

  local function draw(...)
    local path = os.tmpname()
    local file = assert(io.open(path, "w"))
    file:write(SCRIPT)
    file:close()
    local arguments = { ... }
    arguments[#arguments + 1] = path
    local p = run.host("graph", unpack(arguments))
    os.remove(path)
    return p
  end

  it("draws DOT", function()
    local p = draw()
    assert.same(0, p.code, p.stderr)
    for _, line in ipairs {
      'digraph "the" {', '  "a" [label="a\\nspec.fixtures.pass"];', '  "end" [label="end\\ntr a<b \\"#"];',
      '  "a" -> "end" [label="text to input, window 3"];', '  "host:in" -> "a";', '  "end" -> "host:out";', "}",
    } do
      assert.truthy(("\n" .. p.stdout):find("\n" .. line .. "\n", 1, true), line .. "\nis not in\n" .. p.stdout)
    end
  end)

  it("draws Mermaid", function()
    assert.equal([[
flowchart LR
  requests(["requests"])
  results(["results"])
  s1["a: spec.fixtures.pass"]
  s2["end: tr a#60;b #34;#35;"]
  s1 -->|"text to input, window 3"| s2
  requests --> s1
  s2 --> results
]], draw("--format", "mermaid").stdout)
  end)

  it("refuses other formats, and scripts without a pipeline", function()
    local p = draw("--format", "mermaidd")
    assert.equal(2, p.code)
    assert.truthy(p.stderr:find('(did you mean "mermaid"?)', 1, true))
    assert.equal(1, run.host("graph", "spec/fixtures/pass.lua").code)
  end)
end)
