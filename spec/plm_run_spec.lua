local files = require "spec.support.shm_files"
local omni = require "omni"
local plm = require "omni.plm"
local sys = require "omni.testing.sys"

local SHOP = "spec.fixtures.tools.shop"

-- What the trace says of one kind of step, as "tool outcome" lines.
local function steps(run, op)
  local out = {}
  for _, event in ipairs(run:trace()) do
    if not op or event.op == op then out[#out + 1] = ("%s %s"):format(event.tool, event.outcome) end
  end
  return out
end

local function worker_of(run, index) return run:trace()[index].worker end

describe("runs and futures", function()
  local manifest, open

  local function open_run(options)
    options.manifest = options.manifest or manifest
    local run = assert(plm.open_run(options))
    open[#open + 1] = run
    return run
  end

  local function make(items)
    if manifest then manifest:close() end
    manifest = plm.manifest(items)
    return open_run {}
  end

  local function held(name)
    return sys.rule { op = "POINT", match = name, action = "hold", times = math.huge }
  end

  before_each(function() open = {} end)
  after_each(function()
    sys.reset()
    for _, run in ipairs(open) do run:close() end
    if manifest then manifest:close() end
    manifest, open = nil, nil
  end)

  describe("prepare", function()
    it("starts a read early, and resolve delivers it", function()
      local run = make { SHOP }
      local h = run:prepare { tool = "lookup", args = { "a" }, line = 7 }
      assert.equal(1, h)
      assert.equal("a!", run:resolve(h, { tool = "lookup", args = { "a" }, line = 7 }))
      assert.same({ "lookup prepared", "lookup adopted" }, steps(run))
    end)

    it("gives 0 where early reads are off, and resolve calls all the same", function()
      make { SHOP }
      local run = open_run { enabled = false }
      assert.equal(0, run:prepare { tool = "lookup", args = { "a" } })
      assert.equal("a!", run:resolve(0, { tool = "lookup", args = { "a" } }))
      assert.same({ "lookup off", "lookup called" }, steps(run))
    end)

    it("gives 0 for an unknown tool, one that is not early, and arguments that cannot travel", function()
      local run = make { SHOP }
      assert.equal(0, run:prepare { tool = "lookupp", args = {} })
      assert.equal(0, run:prepare { tool = "die", args = {} })
      assert.equal(0, run:prepare { tool = "lookup", args = { print } })
      assert.equal(0, run:prepare { tool = "lookup", args = { 0 / 0 } })
      assert.equal(0, run:stats().prepared)
      assert.same({ nil, 'ENOENT: there is no tool lookupp (did you mean "lookup"?)', "ENOENT" },
        { run:resolve(0, { tool = "lookupp" }) })
    end)

    it("gives 0 once 64 futures are pending, done or not, and again a handle when one is claimed", function()
      local run = make { SHOP }
      local handles = {}
      for i = 1, 64 do
        handles[i] = run:prepare { tool = "lookup", args = { i } }
        run:call { tool = "nop" } -- the workers are free again: pending counts, not running
      end
      assert.equal(64, handles[64])
      assert.equal(64, run:stats().pending)
      assert.equal(0, run:prepare { tool = "lookup", args = { 65 } })
      assert.equal("3!", run:resolve(3, { tool = "lookup", args = { 3 } }))
      assert.equal(65, run:prepare { tool = "lookup", args = { 65 } })
    end)

    it("gives 0 where the budget of calls would be passed, and discarded reads cost nothing", function()
      make { SHOP }
      local run = open_run { calls = 2 }
      local first = run:prepare { tool = "lookup", args = { 1 } }
      local second = run:prepare { tool = "lookup", args = { 2 } }
      assert.equal(0, run:prepare { tool = "lookup", args = { 3 } })
      run:cancel_handle(first)
      run:cancel_handle(second)
      assert.equal(0, run:stats().calls)
      assert.equal("x!", run:call { tool = "lookup", args = { "x" } })
      local last = { tool = "lookup", args = { "y" } }
      assert.equal("y!", run:resolve(run:prepare(last), last))
      assert.equal(0, run:prepare { tool = "lookup", args = { "z" } })
      assert.equal("ECALLS", select(3, run:call { tool = "lookup", args = { "z" } }))
      assert.equal(2, run:stats().calls)
      assert.equal(2, #run:logical())
    end)

    it("counts the workers that could still be started as idle, up to all but one", function()
      local run = make { SHOP, workers = 3 }
      local gate = held "spec:cold"
      assert.equal(1, run:prepare { tool = "gate", args = { "spec:cold" } })
      assert.equal(2, run:prepare { tool = "gate", args = { "spec:cold" } })
      assert.equal(0, run:prepare { tool = "gate", args = { "spec:cold" } })
      assert.equal("busy", run:trace()[3].outcome)
      assert.equal("a!", run:call { tool = "lookup", args = { "a" } }) -- the last one is for ordinary work
      gate:remove()
      assert.equal(1, #steps(run, "call"))
    end)

    it("never takes a pool's only worker", function()
      local run = make { SHOP, workers = 1 }
      assert.equal(0, run:prepare { tool = "lookup", args = { "a" } })
      assert.equal("a!", run:call { tool = "lookup", args = { "a" } })
    end)

    it("leaves one slot of a tool to ordinary calls", function()
      local run = make { SHOP }
      local gate = held "spec:slot"
      assert.equal(1, run:prepare { tool = "limited", args = { "spec:slot" } })
      assert.equal(0, run:prepare { tool = "limited", args = { "spec:slot" } })
      assert.equal("in_flight", run:trace()[2].outcome)
      gate:remove()
    end)

    it("gives 0 where no thread can be started, and an ordinary call says so", function()
      local run = make { SHOP }
      local rule = sys.rule { op = "THREAD", action = "fail", errno = "EAGAIN", times = math.huge }
      assert.equal(0, run:prepare { tool = "lookup", args = { "a" } })
      assert.equal(0, run:stats().pending)
      assert.same({ nil, "EWORKER: no thread can be started for a worker", "EWORKER" },
        { run:call { tool = "lookup", args = { "a" } } })
      rule:remove()
      assert.equal("a!", run:call { tool = "lookup", args = { "a" } })
    end)
  end)

  describe("resolve", function()
    it("delivers a handle once", function()
      local run = make { SHOP }
      local request = { tool = "lookup", args = { "a" } }
      local h = run:prepare(request)
      assert.equal("a!", run:resolve(h, request))
      assert.same({ nil, "ENOENT: unknown or consumed future", "ENOENT" }, { run:resolve(h, request) })
      assert.equal("ENOENT", select(3, run:resolve(99, request)))
      assert.equal(2, run:stats().unknown)
      assert.equal(1, #run:logical())
    end)

    it("knows handles of its own run only, though two runs use the same numbers", function()
      local one = make { SHOP }
      local two = open_run {}
      local a, b = one:prepare { tool = "lookup", args = { "a" } }, two:prepare { tool = "lookup", args = { "b" } }
      assert.equal(1, a)
      assert.equal(1, b)
      assert.equal("b!", two:resolve(1, { tool = "lookup", args = { "b" } }))
      assert.equal("ENOENT", select(3, two:resolve(1, { tool = "lookup", args = { "a" } })))
      assert.equal("a!", one:resolve(1, { tool = "lookup", args = { "a" } }))
    end)

    it("calls anew where the request is another, and cancels the early work", function()
      local asked = {}
      local run = make { SHOP, { read = { allow_early_read = true, call = function(ctx, key)
        if key == "slow" then ctx:sleep(1e6) end
        asked[#asked + 1] = key
        return key
      end } } }
      local h = run:prepare { tool = "read", args = { "slow" } }
      assert.equal("fast", run:resolve(h, { tool = "read", args = { "fast" } }))
      assert.same({ "fast" }, asked)
      assert.equal("ENOENT", select(3, run:resolve(h, { tool = "read", args = { "slow" } })))
      local other = run:prepare { tool = "lookup", args = { "k" } }
      assert.equal("k", run:resolve(other, { tool = "echo", args = { "k" } }))
      assert.equal(2, run:stats().mismatch)
      assert.same({ { tool = "read", args = '["fast"]' }, { tool = "echo", args = '["k"]' } }, run:logical())
    end)

    it("tells 1 from \"1\", and a number of arguments from another", function()
      local run = make { SHOP }
      local h = run:prepare { tool = "echo", args = { 1 } }
      assert.equal("1", run:resolve(h, { tool = "echo", args = { "1" } }))
      h = run:prepare { tool = "echo", args = { 1 } }
      assert.equal(2, select("#", run:resolve(h, { tool = "echo", args = { n = 2, 1 } })))
      h = run:prepare { tool = "echo", args = { { b = 1, a = { 2 } } } }
      assert.same({ a = { 2 }, b = 1 }, run:resolve(h, { tool = "echo", args = { { a = { 2 }, b = 1 } } }))
      assert.equal(2, run:stats().mismatch)
      assert.equal(1, run:stats().adopted)
    end)

    it("never delivers what was read before a write", function()
      local store = { k = "old" }
      local run = make { SHOP, {
        get = { allow_early_read = true, call = function(_, key) return store[key] end },
        put = { call = function(_, key, value) store[key] = value end },
      } }
      local get = { tool = "get", args = { "k" } }
      local first, second = run:prepare(get), run:prepare(get)
      assert.equal("old", run:resolve(first, get))
      run:call { tool = "put", args = { "k", "new" } }
      assert.equal("new", run:resolve(second, get))
      assert.equal(1, run:stats().stale)
      local gate = held "spec:stale"
      local pending = run:prepare { tool = "gate", args = { "spec:stale" } }
      assert(gate:wait())
      run:call { tool = "put", args = { "k", "newer" } } -- cancels what runs
      gate:remove()
      assert.equal("spec:stale", run:resolve(pending, { tool = "gate", args = { "spec:stale" } }))
      assert.equal(2, run:stats().stale)
      assert.same({ "get stale", "gate stale" }, steps(run, "cancel"))
    end)

    it("takes a write that timed out and still goes on for a write", function()
      local go = omni.sink.new()
      finally(function() go:close() end) -- lets the tool go
      local run = make { SHOP, { put = { timeout = 0.01, call = function(ctx)
        pcall(ctx.sleep, ctx, 1e6)
        go:get_batch()
      end } } }
      local h = run:prepare { tool = "lookup", args = { "a" } }
      assert.equal("ETIMEDOUT", select(3, run:call { tool = "put" }))
      assert.equal("a!", run:resolve(h, { tool = "lookup", args = { "a" } }))
      assert.equal(1, run:stats().stale)
    end)

    it("does not let a read begun during a write pass for one after it", function()
      local go = omni.sink.new()
      finally(function() go:close() end) -- lets the tool go
      local value = "old"
      local run = make { {
        get = { allow_early_read = true, call = function() return value end },
        put = { call = function()
          go:get_batch()
          value = "new"
        end },
      } }
      local writer = omni.spawn(function() run:call { tool = "put" } end)
      omni.sleep(0)
      local h = run:prepare { tool = "get" }
      while run:stats().active > 1 do omni.sleep(0) end
      go:put(true)
      writer:join()
      assert.equal("new", run:resolve(h, { tool = "get" }))
      assert.equal(1, run:stats().stale)
    end)

    it("delivers an early failure and does not try again", function()
      local tries = 0
      local run = make { { bad = { allow_early_read = true, call = function()
        tries = tries + 1
        error("EACCES: not for you", 0)
      end } } }
      local h = run:prepare { tool = "bad" }
      while run:stats().active > 0 do omni.sleep(0) end -- it has failed
      assert.same({ nil, "EACCES: not for you", "EACCES" }, { run:resolve(h, { tool = "bad" }) })
      assert.equal(1, tries)
      assert.is_true(run:trace()[2].failed)
    end)

    it("gives fresh values, and as many as the call gave", function()
      local run = make { SHOP }
      local request = { tool = "echo", args = { { 1, { a = omni.json.null } }, nil, "x", nil, n = 4 } }
      local results = { n = select("#", run:resolve(run:prepare(request), request)),
        run:resolve(run:prepare(request), request) }
      assert.equal(4, results.n)
      assert.same({ 1, { a = omni.json.null } }, results[1])
      assert.is_nil(results[2])
      assert.equal("x", results[3])
      assert.equal(0, select("#", run:call { tool = "nop" }))
      local a, b = run:call(request), run:call(request)
      assert.are_not.equal(a, b)
      assert.equal(1723456789012345, run:call { tool = "echo", args = { 1723456789012345 } })
      assert.is_true(omni.json.is_array(run:call { tool = "echo", args = { omni.json.array() } }))
    end)

    it("waits for both while they wait for each other", function()
      local ns = files.namespace()
      local run = make { SHOP }
      local a = { tool = "meet", args = { ns, "a", "b" } }
      local b = { tool = "meet", args = { ns, "b", "a" } }
      local ha, hb = run:prepare(a), run:prepare(b)
      assert.equal("here", run:resolve(ha, a))
      assert.equal("here", run:resolve(hb, b))
      assert.equal(2, run:stats().adopted)
    end)
  end)

  describe("early work that nobody wants", function()
    -- Its worker is free again although its tool would wait for ever.
    local function freed()
      while manifest:stats().idle < manifest:stats().workers do omni.sleep(0) end
      return true
    end

    it("is cancelled by a write", function()
      local run = make { SHOP, { put = { call = function() end } } }
      run:prepare { tool = "forever" }
      run:call { tool = "put" }
      assert.is_true(freed())
    end)

    it("is cancelled by a claim with another request", function()
      local run = make { SHOP }
      run:resolve(run:prepare { tool = "forever" }, { tool = "lookup", args = { "a" } })
      assert.is_true(freed())
    end)

    it("is cancelled by its own timeout", function()
      local run = make { SHOP }
      for _, tool in ipairs { "quick", "dozes" } do
        local h = run:prepare { tool = tool }
        assert.is_true(freed())
        assert.equal("ETIMEDOUT", select(3, run:resolve(h, { tool = tool })))
      end
    end)

    it("has timed out even if it answered late, before somebody claimed it", function()
      local run = make { SHOP }
      local gate = held "spec:late"
      local h = run:prepare { tool = "busy", args = { "spec:late" } }
      assert(gate:wait())
      sys.advance(1)
      gate:remove()
      assert.is_true(freed())
      assert.equal("ETIMEDOUT", select(3, run:resolve(h, { tool = "busy", args = { "spec:late" } })))
    end)

    it("is cancelled on a worker whose loop has other things to do", function()
      local run = make { SHOP }
      assert.is_true(run:call { tool = "leaves" })
      run:cancel_handle(run:prepare { tool = "forever" })
      assert.is_true(freed())
      assert.equal("a!", run:call { tool = "lookup", args = { "a" } })
      assert.equal(1, manifest:stats().started)
    end)
  end)

  describe("ordinary work before early work", function()
    it("cancels the oldest early work for a call that finds no worker", function()
      local run = make { SHOP, workers = 2 }
      local early = run:prepare { tool = "forever" }
      assert.equal(1, early)
      local gate = held "spec:full"
      local other = omni.spawn(function() return run:call { tool = "gate", args = { "spec:full" } } end)
      assert(gate:wait())
      assert.equal("a!", run:call { tool = "lookup", args = { "a" } })
      assert.equal(1, run:stats().preempted)
      gate:remove()
      assert.equal("spec:full", other:join())
    end)

    it("calls in place what was cancelled for that", function()
      local slow = true
      local run = make { SHOP, { read = { allow_early_read = true, max_in_flight = 2, call = function(ctx, key)
        if slow then ctx:sleep(1e6) end
        return key
      end } } }
      local h = run:prepare { tool = "read", args = { 1 } }
      local other = omni.spawn(function() run:call { tool = "read", args = { 2 } } end)
      omni.sleep(0)
      slow = false
      assert.equal(3, run:call { tool = "read", args = { 3 } }) -- both slots were taken: one is early work's
      assert.equal(1, run:stats().preempted)
      assert.equal(1, run:resolve(h, { tool = "read", args = { 1 } }))
      assert.equal("read preempted", steps(run, "resolve")[1])
      run:cancel()
      other:join()
    end)

    it("does not cancel what has been claimed", function()
      local run = make { SHOP, workers = 2 }
      local gate = held "spec:claimed"
      local request = { tool = "gate", args = { "spec:claimed" } }
      local h = run:prepare(request)
      local claimed = omni.spawn(function() return run:resolve(h, request) end)
      assert(gate:wait())
      local other = omni.spawn(function() return run:call(request) end)
      while run:stats().active < 2 do omni.sleep(0) end
      local third = omni.spawn(function() return run:call { tool = "lookup", args = { "c" } } end)
      while manifest:stats().queued < 1 do omni.sleep(0) end
      assert.equal(0, run:stats().preempted)
      gate:remove()
      assert.equal("spec:claimed", claimed:join())
      assert.equal("spec:claimed", other:join())
      assert.equal("c!", third:join())
    end)
  end)

  describe("the end of a run", function()
    it("gives a cancellation to who waits and to who comes later", function()
      local run = make { SHOP }
      local h = run:prepare { tool = "forever" }
      local waiter = omni.spawn(function() return run:resolve(h, { tool = "forever" }) end)
      while run:stats().pending > 0 do omni.sleep(0) end
      run:cancel()
      assert.same({ nil, "ECANCELED: cancelled", "ECANCELED" }, { waiter:join() })
      assert.equal("ECANCELED", select(3, run:call { tool = "lookup", args = { "a" } }))
      assert.equal(0, run:prepare { tool = "lookup", args = { "a" } })
      assert.same({}, run:logical())
      run:close()
      assert.equal(0, run:stats().active)
    end)

    it("does not make who waits wait for a tool that ignores its cancel", function()
      local run = make { SHOP }
      local late = open_run { timeout = 0.02 }
      local gate = held "spec:deaf"
      local request = { tool = "gate", args = { "spec:deaf" } }
      local h = run:prepare(request)
      local waiter = omni.spawn(function() return run:resolve(h, request) end)
      assert(gate:wait())
      assert.equal("EDEADLINE", select(3, late:call(request)))
      run:cancel()
      assert.equal("ECANCELED", select(3, waiter:join()))
      assert.equal(1, run:stats().active)
      gate:remove()
    end)

    it("ends with its deadline", function()
      make { SHOP }
      local run = open_run { timeout = 0.02 }
      local h = run:prepare { tool = "forever" }
      assert.equal("EDEADLINE", select(3, run:resolve(h, { tool = "forever" })))
      assert.equal("EDEADLINE", select(3, run:call { tool = "lookup", args = { "a" } }))
      assert.equal(0, run:prepare { tool = "lookup", args = { "a" } })
    end)

    it("closes after every worker has let go of it", function()
      local run = make { SHOP }
      run:prepare { tool = "forever" }
      local gate = held "spec:close"
      run:prepare { tool = "gate", args = { "spec:close" } }
      assert(gate:wait())
      local closed
      local closer = omni.spawn(function()
        run:close()
        closed = run:stats().active
      end)
      while run:stats().active > 1 do omni.sleep(0) end -- the one that heeds its cancel
      assert.is_nil(closed)
      gate:remove()
      closer:join()
      assert.equal(0, closed)
      assert.equal("ECLOSED", select(3, run:call { tool = "lookup", args = { "a" } }))
      assert.equal(2, run:stats().cancelled)
      run:close()
    end)

    it("names a tool that ignores its cancel, once a second, and stays open", function()
      local run = make { SHOP }
      local gate = held "spec:stubborn"
      run:prepare { tool = "gate", args = { "spec:stubborn" } }
      assert(gate:wait())
      local lines = omni.sink.new()
      omni.log.capture(function(record) lines:put(record) end)
      local closer = omni.spawn(function() run:close() end)
      local first = lines:get_batch()[1]
      assert.equal("gate", first.tools)
      assert.equal(1, run:stats().active)
      gate:remove()
      closer:join()
      omni.log.release()
      lines:close()
    end)

    it("cancels the later handles of a group when one has failed", function()
      local run = make { SHOP }
      local first = run:prepare { tool = "fail", args = { "no" } }
      local second = run:prepare { tool = "forever" }
      assert.equal("ERUN", select(3, run:resolve(first, { tool = "fail", args = { "no" } })))
      run:cancel_handle(second)
      assert.equal(0, run:stats().pending)
      assert.equal(1, run:stats().cancelled)
      assert.same({ "forever cancelled" }, steps(run, "cancel"))
    end)

    it("holds no worker once it is closed, even while somebody holds the run", function()
      local testing = require "omni.testing"
      local before = testing.snapshot()
      local run = make { SHOP }
      assert.equal("a!", run:call { tool = "lookup", args = { "a" } })
      run:close()
      manifest:close()
      assert.same({}, testing.settle(before, 20))
      assert.equal(1, run:stats().calls)
    end)

    it("is forgotten unclosed without leaving anything", function()
      make { SHOP }
      local run = plm.open_run { manifest = manifest }
      run:prepare { tool = "forever" }
      run = nil -- luacheck: ignore
    end)
  end)

  describe("tools", function()
    it("wake on cancel wherever they wait", function()
      local run = make { SHOP, { inline = { allow_early_read = true, call = function(ctx)
        local sink = omni.sink.new()
        local ok, err = pcall(sink.get_batch, sink)
        sink:close()
        assert(not ok and ctx:cancelled())
        error(err, 0)
      end } } }
      run:prepare { tool = "waits", args = { files.namespace() } }
      run:prepare { tool = "inline" }
      while run:stats().active < 2 do omni.sleep(0) end
      omni.sleep(0)
      run:close()
      assert.equal(0, run:stats().active)
    end)

    it("know when they have to be done", function()
      local deadlines = {}
      make { { t = { timeout = 5, call = function(ctx) deadlines[#deadlines + 1] = ctx:deadline() or "none" end },
        free = { call = function(ctx) deadlines[#deadlines + 1] = ctx:deadline() or "none" end } } }
      local run = open_run { timeout = 1 }
      run:call { tool = "t" }
      open[1]:call { tool = "t" }
      open[1]:call { tool = "free" }
      assert.is_true(deadlines[1] <= omni.now() + 1)
      assert.is_true(deadlines[2] > omni.now() + 3 and deadlines[2] <= omni.now() + 5)
      assert.equal("none", deadlines[3])
    end)

    it("time out, where they wait and where they do not", function()
      local run = make { SHOP }
      assert.same({ nil, "ETIMEDOUT: tool quick did not end in time", "ETIMEDOUT" }, { run:call { tool = "quick" } })
      local h = run:prepare { tool = "quick" }
      assert.equal("ETIMEDOUT", select(3, run:resolve(h, { tool = "quick" })))
      local gate = held "spec:busy"
      assert.equal("ETIMEDOUT", select(3, run:call { tool = "busy", args = { "spec:busy" } }))
      assert.equal(1, run:stats().active) -- its worker is still held
      gate:remove()
      run:close()
    end)

    it("answer for what goes wrong in them, and the pool goes on", function()
      local run = make { SHOP }
      assert.same({ nil, "ERUN: plain words", "ERUN" }, { run:call { tool = "fail", args = { "plain words" } } })
      assert.matches("^ERUN: .*spec/fixtures/tools/shop.lua:%d+: attempt to index",
        (select(2, run:call { tool = "crash", args = { "x" } })))
      assert.matches("^EJSON: tool unsendable: result 2 cannot travel", (select(2, run:call { tool = "unsendable" })))
      assert.same({ nil, "EWORKER: tool die ended its worker", "EWORKER" }, { run:call { tool = "die" } })
      assert.equal("a!", run:call { tool = "lookup", args = { "a" } })
      assert.equal(1, manifest:stats().died)
    end)

    it("may be taken down by a task that they started", function()
      local run = make { SHOP }
      local process = require("spec.support.run").code([[
        local plm = require "omni.plm"
        local m = plm.manifest { "spec.fixtures.tools.shop" }
        local run = plm.open_run { manifest = m }
        print(select(3, run:call { tool = "die_later" }), (run:call { tool = "lookup", args = { "a" } }))
        run:close()
      ]])
      assert.equal("EWORKER\ta!\n", process.stdout)
      assert.matches("in a task of its own", process.stderr)
      assert.equal(0, process.code)
      run:close()
    end)

    it("run one at a time on the worker that ended last", function()
      local run = make { SHOP }
      local one, two = held "spec:one", held "spec:two"
      local h1 = run:prepare { tool = "gate", args = { "spec:one" } }
      local h2 = run:prepare { tool = "gate", args = { "spec:two" } }
      assert(one:wait())
      assert(two:wait())
      two:remove()
      run:resolve(h2, { tool = "gate", args = { "spec:two" } })
      one:remove()
      run:resolve(h1, { tool = "gate", args = { "spec:one" } })
      local last = worker_of(run, 1)
      for _ = 1, 3 do run:call { tool = "count" } end
      assert.equal(3, (run:call { tool = "count" }) - 1)
      for i = 5, 8 do assert.equal(last, worker_of(run, i)) end
      assert.equal(2, manifest:stats().started)
    end)

    it("run inline on the script's own loop and see what it sees", function()
      local seen = {}
      local run = make { { note = { call = function(_, x) seen[#seen + 1] = x end } } }
      run:call { tool = "note", args = { "a" } }
      assert.same({ "a" }, seen)
      assert.equal(0, manifest:stats().started)
    end)

    it("get their arguments checked, by path", function()
      local run = make { SHOP, { two = { call = function(_, a, b) return a, b end, params = {
        { type = "string", enum = { "x", "y" } },
        { type = { "array", "null" }, items = { type = "number", maximum = 3 } },
      } } } }
      local function says(message, tool, ...)
        assert.equal(message, (select(2, run:call { tool = tool, args = { n = select("#", ...), ... } })))
      end
      assert.equal(3, run:call { tool = "order", args = { { n = 3 } } })
      says("EINVAL: tool order: argument 1 is missing: an object is needed", "order")
      says("EINVAL: tool order: argument 1.n is missing", "order", {})
      says("EINVAL: tool order: argument 1.n must be an integer, not a number", "order", { n = 1.5 })
      says("EINVAL: tool order: argument 1.n must be at least 1, not 0", "order", { n = 0 })
      says('EINVAL: tool two: argument 1 must be one of "x", "y", not "z"', "two", "z")
      says("EINVAL: tool two: argument 2[2] must be at most 3, not 4", "two", "x", { 1, 4 })
      says("EINVAL: tool two: argument 2[1] must be a number, not a string", "two", "x", { "1" })
      assert.same({ "x", {} }, { run:call { tool = "two", args = { "x", {} } } })
      assert.equal("y", run:call { tool = "two", args = { "y" } })
    end)
  end)

  describe("a manifest", function()
    local function says(pattern, items)
      local ok, err = pcall(plm.manifest, items)
      assert.is_false(ok)
      assert.matches(pattern, err)
      assert.matches("plm_run_spec.lua:%d+: ", err)
    end
    local function f() end

    it("knows its tools", function()
      make { SHOP, { ["time.now"] = { call = f } } }
      assert.is_true(manifest:has "time.now")
      assert.is_true(manifest:early "db.get")
      assert.is_false(manifest:early "time.now")
      assert.is_false(manifest:early "nobody")
      for i, name in ipairs(manifest:names()) do assert.equal(i - 1, manifest:tool_id(name)) end
      assert.is_nil(manifest:tool_id "nobody")
      assert.equal("k", open[1]:call { tool = "db.get", args = { "k" } })
    end)

    it("refuses what it does not know, with place and nearest name", function()
      says('inline tools %(item 1%): tool "a": unknown key "time_out" %(did you mean "timeout"%?%)',
        { { a = { call = f, time_out = 1 } } })
      says('tool "a": key "call" is missing', { { a = {} } })
      says('tool "a": key "timeout" must be a number above 0', { { a = { call = f, timeout = 0 } } })
      says('tool "a": key "max_in_flight" must be at least 1', { { a = { call = f, max_in_flight = 0 } } })
      says('plm.manifest: unknown key "worker" %(did you mean "workers"%?%)', { worker = 1 })
      says("item 1 must be a module's name or a table of tools, not number", { 1 })
      says('tool module "spec.fixtures.tools.shopp" cannot be loaded', { "spec.fixtures.tools.shopp" })
      says('params: unknown key "typ" %(did you mean "type"%?%)', { { a = { call = f, params = { typ = "string" } } } })
      says('params.properties.n: key "type" names no type: strin %(did you mean "string"%?%)',
        { { a = { call = f, params = { type = "object", properties = { n = { type = "strin" } } } } } })
    end)

    it("refuses names that clash or cannot be called", function()
      says('tool "lookup" is given by tool module "spec.fixtures.tools.shop" already',
        { SHOP, { lookup = { call = f } } })
      says('tool "db.get" .* clashes with tool "db"', { SHOP, { db = { call = f } } })
      says('tool name "a%-b" must be names', { { ["a-b"] = { call = f } } })
      says('tool name "a.end" contains the keyword end', { { ["a.end"] = { call = f } } })
      says('tool name "string.x" would hide string', { { ["string.x"] = { call = f } } })
    end)

    it("opens no run once it is closed, and serves those that are open", function()
      local run = make { SHOP, { here = { call = function() return "here" end } } }
      manifest:close()
      assert.equal("ECLOSED", select(3, plm.open_run { manifest = manifest }))
      assert.equal("a!", run:call { tool = "lookup", args = { "a" } })
      assert.equal("here", run:call { tool = "here" })
      run:close()
    end)

    it("refuses requests and options that it does not know", function()
      local run = make { SHOP }
      for pattern, call in pairs {
        ['run:prepare: unknown key "arg" %(did you mean "args"%?%)'] = function()
          run:prepare { tool = "x", arg = {} }
        end,
        ['run:resolve: key "tool" is missing'] = function() run:call {} end,
        ["argument 1 %(handle%) must be what prepare gave"] = function() run:resolve("1", { tool = "x" }) end,
        ['plm.open_run: key "manifest" must be made by plm.manifest'] = function() plm.open_run { manifest = {} } end,
        ['unknown key "budget"'] = function() plm.open_run { manifest = manifest, budget = 1 } end,
      } do
        local ok, err = pcall(call)
        assert.is_false(ok)
        assert.matches(pattern, err)
      end
    end)
  end)

  it("counts for the process what its pools do", function()
    local function each(fn)
      for _, entry in ipairs(omni.metrics.snapshot()) do
        if entry.name:find "^omni_plm_" then fn(entry.labels.pool, entry) end
      end
    end
    local others = {}
    each(function(pool) others[pool] = true end)
    local run = make { SHOP, workers = 2 }
    run:resolve(run:prepare { tool = "lookup", args = { "a" } }, { tool = "lookup", args = { "a" } })
    run:call { tool = "die" }
    run:prepare { tool = "forever" }
    local gate = held "spec:metrics"
    local other = omni.spawn(function() run:call { tool = "gate", args = { "spec:metrics" } } end)
    assert(gate:wait())
    run:call { tool = "nop" }
    gate:remove()
    other:join()
    local counted = {}
    each(function(pool, entry) if not others[pool] then counted[entry.name] = entry.value end end)
    assert.is_true(counted.omni_plm_jobs_total >= 4) -- what was preempted had started, or had not
    counted.omni_plm_jobs_total = nil
    assert.same({
      omni_plm_workers = 2, omni_plm_workers_started_total = 3, omni_plm_workers_died_total = 1,
      omni_plm_prepared_total = 2, omni_plm_adopted_total = 1, omni_plm_preempted_total = 1,
    }, counted)
  end)

  describe("a script that ends", function()
    local run_code = require("spec.support.run").code
    local HEAD = [[
      local plm, sched = require "omni.plm", require "omni.native.sched"
      local m = plm.manifest { "spec.fixtures.tools.shop", {
        stuck = { allow_early_read = true, call = function() sched.park "nothing" end },
      } }
      local run = plm.open_run { manifest = m }
      run:prepare { tool = "forever" }
      run:prepare { tool = "stuck" }
      while run:stats().active < 2 do require("omni").sleep(0) end
    ]]

    it("takes its tools with it when it fails", function()
      local process = run_code(HEAD .. 'error("over", 0)')
      assert.equal(1, process.code)
      assert.matches("over", process.stderr)
    end)

    it("takes its tools with it when it exits", function()
      assert.equal(5, run_code(HEAD .. "os.exit(5)").code)
    end)

    it("is told that an inline tool waits for ever", function()
      local process = run_code(HEAD .. 'run:call { tool = "stuck" }')
      assert.equal(1, process.code)
      assert.matches("waits in run:resolve", process.stderr)
      assert.matches("waits in nothing", process.stderr)
    end)
  end)

  it("does not begin where it cannot wait", function()
    local called = 0
    local run = make { { note = { call = function() called = called + 1 end } } }
    local ok, err = pcall(table.sort, { 2, 1 }, function() run:call { tool = "note" } end)
    assert.is_false(ok)
    assert.matches("run:resolve cannot suspend here", err)
    assert.equal(0, run:stats().calls)
    assert.equal(0, called)
  end)

  it("keeps times and places of what it did", function()
    local run = make { SHOP }
    local request = { tool = "lookup", args = { "a" }, line = 12 }
    run:resolve(run:prepare(request), request)
    local prepared, resolved = unpack(run:trace())
    assert.equal(12, prepared.line)
    assert.equal(1, prepared.handle)
    assert.equal("prepare", prepared.op)
    assert.equal("resolve", resolved.op)
    assert.equal('["a"]', resolved.args)
    assert.is_true(prepared.t_prepare <= prepared.t_start and prepared.t_start <= prepared.t_end)
    assert.is_true(prepared.t_end <= resolved.t_resolve)
    assert.equal(prepared.worker, resolved.worker)
    assert.same({ { tool = "lookup", args = '["a"]' } }, run:logical())
  end)
end)
