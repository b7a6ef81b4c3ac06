local omni = require "omni"
local sys = require "omni.testing.sys"
local uv = require "luv"

local function wakeups(s) return s:stats().wakeups_scheduled end

describe("sink", function()
  local s
  before_each(function() s = omni.sink.new() end)
  after_each(function() s:close() end)

  it("wakes a waiting consumer once for five puts of another thread", function()
    local batch
    local task = omni.spawn(function() batch = s:get_batch { timeout = 20 } end)
    omni.sleep(0) -- the task waits now
    local thread = omni.thread(function(sink) for i = 0, 4 do sink:put(i) end end, s)
    while s:stats().depth < 5 do uv.sleep(1) end -- without turning the loop
    assert.equal(1, wakeups(s))
    task:join()
    assert.same({ 0, 1, 2, 3, 4 }, batch)
    assert.equal(1, wakeups(s))
    thread:join()
  end)

  it("hands out what came before its timeout was noticed", function()
    local batch
    local task = omni.spawn(function() batch = s:get_batch { timeout = 0.01 } end)
    omni.sleep(0)
    uv.sleep(30) -- the loop does not turn: when it does, the time is over and the bell rings
    s:put "late"
    task:join()
    assert.same({ "late" }, batch)
  end)

  it("finds after the arm what was put until then, while the flag was up", function()
    if not sys.enabled then
      pending "this build has no hooks"
      return
    end
    local queue, router = omni.sink.new { bind = false }, omni.router.new()
    queue:put "a"
    local consumer = omni.thread(function(sink, calls, up)
      sink:bind()
      local first = sink:get_batch() -- taken without arming: the flag stays up
      calls:call("go", function() up:put "taken" end, 20) -- meanwhile its bell rings
      return first[1], sink:get_batch({ timeout = 20 })[1], sink:stats().wakeups_scheduled
    end, queue, router, s)
    assert.same({ "taken" }, s:get_batch { timeout = 20 })
    local rule = sys.rule { op = "POINT", match = "sink.arm", action = "hold" }
    router:deliver("go", true)
    assert(rule:wait())
    queue:put "b" -- rings no bell
    rule:remove()
    local start = omni.now()
    assert.same({ "a", "b", 1 }, { consumer:join() })
    assert.is_true(omni.now() - start < 10)
    queue:close()
    router:close()
  end)

  -- ---- consumers that end ----

  it("tells producers when its consumer dies in the callback", function()
    local gate = omni.sink.new { bind = false }
    local thread = omni.thread(function(start, out)
      local omni_there = require "omni"
      start:bind()
      out:put "ready"
      start:get_batch()
      local mine = omni_there.sink.new { hooks = { after_empty_drain = function() error "the callback died" end } }
      mine:get_batch()
    end, gate, s)
    assert.same({ "ready" }, s:get_batch { timeout = 20 })
    assert.is_true(gate:put "go")
    local value, err, code = thread:join()
    assert.is_nil(value)
    assert.equal("ERUN", code)
    assert.matches("the callback died", err)
    assert.equal("ECLOSED", select(3, gate:put "more")) -- its state is gone
    gate:close()
  end)

  it("goes on after an error in its consumer's callback", function()
    local calls = 0
    local t = omni.sink.new { hooks = { after_empty_drain = function()
      calls = calls + 1
      if calls == 1 then error("once", 0) end
    end } }
    assert.has_error(function() t:get_batch() end, "once")
    t:put "a"
    assert.same({ "a" }, t:get_batch { timeout = 20 })
    assert.same({}, t:get_batch { timeout = 0.001 })
    local batch
    local task = omni.spawn(function() batch = t:get_batch { timeout = 20 } end)
    omni.sleep(0)
    t:put "b"
    task:join()
    assert.same({ "b" }, batch)
    t:close()
  end)

  it("lets producers outlive their consumer, whose items go with it", function()
    local queue, out = omni.sink.new { bind = false }, s
    local producers = {}
    for p = 1, 3 do
      producers[p] = omni.thread(function(sink, up)
        up:put "up"
        local n = 0
        while true do -- until it is told
          local ok, err, code = sink:put(("x"):rep(100))
          if not ok then return n, err, code end
          n = n + 1
        end
      end, queue, out)
    end
    local up = 0
    while up < 3 do up = up + #out:get_batch { timeout = 20 } end
    local consumer = omni.thread(function(sink)
      sink:bind()
      local taken = 0
      while taken < 1000 do taken = taken + #sink:get_batch { max_items = 100 } end
      return taken -- and its state ends here, with items in the queue
    end, queue)
    assert.equal(1000, consumer:join())
    local stored = 0
    for p = 1, 3 do
      local n, err, code = producers[p]:join()
      stored = stored + n
      assert.equal("ECLOSED", code)
      assert.matches("^ECLOSED: ", err)
    end
    assert.is_true(stored >= 1000)
    assert.equal("ECLOSED", select(3, queue:put "late"))
    queue:close()
  end)

  it("belongs to the state that made it: others cannot take from it", function()
    local ok, err = omni.thread(function(sink) return pcall(sink.get_batch, sink, { timeout = 0 }) end, s):join()
    assert.is_false(ok)
    assert.matches("is not the sink's consumer", err)
  end)
end)
