local host = require "omni.native.host"
local omni = require "omni"

local function wakeups(s) return s:stats().wakeups_scheduled end

-- Takes batches until n items are there.
local function take(s, n)
  local items = {}
  while #items < n do
    local batch = s:get_batch { timeout = 30 }
    assert(#batch > 0, "the sink went dry")
    for _, item in ipairs(batch) do items[#items + 1] = item end
  end
  return items
end

describe("sink", function()
  local s
  before_each(function() s = omni.sink.new() end)
  after_each(function() s:close() end)

  it("counts wakeups as the single-threaded example says, line by line", function()
    s:put "a" s:put "b" s:put "c"
    assert.equal(1, wakeups(s)) -- the first put starts a cycle, the others see it in flight
    assert.same({ "a", "b" }, s:get_batch { max_items = 2 })
    assert.same({ "c" }, s:get_batch { max_items = 2 })
    assert.equal(1, wakeups(s))
    s:put "d"
    assert.equal(1, wakeups(s)) -- not armed since: still in flight
    assert.same({ "d" }, s:get_batch())
    local start = omni.now()
    assert.same({}, s:get_batch { timeout = 0.05 })
    assert.is_true(omni.now() - start >= 0.05)
    assert.equal(1, wakeups(s))
    s:put "e"
    assert.equal(2, wakeups(s)) -- the first put after the consumer armed
    assert.same({ "e" }, s:get_batch())
  end)

  it("hands out at once what another thread puts between the empty drain and the re-arm", function()
    local t, hooked
    t = omni.sink.new { hooks = { after_empty_drain = function()
      if hooked then return end
      hooked = true
      assert(omni.thread(function(sink) return sink:put "b" end, t):join())
    end } }
    t:put "a"
    assert.same({ "a" }, t:get_batch()) -- taken without arming: the flag stays up
    local start = omni.now()
    assert.same({ "b" }, t:get_batch { timeout = 20 })
    assert.is_true(omni.now() - start < 10)
    assert.equal(1, wakeups(t))
    t:put "c"
    assert.equal(2, wakeups(t))
    t:close()
  end)

  it("wakes a waiting consumer once for a burst", function()
    local batch
    local task = omni.spawn(function() batch = s:get_batch { timeout = 20 } end)
    omni.sleep(0) -- the task waits now
    for i = 0, 4 do s:put(i) end
    task:join()
    assert.same({ 0, 1, 2, 3, 4 }, batch)
    assert.equal(1, wakeups(s))
  end)

  it("loses nothing that a thread puts while the consumer waits", function()
    local thread = omni.thread(function(sink) for i = 0, 4 do sink:put(i) end end, s)
    assert.same({ 0, 1, 2, 3, 4 }, take(s, 5))
    thread:join()
  end)

  it("rings one doorbell for 1000 puts that nobody takes", function()
    omni.sleep(0)
    local bells = host.bells()
    for i = 1, 1000 do s:put(i) end
    assert.equal(1, wakeups(s))
    assert.equal(1, host.bells() - bells)
    assert.equal(1000, #s:get_batch())
  end)

  it("keeps the order of each of four producers of 5000 items", function()
    local threads = {}
    for p = 1, 4 do
      threads[p] = omni.thread(function(sink, producer)
        for i = 1, 5000 do sink:put { producer, i } end
      end, s, p)
    end
    local last, wakes = { 0, 0, 0, 0 }, 0
    for _, item in ipairs(take(s, 20000)) do
      assert(item[2] == last[item[1]] + 1, "out of order")
      last[item[1]] = item[2]
      wakes = wakes + 1
    end
    for p = 1, 4 do threads[p]:join() end
    assert.same({ 5000, 5000, 5000, 5000 }, last)
    assert.equal(20000, s:stats().gets)
    assert.equal(0, s:stats().depth)
  end)

  it("plays 300 rounds of ping-pong between two states", function()
    local there = omni.sink.new { bind = false }
    local thread = omni.thread(function(ping, pong)
      ping:bind()
      for _ = 1, 300 do
        local batch = ping:get_batch { timeout = 30 }
        if #batch ~= 1 then return "lost a wakeup" end
        pong:put(batch[1] + 1)
      end
      return "done"
    end, there, s)
    for i = 1, 300 do
      there:put(i)
      assert.same({ i + 1 }, s:get_batch { timeout = 30 })
    end
    assert.equal("done", thread:join())
    there:close()
  end)

  it("keeps its total timeout however often it is woken for nothing", function()
    local stop
    local task = omni.spawn(function()
      while not stop do
        s:put "x"
        assert(s:_drain(1)) -- gone again before the consumer looks
        omni.sleep(0.005)
      end
    end)
    local start = omni.now()
    assert.same({}, s:get_batch { timeout = 0.1 })
    local took = omni.now() - start
    stop = true
    task:join()
    assert.is_true(took >= 0.1 and took < 20)
  end)

  it("refuses puts beyond its capacity and takes more once there is room", function()
    local t = omni.sink.new { capacity = 2 }
    assert.is_true(t:put(1))
    assert.is_true(t:put(2))
    local ok, err, code = t:put(3)
    assert.is_nil(ok)
    assert.matches("^EFULL: ", err)
    assert.equal("EFULL", code)
    assert.same({ 1 }, t:get_batch { max_items = 1 })
    assert.is_true(t:put(4))
    assert.same({ 2, 4 }, t:get_batch())
    assert.equal(1, t:stats().refused)
    t:close()
  end)

  it("hands out what is queued after close, then ECLOSED, and wakes who waits", function()
    s:put "last"
    s:close()
    s:close()
    assert.same({ "last" }, s:get_batch())
    assert.equal("ECLOSED", select(3, s:get_batch()))
    assert.equal("ECLOSED", select(3, s:put "more"))
    local t, code = omni.sink.new(), nil
    local task = omni.spawn(function() code = select(3, t:get_batch()) end)
    omni.sleep(0)
    t:close()
    task:join()
    assert.equal("ECLOSED", code)
  end)

  it("does not harm producers whose consumer is gone", function()
    local thread = omni.thread(function(out)
      local mine = require("omni.sink").new()
      out:put "made"
      return mine:put "one"
    end, s)
    assert.is_true(thread:join())
    local t = omni.sink.new()
    local producer = omni.thread(function(gate, sink)
      gate:bind()
      gate:get_batch()
      return select(3, sink:put "too late")
    end, omni.sink.new { bind = false }, t)
    producer:stop()
    producer:join()
    local gate = omni.sink.new { bind = false }
    producer = omni.thread(function(g, sink)
      g:bind()
      g:get_batch()
      return select(3, sink:put "too late")
    end, gate, t)
    t = nil -- luacheck: ignore 311
    collectgarbage() collectgarbage()
    gate:put "go"
    assert.equal("ECLOSED", producer:join())
    gate:close()
  end)

  it("queues before it is bound, and rings the bell that was due", function()
    local t = omni.sink.new { bind = false }
    t:put(1) t:put(2)
    assert.equal(0, wakeups(t))
    assert.has_error(function() t:get_batch() end)
    assert.is_true(t:bind())
    assert.equal("EEXIST", select(3, t:bind()))
    assert.equal(1, wakeups(t))
    assert.same({ 1, 2 }, t:get_batch())
    t:close()
  end)

  it("has one waiter", function()
    local task = omni.spawn(function() s:get_batch() end)
    omni.sleep(0)
    local ok, err = pcall(s.get_batch, s)
    assert.is_false(ok)
    assert.matches("another coroutine waits on this sink", err)
    s:put(1)
    task:join()
  end)

  it("carries plain values, int64 and nested tables; refuses the rest at the caller's line", function()
    local big = require("ffi").new("int64_t", 2 ^ 40)
    for _, value in ipairs { "", "text\0", 1.5, true, false } do s:put(value) end
    s:put { a = { 1, 2, { b = "c" } }, n = big }
    local got = take(s, 6)
    assert.same({ "", "text\0", 1.5, true, false }, { unpack(got, 1, 5) })
    assert.same({ 1, 2, { b = "c" } }, got[6].a)
    assert.is_true(got[6].n == big)
    for _, wrong in ipairs { print, coroutine.create(print), { f = print } } do
      local ok, err = pcall(function() s:put(wrong) end)
      assert.is_false(ok)
      assert.matches("sink_spec.lua:%d+: sink:put cannot carry", err)
    end
    local ok, err = pcall(function() s:put(nil) end)
    assert.is_false(ok)
    assert.matches("nil is no item", err)
  end)

  it("names the nearest option for a wrong one", function()
    local ok, err = pcall(function() return omni.sink.new { capasity = 1 } end)
    assert.is_false(ok)
    assert.matches('sink_spec.lua:%d+: sink.new: unknown key "capasity" %(did you mean "capacity"%?%)', err)
    ok, err = pcall(function() return s:get_batch { max_item = 1 } end)
    assert.is_false(ok)
    assert.matches('did you mean "max_items"', err)
    assert.is_false(pcall(s.get_batch, s, { timeout = -1 }))
    assert.is_false(pcall(omni.sink.new, { capacity = 0 }))
  end)
end)
