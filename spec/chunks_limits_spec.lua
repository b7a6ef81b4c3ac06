local omni = require "omni"
local sys = require "omni.testing.sys"
local support = require "spec.support.chunk_adapters"
local eventually = support.eventually

describe("chunk adapter", function()
  local a = support.setup(before_each, after_each)
  local new, pair, stored, take, data_of, sent = a.new, a.pair, a.stored, a.take, a.data_of, a.sent

  describe("with a window", function()
    -- The most that was unconsumed at any time, by the counters of both ends.
    local function run(window, count, budget)
      local snd, rcv = pair { window = window, budget = budget }
      local most, saved, used = 0, 0, 0
      rcv:load_async "r"
      local producer = omni.spawn(function()
        for i = 1, count do
          assert(snd:credit("r", 20))
          saved = saved + 1
          most = math.max(most, saved - used)
          snd:save_async("r", i, i == count)
        end
      end)
      local got = {}
      while #got < count do
        rcv:want("r", 1)
        assert(rcv:wait { timeout = 20 })
        for _, item in ipairs(rcv:poll_ready().r) do
          got[#got + 1] = item.data
          used = used + 1
          rcv:consumed("r", 1)
        end
      end
      producer:join()
      for i = 1, count do assert.equal(i, got[i]) end
      return most, snd
    end

    for _, window in ipairs { 1, 2, 16 } do
      it(("of %d never has more unconsumed"):format(window), function()
        local most, snd = run(window, 200)
        -- With 1 a chunk that goes straight to a reader that waits for it gives its credit back at once.
        assert.is_true(most <= math.max(window, 2), ("%d unconsumed"):format(most))
        assert.is_true(snd:stats().credit_waits > 0)
      end)
    end

    it("sees credit that came between the first look and the first wait", function()
      local snd, rcv = pair { window = 1 }
      snd:save_async("r", 1, false)
      sent(snd, 1)
      assert.is_false(snd:_credit "r") -- from now on consumption is noticed; nobody is there to be woken
      rcv:load_async "r"
      rcv:want("r", 1)
      eventually(function() return snd:stats().outstanding == 0 end)
      assert.is_true(snd:_credit_wait("r", 0, 20))
      assert.is_true(snd:_credit "r")
    end)

    it("stops a sender whose reader consumes nothing, and no other request", function()
      local snd, rcv = pair { window = 4 }
      rcv:load_async "slow"
      local n = 0
      while snd:_credit "slow" do
        n = n + 1
        snd:save_async("slow", n, false)
        sent(snd, n)
        eventually(function() return rcv:stats().received >= math.min(n, 2) end)
      end
      assert.equal(4, n) -- two in memory, two stored
      assert.equal(2, rcv:stats().received)
      local err, _, code = snd:credit("slow", 0.01)
      assert.is_nil(err)
      assert.equal("ETIMEDOUT", code)
      rcv:load_async "quick"
      assert.is_true(snd:credit("quick", 1))
      snd:save_async("quick", 1, true)
      eventually(function() return rcv:stats().received == 3 end)
      rcv:poll_ready()
      rcv:consumed("slow", 1)
      assert.is_true(snd:credit("slow", 20))
    end)

    it("of 1 is taken only when it is wanted", function()
      local snd, rcv = pair { window = 1 }
      rcv:load_async "r"
      assert.is_true(snd:credit "r")
      snd:save_async("r", 1, false)
      sent(snd, 1)
      omni.sleep(0.01)
      assert.equal(0, rcv:stats().received)
      assert.is_true(stored "r_0_0")
      assert.is_false(snd:_credit "r")
      rcv:want "r"
      assert.same({ 1 }, data_of(take(rcv, "r", 1)))
      assert.is_true(snd:credit("r", 20))
    end)

    it("costs nobody a wake while nobody waits for credit", function()
      local snd, rcv = pair { window = 16 }
      rcv:load_async "r"
      local adds = sys.count "INOTIFY_ADD"
      for i = 1, 100 do
        assert.is_true(snd:credit "r")
        snd:save_async("r", i, false)
        take(rcv, "r", 1)
        rcv:consumed "r"
      end
      assert.equal(0, snd:stats().credit_waits)
      assert.is_true(sys.count "INOTIFY_ADD" - adds <= 1)
    end)

    it("wakes who waits for credit when the request is cleaned up, and when the adapter stops", function()
      local snd = new { stage_id = "0", window = 1 }
      local results = {}
      for i = 1, 2 do
        snd:save_async("r", 1, false)
        sent(snd, i)
        local task = omni.spawn(function() results[i] = { snd:credit("r", 20) } end)
        eventually(function() return snd:stats().credit_waits == i end)
        if i == 1 then snd:cleanup_sender "r" else snd:stop() end
        task:join()
      end
      assert.same({ true }, results[1])
      assert.equal("ECLOSED", results[2][3])
    end)
  end)

  describe("with a budget", function()
    it("lets requests send together no more than that, in their turn, and each at least one chunk", function()
      local snd, rcv = pair { budget = 4000 }
      local order, most = {}, 0
      for i = 1, 4 do rcv:load_async("r" .. i) end
      local tasks = {}
      for i = 1, 4 do
        tasks[i] = omni.spawn(function()
          for n = 1, 30 do
            assert(snd:credit("r" .. i, 20, 1000))
            order[#order + 1] = i
            snd:save_async("r" .. i, ("x"):rep(1000), n == 30)
            most = math.max(most, snd:stats().outstanding_bytes)
          end
        end)
      end
      local finished = 0
      while finished < 4 do
        assert(rcv:wait { timeout = 20 })
        for _, items in pairs(rcv:poll_ready()) do
          for _, item in ipairs(items) do finished = finished + (item.finished and 1 or 0) end
        end
      end
      for _, task in ipairs(tasks) do task:join() end
      assert.is_true(most <= 4000 + 4 * 1006, most .. " bytes")
    end)

    it("lets a chunk larger than the budget pass alone", function()
      local snd, rcv = pair { budget = 100 }
      rcv:load_async "r"
      assert.is_true(snd:credit("r", 20, 5000))
      snd:save_async("r", ("x"):rep(5000), false)
      assert.is_false(snd:_credit("r", 10))
      take(rcv, "r", 1)
      assert.is_true(snd:credit("r", 20, 5000))
    end)

    it("is freed by what other requests consume", function()
      local snd, rcv = pair { budget = 2000 }
      snd:save_async("a", ("x"):rep(1900), false)
      snd:save_async("b", "small", false)
      sent(snd, 2)
      local granted
      local task = omni.spawn(function() granted = snd:credit("b", 20, 1000) end)
      eventually(function() return snd:stats().credit_waits == 1 end)
      assert.is_nil(granted)
      rcv:load_async "a" -- b itself is read by nobody
      take(rcv, "a", 1)
      task:join()
      assert.is_true(granted)
    end)

    it("is not kept by one who gave up", function()
      local snd, rcv = pair { budget = 1000 }
      snd:save_async("a", ("x"):rep(990), false)
      snd:save_async("b", "b", false)
      snd:save_async("c", "c", false)
      sent(snd, 3)
      local _, _, code = snd:credit("b", 0.01, 900)
      assert.equal("ETIMEDOUT", code)
      rcv:load_async "a"
      take(rcv, "a", 1)
      assert.is_true(snd:credit("c", 20, 900))
    end)
  end)
end)
