local check = require "omni.check"
local omni = require "omni"

local SPEC = {
  name = { type = "string" },
  replicas = { type = "integer", default = 1, check = function(v) return v >= 1, "must be 1 or more" end },
  cpus = { type = { "integer", "string", "nil" } },
  anything = {},
}

local function problems(value) return (check.problems(value, SPEC, 'stage "talker"')) end

describe("a checked table", function()
  it("comes back as a copy with its defaults", function()
    local given = { name = "a" }
    assert.same({ name = "a", replicas = 1 }, check.table(given, SPEC, "x"))
    assert.is_nil(given.replicas)
  end)

  it("may leave out what is optional", function()
    assert.same({}, problems { name = "a", cpus = "0-1", anything = false })
    assert.same({}, problems { name = "a", cpus = 3 })
  end)

  it("names an unknown key and the nearest valid one", function()
    assert.same({ 'stage "talker": unknown key "replica" (did you mean "replicas"?)' },
      problems { name = "a", replica = 2 })
  end)

  it("lists the valid keys where none is near", function()
    assert.same({ 'stage "talker": unknown key "zzzzzz" (valid: anything, cpus, name, replicas)' },
      problems { name = "a", zzzzzz = 2 })
    assert.same({ 'stage "talker": unknown key "[1]" (valid: anything, cpus, name, replicas)' },
      problems { "x", name = "a" })
  end)

  it("tells all problems at once, with what was there", function()
    assert.same({
      'stage "talker": unknown key "nam" (did you mean "name"?)',
      'stage "talker": key "cpus" must be an integer or a string, not a table',
      'stage "talker": key "name" is missing: a string is needed',
      'stage "talker": key "replicas" must be 1 or more',
    }, problems { nam = "a", replicas = 0, cpus = {} })
    assert.same({ 'stage "talker": a table is needed, not nil' }, problems(nil))
  end)

  it("raises at the line of the script that called", function()
    local line = debug.getinfo(1, "l").currentline + 1
    local ok, err = pcall(function() check.table({ name = 1 }, SPEC, "omni.thing") end)
    assert.is_false(ok)
    local expected = ('check_spec.lua:%d: omni.thing: key "name" must be a string, not number 1'):format(line)
    assert.truthy(err:find(expected, 1, true), err)
  end)

  it("knows lists of strings, names and maps", function()
    local kinds = { l = { type = "strings" }, n = { type = "name" }, m = { type = "map" }, p = { type = "positive" } }
    local function good(l, n, m, p) return #check.problems({ l = l, n = n, m = m, p = p }, kinds, "x") == 0 end
    assert.is_true(good({ "a", "b" }, "a-b_1", { A = "1" }, 0.1))
    assert.is_false(good({ "a", 1 }, "a", {}, 1))
    assert.is_false(good({ [2] = "a" }, "a", {}, 1))
    assert.is_false(good({}, "1a", {}, 1))
    assert.is_false(good({}, "a", { A = 1 }, 1))
    assert.is_false(good({}, "a", {}, 0))
    assert.is_false(good({}, "a", {}, 0 / 0))
  end)
end)

describe("options", function()
  it("are all optional and come back as they are", function()
    local given = { name = "a" }
    assert.equal(given, check.options(given, SPEC, "f"))
    assert.same({}, check.options(nil, SPEC, "f"))
  end)

  it("are refused for wrong keys and values", function()
    assert.has_error(function() check.options({ nme = 1 }, SPEC, "f") end)
    assert.has_error(function() check.options({ replicas = 0 }, SPEC, "f") end)
    assert.has_error(function() check.options("x", SPEC, "f") end)
  end)
end)

describe("the nearest name", function()
  it("forgives typing errors and names cut short, and does not guess wildly", function()
    local names = { "window", "budget", "start_timeout" }
    assert.equal("window", check.nearest("windw", names))
    assert.equal("window", check.nearest("Window", names))
    assert.equal("start_timeout", check.nearest("start", names))
    assert.is_nil(check.nearest("encoding", names))
    assert.is_nil(check.nearest("x", { "a", "b" }))
  end)
end)

describe("a pipeline's declaration", function()
  local function topology(declare)
    local p = omni.pipeline "p"
    declare(p)
    local made, found = p:topology()
    return made, table.concat(found, "\n")
  end

  local PASS = { module = "spec.fixtures.pass" }

  it("becomes plain data: stages sorted, edges numbered, the host at both ends", function()
    local made = topology(function(p)
      p:stage "b" (PASS)
      p:stage "a" (PASS)
      p:connect("b", "a", { window = 2 })
    end)
    assert.same({ "a", "b" }, { made.stages[1].name, made.stages[2].name })
    local edges = {}
    for i, edge in ipairs(made.edges) do
      assert.equal(i, edge.id)
      edges[i] = ("%s>%s:%d"):format(edge.from, edge.to, edge.window)
    end
    assert.same({ "b>a:2", "a>host:16", "host>b:16" }, edges)
  end)

  it("refuses what is not supported, and says so", function()
    local function says(expected, declare)
      local made, text = topology(declare)
      assert.is_nil(made)
      assert.truthy(text:find(expected, 1, true), text)
      assert.truthy(text:find "check_spec.lua:%d+: ")
    end
    says("has no stages", function() end)
  end)

  it("names what is wrong with stages and edges", function()
    local _, text = topology(function(p)
      p:stage "a" { module = "spec.fixtures.pass", modul = 1 }
      p:stage "b" { config = {} }
      p:stage "c" { module = "spec.fixtures.pass", config = { f = print } }
      p:stage "c" (PASS)
      p:stage "host" (PASS)
      p:stage "d/e" (PASS)
      p:stage "f"
      p:connect("aa", "b", { windw = 1 })
    end)
    for _, expected in ipairs {
      'stage "a": unknown key "modul" (did you mean "module"?)',
      'stage "b": what it runs is missing',
      'stage "c": config.f is a function',
      'stage "c": is declared twice',
      'stage "host": the name must be',
      'stage "d/e": the name must be',
      'stage "f": has no definition',
      'edge "aa -> b": unknown key "windw" (did you mean "window"?)',
      'edge "aa -> b": there is no stage "aa" (did you mean "a"?)',
    } do
      assert.truthy(text:find(expected, 1, true), expected .. "\nis not in\n" .. text)
    end
  end)
end)
