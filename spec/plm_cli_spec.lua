-- omnihost plm, seen from outside.

local json = require "omni.json"
local run = require "spec.support.run"
local uv = require "luv"

local dir

local TOOLS = [[
return {
  get = { allow_early_read = true, call = function(ctx, k) ctx:sleep(0.02) return "v" .. tostring(k) end },
  bad = { allow_early_read = true, call = function(_, k) error("ENOENT: no " .. tostring(k), 0) end },
  count = { call = function() _G.n = (_G.n or 0) + 1 return _G.n end },
}
]]

local function write(name, text)
  local file = assert(io.open(dir .. "/" .. name, "we"))
  file:write(text)
  file:close()
  return dir .. "/" .. name
end

local function program(text) return write("program.lua", text) end

local function plm(...) return run.host("plm", ...) end

local READS = 'local a = get(1)\nlocal b = get(inputs.k)\nprint("seen")\nreturn a .. b, nil, { a }\n'

describe("omnihost plm", function()
  before_each(function()
    dir = assert(uv.fs_mkdtemp "/tmp/omnihost-plm-XXXXXX")
    write("tl.lua", TOOLS)
  end)
  after_each(function() os.execute("rm -rf " .. dir) end)

  it("prints what the program prints, then its results", function()
    local p = plm(program(READS), "--tools", "tl", "--inputs", '{"k":"x"}')
    assert.equal(0, p.code, p.stderr)
    assert.equal('seen\n"v1vx"\nnull\n["v1"]\n', p.stdout)
    assert.equal("", p.stderr)
    assert.equal(p.stdout, plm(program(READS), "--tools", "tl", "--inputs", '{"k":"x"}', "--off").stdout)
  end)

  it("says where a program failed, and exits 1", function()
    local p = plm(program 'local a = get(1)\nlocal b = bad "x"', "--tools", "tl")
    assert.equal(1, p.code)
    assert.matches("omnihost: program.lua:2: ENOENT: no x (tool bad)", p.stderr, 1, true)
    assert.matches("program.lua:2: in main chunk", p.stderr, 1, true)
    assert.equal(1, plm(program "x = = 1", "--tools", "tl").code)
  end)

  it("runs a program without tools", function()
    assert.equal("3\n", plm(program "return 1 + 2").stdout)
  end)

  it("takes limits", function()
    local p = plm(program "while true do pcall(get, 1) end", "--tools", "tl", "--limits", "calls=3", "seconds=5")
    assert.matches("ECALLS", p.stderr)
    p = plm(program "while true do end", "--limits", "seconds=0.1,memory=4M")
    assert.matches("EDEADLINE: the program ran longer than 0.1 seconds", p.stderr)
  end)

  it("explains what starts early and why other calls do not", function()
    local p = plm(program "local a = get(1)\nlocal b = get(2)\nlocal c = count()\nreturn a .. b .. c\n",
      "--tools", "tl", "--explain")
    assert.equal(0, p.code, p.stderr)
    assert.matches("   1 > local a = get%(1%) +| get: starts early\n", p.stdout)
    assert.matches("   2   local b = get%(2%) +| get: starts at line 1\n", p.stdout)
    assert.matches("   3   local c = count%(%) +| count: the tool is not early\n", p.stdout)
    assert.matches("2 of 3 calls start early\n$", p.stdout)
    p = plm(program "return 1\nlocal a = 2", "--tools", "tl", "--explain")
    assert.equal(1, p.code)
    assert.matches("program.lua:2: ", p.stderr, 1, true)
  end)

  it("compares both ways", function()
    local p = plm(program(READS), "--tools", "tl", "--compare", "--runs", "2")
    assert.equal(0, p.code, p.stderr)
    assert.matches("^PLM off +[%d.]+ ms   2 calls\nPLM on +[%d.]+ ms   2 calls, 2 started early, 2 of them used\n",
      p.stdout)
    assert.matches("faster +[%d.]+ times   tools were at work for [%d.]+ ms within [%d.]+ ms\n", p.stdout)
    assert.matches("results, errors, lines and logical traces are equal\n$", p.stdout)
  end)

  it("tells in what they differ, and exits 1", function()
    local p = plm(program "return count()", "--tools", "tl", "--compare")
    assert.equal(1, p.code)
    assert.matches("results differ:\n  %[1%]\n  %[2%]", p.stderr)
  end)

  it("writes a trace with a track for each worker", function()
    local p = plm(program(READS), "--tools", "tl", "--trace", dir .. "/trace.json")
    assert.equal(0, p.code, p.stderr)
    local file = assert(io.open(dir .. "/trace.json", "re"))
    local trace = assert(json.decode(file:read "*a"))
    file:close()
    local tracks, slices = {}, 0
    for _, event in ipairs(trace.traceEvents) do
      if event.ph == "M" then tracks[event.args.name] = event.tid end
      if event.ph == "X" and event.name == "get" then
        slices = slices + 1
        assert.is_true(event.dur >= 15000 and event.ts >= 0)
      end
    end
    assert.equal(2, slices)
    assert.is_truthy(tracks["program"] and tracks["worker 1"] and tracks["worker 2"])
  end)

  it("prints the whole report as JSON", function()
    local p = plm(program(READS), "--tools", "tl", "--json")
    local report = assert(json.decode(p.stdout))
    assert.is_true(report.ok)
    assert.equal(3, #report.results)
    assert.equal("seen\n", report.printed)
    assert.equal(2, #report.logical)
    assert.equal(2, report.stats.adopted)
    assert.is_true(#report.events >= 4)
  end)

  it("finds tool modules in another folder", function()
    uv.fs_mkdir(dir .. "/programs", 448)
    write("programs/p.lua", "return get(1)")
    assert.equal(2, plm(dir .. "/programs/p.lua", "--tools", "tl").code)
    assert.equal('"v1"\n', plm(dir .. "/programs/p.lua", "--tools", "tl", "--dir", dir).stdout)
  end)

  it("refuses wrong usage with exit code 2, and names what was meant", function()
    local file = program "return 1"
    for _, case in ipairs {
      { { }, "missing argument" }, { { file, "--tool", "tl" }, "unknown option '%-%-tool'" },
      { { file, "--tools", "nothing" }, 'tool module "nothing" cannot be loaded' },
      { { file, "--limits", "second=1" }, 'did you mean "seconds"' }, { { file, "--limits", "x" }, "is not KEY=VALUE" },
      { { file, "--inputs", "{" }, "%-%-inputs: EJSON" }, { { file, "--runs", "0" }, "runs" },
    } do
      local p = plm(unpack(case[1]))
      assert.equal(2, p.code, p.stderr)
      assert.matches(case[2], p.stderr)
      assert.not_matches("traceback", p.stderr)
    end
    assert.equal(1, plm(dir .. "/none.lua").code)
  end)

  it("runs the example programs alike both ways", function()
    assert.equal(0, os.execute(("cp -r examples/tools %s/ && rm -f %s/tools/var/*"):format(dir, dir)))
    for name, told in pairs { briefing = '"best_day":', reprice = '"credit":288542', chain = "3334 orders" } do
      local file = ("%s/tools/%s.lua"):format(dir, name)
      local p = plm(file, "--tools", "tools.shop", "tools.notes", "tools.rates", "--compare")
      assert.equal(0, p.code, p.stderr)
      assert.matches("are equal\n$", p.stdout)
      assert.equal(name == "chain", not p.stdout:find "started early")
      p = plm(file, "--tools", "tools.shop", "tools.notes", "tools.rates")
      assert.matches(told, p.stdout, 1, true)
    end
  end)

  it("has a help text for newcomers", function()
    local p = plm "--help"
    assert.equal(0, p.code)
    for _, text in ipairs { "--tools", "--inputs", "--explain", "--compare", "--trace", "--limits", "allow_early_read",
      "memory=64M seconds=10 instructions=1e9 calls=1000", "hostile" } do
      assert.matches(text, p.stdout, 1, true)
    end
  end)
end)
