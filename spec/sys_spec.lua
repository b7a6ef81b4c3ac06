local sched = require "omni.native.sched"
local sys = require "omni.testing.sys"
local thread = require "omni.thread"
local uv = require "luv"

-- Runs this program with code and rules, suspending; returns exit code and signal.
local function run_child(code, rules)
  local ticket = sched.ticket "run_child"
  local env = { "OMNI_SYS_RULES=" .. rules, "PATH=" .. os.getenv "PATH" }
  local handle
  handle = uv.spawn(uv.exepath(), { args = { "-e", code }, env = env }, function(status, signal)
    handle:close()
    sched.unpark(ticket, status, signal)
  end)
  local _, status, signal = sched.park("run_child", 20)
  return status, signal
end

local function pass(name, times)
  local point = require("omni.testing.sys").point
  for _ = 1, times or 1 do point(name) end
  return "through"
end

describe("the seam to the system", function()
  if not sys.enabled then
    it("has hooks in test builds", function() pending "this build has none: use build/test/omnihost" end)
    return
  end

  after_each(sys.reset)

  it("holds a thread at a named point until it is released", function()
    local rule = sys.rule { op = "POINT", match = "spec:gate", action = "hold" }
    local t = thread.start(pass, "spec:gate")
    assert.is_true(rule:wait())
    assert.is_true(rule:reached())
    assert.equal(1, rule:hits())
    rule:release()
    assert.equal("through", t:join())
    assert.is_false(rule:reached())
  end)

  it("lets the first calls pass, acts on the next and is silent afterwards", function()
    local rule = sys.rule { op = "POINT", match = "spec:many", action = "hold", skip = 2, times = 3 }
    local t = thread.start(pass, "spec:many", 10)
    for hit = 1, 3 do
      assert.is_true(rule:wait())
      assert.equal(hit, rule:hits())
      assert.equal(2 + hit, sys.count "POINT")
      rule:release()
      -- The thread counts as held until it has run on: the join, or the next hold, says so.
      while rule:reached() and rule:hits() == hit do sched.park("its departure", 0) end
    end
    assert.equal("through", t:join())
    assert.equal(3, rule:hits())
    assert.equal(10, sys.count "POINT")
  end)

  it("holds after a call as well as before it", function()
    local rule = sys.rule { op = "POINT", match = "spec:after", action = "hold", when = "after" }
    local t = thread.start(pass, "spec:after")
    assert.is_true(rule:wait())
    rule:remove()
    assert.equal("through", t:join())
  end)

  it("ends a wait for a thread that does not come", function()
    local rule = sys.rule { op = "POINT", match = "spec:nobody", action = "hold" }
    local reached, message, code = rule:wait(0.01)
    assert.is_nil(reached)
    assert.equal("ETIMEDOUT", code)
    assert.matches("^ETIMEDOUT: ", message)
  end)

  it("lets everybody go on a reset and forgets the counts", function()
    local rule = sys.rule { op = "POINT", match = "spec:all", action = "hold", times = math.huge }
    local threads = {}
    for i = 1, 3 do threads[i] = thread.start(pass, "spec:all", 5) end
    assert.is_true(rule:wait())
    sys.reset()
    for i = 1, 3 do assert.equal("through", threads[i]:join()) end
    assert.is_true(rule:hits() >= 1)
  end)

  it("makes a call fail with the error that a spec asks for", function()
    local rule = sys.rule { op = "THREAD", errno = "EAGAIN" }
    local ok = pcall(thread.start, pass, "spec:none")
    assert.is_false(ok)
    assert.equal(1, rule:hits())
    assert.equal("through", thread.start(pass, "spec:none"):join())
  end)

  it("kills a child at the point that its environment names", function()
    local code = "local sys = require 'omni.testing.sys' sys.point 'spec:a' sys.point 'spec:b' os.exit(7)"
    assert.same({ 0, 9 }, { run_child(code, "POINT,spec:b,0,1,kill") })
    assert.same({ 7, 0 }, { run_child(code, "POINT,spec:b,1,1,kill") })
    assert.same({ 2, 0 }, { run_child(code, "POINT,spec:b,never") })
  end)

  it("refuses rules that make no sense", function()
    assert.error_matches(function() sys.rule { op = "POINT", mach = "x" } end, 'unknown key "mach".*mean "match"')
    assert.error_matches(function() sys.rule { match = "x" } end, '"op" is missing')
    assert.error_matches(function() sys.rule { op = "UNLINK" } end, 'unknown operation "UNLINK"')
    assert.error_matches(function() sys.rule { op = "CLOSE", errno = "EOOPS" } end, 'unknown errno "EOOPS"')
    assert.error_matches(function() sys.rule { op = "CLOSE", action = "explode" } end, "explode")
    assert.error_matches(function() sys.rule { op = "CLOSE", when = "during" } end, '"before" or "after"')
    assert.error_matches(function() sys.rule { op = "POINT" } end, "cannot fail")
    assert.error_matches(function() sys.rule { op = "CLOSE", when = "after" } end, "cannot fail")
    assert.error_matches(function() sys.advance(-1) end, "never goes back")
  end)
end)
