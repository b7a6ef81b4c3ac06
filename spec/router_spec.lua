local omni = require "omni"
local uv = require "luv"

-- Delivers from another thread once the gate lets it: a result that comes later, without a clock.
local function deliverer(router)
  local gate = omni.sink.new { bind = false }
  local thread = omni.thread(function(g, r)
    g:bind()
    while true do
      local batch = g:get_batch()
      if not batch then return end
      for _, item in ipairs(batch) do
        if item.err then r:fail(item.key, item.err) else r:deliver(item.key, item.value) end
      end
    end
  end, gate, router)
  return gate, thread
end

describe("router", function()
  local r
  before_each(function() r = omni.router.new() end)
  after_each(function() r:close() end)

  it("gives results that come back out of order to those who asked", function()
    local gate, thread = deliverer(r)
    local results, sent = {}, 0
    local function caller(key)
      return omni.spawn(function()
        results[key] = r:call(key, function() sent = sent + 1 end, 30)
      end)
    end
    local sleep, wake = caller "sleep", caller "wake"
    while sent < 2 do omni.sleep(0) end
    gate:put { key = "wake", value = "ok-wake" }
    wake:join()
    assert.same({ wake = "ok-wake" }, results)
    gate:put { key = "sleep", value = "ok-sleep" }
    sleep:join()
    assert.same({ wake = "ok-wake", sleep = "ok-sleep" }, results)
    gate:close()
    thread:join()
  end)

  it("does not lose a result that comes back inside of send", function()
    local key = { "rpc", 7 }
    local function send() assert.is_true(r:deliver({ "rpc", 7 }, { gpu_mem = 3 })) end
    assert.same({ gpu_mem = 3 }, r:call(key, send, 0.1))
    assert.equal(0, r:stats().waiting)
  end)

  it("times out, counts the late result, and takes the key again", function()
    local start = omni.now()
    local value, err, code = r:call("ping", function() end, 0.1)
    assert.is_nil(value)
    assert.matches("^ETIMEDOUT: ", err)
    assert.equal("ETIMEDOUT", code)
    assert.is_true(omni.now() - start >= 0.1)
    assert.is_false(r:deliver("ping", "pong"))
    assert.equal(1, r:stats().late_results)
    assert.equal("pong2", r:call("ping", function() r:deliver("ping", "pong2") end, 0.1))
  end)

  it("returns delivered errors as errors, with their code", function()
    local value, err, code = r:call("bad", function() r:fail("bad", "ENOENT: no such method") end, 0.1)
    assert.is_nil(value)
    assert.equal("ENOENT: no such method", err)
    assert.equal("ENOENT", code)
    assert.equal("ERUN", select(3, r:call("bad", function() r:fail("bad", "plain words") end, 0.1)))
    assert.is_false(r:fail("bad", "late"))
    assert.equal(1, r:stats().late_results)
    assert.is_false((pcall(r.fail, r, "bad", { 1 })))
  end)

  it("tells an error from a value that is nil, false or a text like an error", function()
    for _, value in ipairs { false, "ENOENT: just a text", 0 } do
      local got, err = r:call("k", function() r:deliver("k", value) end)
      assert.equal(value, got)
      assert.is_nil(err)
    end
    local got, err = r:call("k", function() r:deliver("k", nil) end)
    assert.is_nil(got)
    assert.is_nil(err)
  end)

  it("refuses a second waiter for a live key, and frees the key with the first", function()
    local first = r:register "dup"
    local second, err, code = r:register "dup"
    assert.is_nil(second)
    assert.matches("^EEXIST: ", err)
    assert.equal("EEXIST", code)
    local sent
    assert.equal("EEXIST", select(3, r:call("dup", function() sent = true end, 1)))
    assert.is_nil(sent)
    assert.is_true(r:unregister("dup", first))
    local third = r:register "dup"
    assert.is_false(r:unregister("dup", first)) -- a stale waiter does not remove its successor
    assert.is_true(r:deliver("dup", 1))
    assert.equal(1, third:wait())
  end)

  it("delivers once", function()
    local waiter = r:register "once"
    assert.is_true(r:deliver("once", 1))
    assert.is_false(r:deliver("once", 2))
    assert.equal(1, waiter:wait())
    assert.equal(1, waiter:wait())
  end)

  it("fails three waiting threads at once and latches", function()
    local up = omni.sink.new()
    local threads = {}
    for i = 0, 2 do
      threads[i] = omni.thread(function(router, ready, key)
        return router:call(key, function() ready:put(key) end, 60)
      end, r, up, "w" .. i)
    end
    local count = 0
    while count < 3 do count = count + #up:get_batch() end
    local start = omni.now()
    r:fail_all "ECLOSED: orch dead"
    for i = 0, 2 do
      assert.same({ nil, "ECLOSED: orch dead", "ECLOSED" }, { threads[i]:join() })
    end
    assert.is_true(omni.now() - start < 30)
    local sent
    assert.same({ nil, "ECLOSED: orch dead", "ECLOSED" }, { r:call("after", function() sent = true end, 5) })
    assert.is_nil(sent)
    assert.same({ nil, "ECLOSED: orch dead", "ECLOSED" }, { r:register "x" })
    assert.equal(0, r:stats().late_results)
    r:fail_all "EIO: a second reason"
    assert.equal("ECLOSED", select(3, r:register "x"))
    up:close()
  end)

  it("counts what comes back after fail_all as late", function()
    local waiter = r:register "k"
    r:fail_all "EIO: broken"
    assert.is_false(r:deliver("k", 1))
    assert.equal(1, r:stats().late_results)
    assert.equal("EIO", select(3, waiter:wait()))
  end)

  it("covers a send that suspends with the same deadline, and leaves it behind", function()
    local gate, over = omni.sink.new(), nil
    omni.log.capture()
    local start = omni.now()
    local code = select(3, r:call("slow", function()
      gate:get_batch()
      over = true
    end, 0.05))
    assert.equal("ETIMEDOUT", code)
    assert.is_true(omni.now() - start < 20)
    assert.is_nil(over)
    gate:put(1)
    while not over do omni.sleep(0) end
    local said = omni.log.release()
    assert.equal(1, #said)
    assert.equal("slow", said[1].key)
    assert.matches("its send still runs", said[1].msg)
    gate:close()
  end)

  it("fails who waits and who comes when it is closed, once and again", function()
    local task = omni.spawn(function() return r:call("k", function() end, 20) end)
    omni.sleep(0)
    local waiter = r:register "w"
    r:close()
    r:close()
    assert.equal("ECLOSED", select(3, task:join(20)))
    assert.equal("ECLOSED", select(3, waiter:wait(20)))
    assert.equal("ECLOSED", select(3, r:call("later", error, 20)))
    assert.is_false(r:deliver("k", 1))
    assert.equal(0, r:stats().waiting)
  end)

  it("covers a send that computes with the same deadline: no wait follows it", function()
    local start = omni.now()
    local code = select(3, r:call("slow", function() uv.sleep(60) end, 0.05))
    assert.equal("ETIMEDOUT", code)
    assert.is_true(omni.now() - start < 0.1, "it waited once more")
    -- What came meanwhile is a result nevertheless.
    assert.equal("here", r:call("slow", function()
      uv.sleep(20)
      r:deliver("slow", "here")
    end, 0.01))
  end)

  it("leaves a key to its next waiter, whatever an earlier one does", function()
    local successor
    assert.equal(1, r:call("k", function()
      r:deliver("k", 1)
      successor = assert(r:register "k") -- before the call comes to its own end
    end, 20))
    assert.is_true(r:deliver("k", 2))
    assert.equal(2, successor:wait(20))
    local stale = r:register "k"
    r:deliver("k", 3)
    successor = assert(r:register "k")
    assert.is_false(r:unregister("k", stale))
    assert.is_false(r:unregister("other", successor))
    stale = nil -- luacheck: ignore 311
    collectgarbage() collectgarbage()
    assert.is_true(r:deliver("k", 4))
    assert.equal(4, successor:wait(20))
    assert.is_false(r:unregister("k", successor)) -- it has its result: nothing is registered
  end)

  it("returns a result that comes while send still suspends", function()
    local gate = omni.sink.new()
    omni.log.capture(function() end)
    local result, over
    local task = omni.spawn(function() result = r:call("k", function() gate:get_batch() over = true end, 30) end)
    omni.sleep(0)
    r:deliver("k", "early")
    task:join()
    assert.equal("early", result)
    gate:put(1)
    while not over do omni.sleep(0) end
    omni.log.release()
    gate:close()
  end)

  it("raises what send raises, at once or later, and frees the key", function()
    assert.has_error(function() r:call("k", function() error("no wire", 0) end, 5) end, "no wire")
    assert.has_error(function() r:call("k", function() omni.sleep(0.001) error("later", 0) end, 5) end, "later")
    assert.equal(0, r:stats().waiting)
    assert.equal(1, r:call("k", function() r:deliver("k", 1) end))
  end)

  it("compares keys by value and keeps types apart", function()
    local waiters = {}
    local function keys() -- new tables each time: nothing but their values is equal
      return {
        "1", 1, { 1 }, { "1" }, { { 1 } }, { 1, 2 }, { 12 }, "a\0b", "a", { "a", "b" }, { "ab" }, 0.5, -1, 2 ^ 60,
      }
    end
    for i, key in ipairs(keys()) do waiters[i] = assert(r:register(key)) end
    for i, key in ipairs(keys()) do
      assert.is_true(r:deliver(key, i))
      assert.equal(i, waiters[i]:wait())
    end
    assert(r:register(0))
    assert.is_true(r:deliver(-0.0, 1))
    for _, wrong in ipairs { true, {}, { true }, print, 0 / 0, { { {} } }, ("x"):rep(600) } do
      local ok, err = pcall(function() r:register(wrong) end)
      assert.is_false(ok)
      assert.matches("router_spec.lua:%d+: router: ", err)
    end
  end)

  it("frees the key of a waiter that is collected", function()
    r:register "gone" -- luacheck: ignore
    collectgarbage() collectgarbage()
    assert.equal(0, r:stats().waiting)
  end)

  it("does not time out on a result that a deliverer has in its hands", function()
    local sys = require "omni.testing.sys"
    if not sys.enabled then return pending "a test build is needed" end
    local rule = sys.rule { op = "POINT", match = "router.claimed", action = "hold" }
    local thread, result
    local task = omni.spawn(function()
      local function send() thread = omni.thread(function(router) return router:deliver("k", "in hand") end, r) end
      result = r:call("k", send, 0.5)
    end)
    assert(rule:wait())
    omni.sleep(0.6) -- the call's time is over
    rule:release()
    rule:remove()
    task:join()
    assert.is_true(thread:join())
    assert.equal("in hand", result)
    assert.equal(0, r:stats().late_results)
  end)

  it("serves callers of several states with results from a third", function()
    local requests = omni.sink.new()
    local threads = {}
    for t = 1, 3 do
      threads[t] = omni.thread(function(router, out, id)
        for i = 1, 200 do
          local key = { id, i }
          local value = router:call(key, function() out:put { key = key, n = id * 1000 + i } end, 60)
          if value ~= id * 1000 + i then return ("wrong result for %d %d: %s"):format(id, i, tostring(value)) end
        end
        return "done"
      end, r, requests, t)
    end
    local served = 0
    while served < 600 do
      for _, request in ipairs(requests:get_batch { timeout = 30 }) do
        assert.is_true(r:deliver(request.key, request.n))
        served = served + 1
      end
    end
    for t = 1, 3 do assert.equal("done", threads[t]:join()) end
    assert.equal(0, r:stats().late_results)
    requests:close()
  end)

  it("leaves the next caller of a key alone when the send of an answered call fails", function()
    local go, failure = omni.sink.new(), nil
    local task = omni.spawn(function()
      local _, err = pcall(r.call, r, "k", function() go:get_batch() error("late", 0) end, 5)
      failure = err
    end)
    omni.sleep(0)
    go:put(1) -- its send goes on before the answer wakes the call
    assert.is_true(r:deliver("k", "first"))
    local waiter = assert(r:register "k")
    omni.sleep(0.02)
    assert.equal("late", failure)
    assert.is_true(r:deliver("k", "second"))
    assert.equal("second", waiter:wait(0))
    assert.equal(0, r:stats().late_results)
    assert.is_truthy(task)
    go:close()
  end)

  it("counts nothing as late when a send delivers and then fails", function()
    local ok, err = pcall(r.call, r, "k", function() r:deliver("k", 1) error("after it", 0) end, 5)
    assert.is_false(ok)
    assert.equal("after it", err)
    assert.equal(0, r:stats().late_results)
  end)

  it("lets a thread wait for what only its parent can deliver, though it dropped the router", function()
    local ready = omni.sink.new()
    local thread = omni.thread(function(router, out)
      local waiter = router:register "k"
      router = nil -- luacheck: ignore
      collectgarbage() collectgarbage()
      out:put(1)
      return (waiter:wait())
    end, r, ready)
    ready:get_batch { timeout = 30 }
    omni.sleep(0.02)
    r:deliver("k", "there")
    assert.equal("there", thread:join())
    ready:close()
  end)

  it("says what is wrong with its arguments", function()
    assert.has_error(function() r:call("k", 1) end)
    assert.has_error(function() r:call("k", print, -1) end)
    assert.has_error(function() r:call("k", print, "1") end)
    assert.equal(0, r:stats().waiting)
  end)
end)
