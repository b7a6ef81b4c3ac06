-- Guest programs with tools: the same report with PLM off and on.

local json = require "omni.json"
local omni = require "omni"
local plm = require "omni.plm"
local texts = require "omni.plm.report"

local TOOLS = "spec.fixtures.tools.run_tools"

describe("a runner", function()
  local manifest, runner, open

  local function make(items, limits)
    local m = plm.manifest(items)
    open[#open + 1] = m
    return plm.runner { manifest = m, limits = limits }, m
  end

  before_each(function()
    open = {}
    runner, manifest = make { TOOLS }
  end)
  after_each(function()
    for _, m in ipairs(open) do m:close() end
  end)

  -- Both reports, which must tell the same.
  local function both(source, options, with)
    local off, on = assert((with or runner):run(source, options)), assert((with or runner):run_plm(source, options))
    assert.same({}, texts.differences(off, on))
    assert.equal(0, on.stats.memory_left)
    assert.equal(0, on.stats.pending + on.stats.active)
    return off, on
  end

  it("reports results, print, calls and counters", function()
    local off, on = both [[
      local a = get "a"
      local b = get "b"
      print(a, b)
      return a, nil, b, { list = array(), nothing = null }, nil
    ]]
    for _, report in ipairs { off, on } do
      assert.is_true(report.ok)
      assert.is_nil(report.error)
      assert.equal(5, report.results.n)
      assert.equal("v:b", report.results[3])
      assert.is_nil(report.results[2])
      assert.is_true(json.is_array(report.results[4].list))
      assert.equal(json.null, report.results[4].nothing)
      assert.equal("v:a\tv:b\n", report.printed)
      assert.same({ { tool = "get", args = '["a"]' }, { tool = "get", args = '["b"]' } }, report.logical)
      assert.equal(2, report.stats.calls)
      assert.is_true(report.stats.wall > 0 and report.stats.instructions >= 0)
    end
    assert.equal(0, off.stats.prepared)
    assert.equal(2, on.stats.adopted)
    assert.equal("prepare", on.events[1].op)
    assert.equal("resolve", on.events[3].op)
    assert.equal("adopted", on.events[3].outcome)
    assert.equal(2, on.events[4].line)
  end)

  it("lets reads overlap", function()
    local source = "local a = get(1, 0.05) local b = get(2, 0.05) local c = get(3, 0.05) return a .. b .. c"
    runner:run_plm(source) -- the workers are started
    local off, on = both(source)
    local busy, span = texts.overlap(on)
    assert.is_true(off.stats.wall >= 0.15)
    assert.is_true(busy > 2 * span)
  end)

  it("hands inputs over, and each delivery is a value of its own", function()
    local _, on = both([[
      local a = db.get(inputs.key)
      local b = db.get(inputs.key)
      a.list[1] = "changed"
      return b.list[1], a.key, inputs.list[2], #inputs.list, inputs.none == nil
    ]], { inputs = { key = "k", list = { 1, 2 } } })
    assert.same({ n = 5, 1, "k", 2, 2, true }, on.results)
    assert.same({ n = 1, 0 }, select(2, both "local n = 0 for _ in pairs(inputs) do n = n + 1 end return n").results)
  end)

  it("delivers as many values as the tool gave", function()
    local _, on = both [[
      local n0 = select("#", echo())
      local n1 = select("#", echo(nil))
      local n3 = select("#", echo(nil, 2, nil))
      return n0, n1, n3, (select(2, echo(1, 2, 3)))
    ]]
    assert.same({ n = 4, 0, 1, 3, 2 }, on.results)
  end)

  it("carries values exactly, both ways", function()
    local _, on = both [[
      local x = echo { 9007199254740992, 0.1, -0.5, "ä\n", true, { a = array() }, null, 1e300 }
      return x[1] == 9007199254740992, x[2] == 0.1, x[4] == "ä\n", x[7] == null, getmetatable(x[6].a), x[8] == 1e300
    ]]
    assert.same({ n = 6, true, true, true, true, "array", true }, on.results)
  end)

  it("raises a tool's error at the line of its call", function()
    local off, on = both 'local a = get "a"\nlocal b = get "missing"\nlocal c = get "c"\nreturn a, b, c'
    for _, report in ipairs { off, on } do
      assert.is_false(report.ok)
      assert.equal("guest.lua:2: ENOENT: there is no missing", report.error.message)
      assert.equal("ENOENT", report.error.code)
      assert.equal(2, report.error.line)
      assert.equal("get", report.error.tool)
      assert.matches("guest.lua:2: in main chunk", report.error.traceback)
      assert.equal(2, #report.logical)
    end
    assert.equal(1, on.stats.cancelled)
  end)

  it("names a chunk as it is told", function()
    local report = runner:run("error 'x'", { chunkname = "agent/7.lua" })
    assert.equal("agent/7.lua:1: x", report.error.message)
  end)

  it("lets a program catch a tool's error and go on", function()
    local _, on = both [[
      local ok, why = pcall(get, "missing")
      local ok2, why2 = pcall(function() local a = get "a" local b = get "missing" return a .. b end)
      return ok, why, ok2, why2, get "b"
    ]]
    local plain = "ENOENT: there is no missing"
    assert.same({ n = 5, false, plain, false, "guest.lua:2: " .. plain, "v:b" }, on.results)
  end)

  it("does not let pcall in a loop fill the table of futures", function()
    local _, on = both [[
      local n = 0
      for i = 1, 200 do
        pcall(function() local a = get(i) local b = get "missing" local c = get(i) return a, b, c end)
        pcall(function() local a = get(i) local x = nil + 1 local c = get(i) return a, x, c end)
        n = n + 1
      end
      return n
    ]]
    assert.equal(200, on.results[1])
  end)

  it("tells when arguments cannot be sent, at the call", function()
    local _, on = both "local a = 1\nlocal b = get(print)"
    assert.equal("EJSON", on.error.code)
    assert.equal(2, on.error.line)
    assert.matches("get: its arguments cannot be sent: EJSON: $[1]: a function has no form in JSON", on.error.message,
      1, true)
  end)

  it("never delivers what a write made old", function()
    local store = { k = "old" }
    local with = make { {
      read = { allow_early_read = true, call = function(_, key) return store[key] end },
      write = { call = function(_, key, value) store[key] = value end },
    } }
    local source = [[
      local a = read "k" local b = read "x"
      write("k", "new")
      local c = read "k" local d = read "y"
      return a, c
    ]]
    store.k = "old"
    local off = with:run(source)
    store.k = "old"
    local on = with:run_plm(source)
    assert.same({}, texts.differences(off, on))
    assert.same({ n = 2, "old", "new" }, on.results)
  end)

  it("calls a function that the program put in a tool's place", function()
    local _, on = both [[
      local a = get "a"
      local keep = get
      rawset(_G, "get", function(k) return "mine:" .. k end)
      local b = get "b"
      local c = keep "c"
      return a, b, c
    ]]
    assert.same({ n = 3, "v:a", "mine:b", "v:c" }, on.results)
    assert.equal(2, #on.logical)
  end)

  it("runs tools inside of coroutines, callbacks and comparators", function()
    local _, on = both [[
      local out = {}
      local co = coroutine.wrap(function() for i = 1, 2 do coroutine.yield(get(i) .. get(i + 1)) end end)
      out[1], out[2] = co(), co()
      out[3] = ("ab"):gsub(".", function(c) return get(c) end)
      table.sort(out, function(x, y) return echo(x) < echo(y) end)
      return table.concat(out, " ")
    ]]
    assert.equal("v:1v:2 v:2v:3 v:av:b", on.results[1])
  end)

  it("gives each limit its code, whatever the program catches", function()
    local cases = {
      { "while true do pcall(get, 1) end", { calls = 20 }, "ECALLS" },
      { "while true do pcall(function() while true do end end) end", { seconds = 0.1 }, "EDEADLINE" },
      { "pcall(sleep, 60) return 1", { seconds = 0.1 }, "EDEADLINE" },
      { "while true do end", { instructions = 1e5 }, "EINSTRUCTIONS" },
      { "local t = {} while true do pcall(function() for _ = 1, 9 do t[#t + 1] = {} end end) end", { memory = "4M" },
        "EMEMORY" },
      { "x = = 1", {}, "ESYNTAX" },
    }
    for _, case in ipairs(cases) do
      local with = make({ TOOLS }, case[2])
      for _, how in ipairs { "run", "run_plm" } do
        local began = omni.now()
        local report = with[how](with, case[1])
        assert.is_false(report.ok)
        assert.equal(case[3], report.error.code)
        assert.is_true(omni.now() - began < 5)
        if case[3] ~= "EMEMORY" then assert.equal(1, report.error.line) end
      end
    end
  end)

  it("is cancelled while it computes and while it waits for a tool", function()
    for _, source in ipairs { "while true do end", "sleep(60)", "while true do pcall(sleep, 60) end" } do
      local program = assert(runner:start(source, nil, true))
      omni.spawn(function() program:cancel() end)
      local report = program:wait()
      assert.equal("ECANCELED", report.error.code)
    end
  end)

  it("runs many programs at once", function()
    local reports = {}
    local tasks = {}
    for i = 1, 12 do
      tasks[i] = omni.spawn(function()
        reports[i] = runner:run_plm(("local a = get(%d, 0.01) local b = get(%d, 0.01) return a .. b"):format(i, -i))
      end)
    end
    for i = 1, 12 do
      tasks[i]:join()
      assert.equal(("v:%dv:%d"):format(i, -i), reports[i].results[1])
    end
  end)

  it("refuses unknown keys and bad values at the user's line", function()
    local line = debug.getinfo(1, "l").currentline + 1
    local _, unknown = pcall(function() plm.runner { manifest = manifest, limit = {} } end)
    assert.matches(("plm_runner_spec.lua:%d: "):format(line)
      .. 'plm.runner: unknown key "limit" (did you mean "limits"?)', unknown, 1, true)
    for _, case in ipairs {
      { { memory = "64X" }, 'must be bytes, as a number or as "64M"' }, { { seconds = 0 }, "above 0" },
      { { call = 1 }, 'did you mean "calls"' }, { { calls = 0 }, "at least 1" },
    } do
      local ok, why = pcall(plm.runner, { manifest = manifest, limits = case[1] })
      assert.is_false(ok)
      assert.matches(case[2], why, 1, true)
    end
    assert.matches("must be made by plm.manifest", select(2, pcall(plm.runner, { manifest = {} })), 1, true)
    assert.matches("argument 1 (source) must be a string", select(2, pcall(runner.run, runner, 1)), 1, true)
    assert.matches("inputs cannot be sent", select(2, pcall(runner.run, runner, "", { inputs = print })), 1, true)
    assert.matches('unknown key "input"', select(2, pcall(runner.run, runner, "", { input = 1 })), 1, true)
  end)
end)

describe("the stage of programs", function()
  it("runs each chunk as a guest program", function()
    local pipeline = omni.pipeline "agents"
    pipeline:stage "agent" { module = "omni.stages.program", config = { tools = { TOOLS }, plm = true } }
    local app = assert(pipeline:start {})
    local request = assert(app:submit { id = "1", data = { source = "return get(inputs), get(2)", inputs = "x" } })
    local answers = {}
    while true do
      local chunk = request:next()
      if not chunk then break end
      if chunk.data ~= nil then answers[#answers + 1] = chunk.data end
    end
    app:stop()
    assert.equal(1, #answers)
    assert.is_true(answers[1].ok)
    assert.same({ "v:x", "v:2" }, { unpack(answers[1].results) })
  end)

  it("says what is wrong with its configuration before a process starts", function()
    local stage = require "omni.stages.program"
    assert.same({}, stage.problems { tools = { TOOLS }, limits = { seconds = 1 } })
    assert.matches("unknown key \"tool\"", stage.problems { tool = {} }[1], 1, true)
    assert.matches("cannot be loaded", stage.problems { tools = { "no.such.module" } }[1], 1, true)
    assert.matches('did you mean "seconds"', stage.problems { tools = { TOOLS }, limits = { second = 1 } }[1], 1, true)
  end)
end)
