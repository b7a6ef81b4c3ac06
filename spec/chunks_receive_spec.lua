local omni = require "omni"
local sys = require "omni.testing.sys"
local support = require "spec.support.chunk_adapters"

local BUILD = "spec.support.chunk_build"
local eventually, hold_lock = support.eventually, support.hold_lock

describe("chunk adapter", function()
  local a = support.setup(before_each, after_each)
  local new, pair, stored, receive, take, data_of, sent = a.new, a.pair, a.stored, a.receive, a.take, a.data_of, a.sent

  describe("as a receiver", function()
    it("registers a request once", function()
      local snd, rcv = pair()
      rcv:load_async "r"
      snd:save_async("r", 1, false)
      assert.same({ 1 }, data_of(take(rcv, "r", 1)))
      rcv:load_async "r" -- does not start over
      snd:save_async("r", 2, true)
      assert.same({ 2 }, data_of(receive(rcv, "r")))
      assert.equal(0, rcv:stats().registered)
    end)

    it("shows no request without news", function()
      local snd, rcv = pair()
      for _, req in ipairs { "a", "b", "c" } do rcv:load_async(req) end
      snd:save_async("b", 1, false)
      assert(rcv:wait { timeout = 20 })
      assert.same({ b = { { data = 1, finished = false } } }, rcv:poll_ready())
    end)

    it("delivers nothing of a registration that ended while RECV was between get and commit", function()
      local rule = sys.rule { op = "POINT", match = "chunk.before_commit", action = "hold" }
      local snd, rcv = pair()
      rcv:load_async "t"
      snd:save_async("t", "of the old registration", false)
      assert(rule:wait())
      rcv:cleanup_receiver "t"
      rcv:load_async "t"
      assert.same({}, rcv:poll_ready())
      rule:remove()
      eventually(function() return rcv:stats().stale == 1 end)
      assert.same({}, rcv:poll_ready())
      snd:cleanup_sender "t"
      snd:save_async("t", "of the new one", true)
      assert.same({ { data = "of the new one", finished = true } }, receive(rcv, "t"))
      assert.equal(1, rcv:stats().received)
    end)

    it("forgets by cleanup_receiver what was committed and not polled", function()
      local snd, rcv = pair()
      rcv:load_async "r"
      rcv:load_async "s"
      snd:save_async("r", 1, false)
      snd:save_async("s", 2, false)
      eventually(function() return rcv:stats().received == 2 end)
      rcv:cleanup_receiver "r"
      assert.same({ s = { { data = 2, finished = false } } }, rcv:poll_ready())
      snd:save_async("r", 3, false)
      sent(snd, 3)
      assert.is_true(stored "r_0_1") -- nobody reads it
    end)

    it("discards what is stored, so that nothing is left even if the sender is dead", function()
      local snd, rcv = pair()
      rcv:load_async "r"
      snd:save_async("r", 0, false)
      take(rcv, "r", 1)
      local rule = sys.rule { op = "POINT", match = "chunk.before_commit", action = "hold" }
      for i = 1, 6 do snd:save_async("r", i, false) end
      sent(snd, 7)
      assert(rule:wait())
      rcv:cleanup_receiver("r", true)
      rule:remove()
      assert.equal(0, a.conn:stats().live_segments)
    end)

    it("reports an envelope that is none, and then watches that request no more", function()
      local rcv = new { src_stage_id = "0" }
      rcv:load_async "r"
      assert(a.conn:put("r_0_0", "?"))
      local item = receive(rcv, "r")[1]
      assert.equal("EPROTOCOL", item.code)
      assert.is_nil(item.sender)
      assert.equal(0, rcv:stats().registered)
      assert(a.conn:put("r_0_1", "left"))
      rcv:cleanup_receiver("r", true)
      assert.equal(0, a.conn:stats().live_segments)
    end)

    it("takes a chunk whose lock a stranger held, though its release announces nothing", function()
      local snd, rcv = pair()
      snd:save_async("r", 1, true)
      sent(snd, 1)
      local release, close = hold_lock(a.conn:lock_path "r_0_0")
      rcv:load_async "r"
      eventually(function() return a.conn:stats().busy > 3 end)
      release()
      assert.same({ 1 }, data_of(receive(rcv, "r")))
      close()
    end)

    it("skips metadata of envelopes", function()
      local rcv = new { src_stage_id = "0" }
      rcv:load_async "r"
      assert(a.conn:put("r_0_0", "\1\1\3\0\0\0abcdata"))
      assert.same({ { data = "data", finished = true } }, receive(rcv, "r"))
    end)

    it("makes bytes that do not decode the chunk's error", function()
      local rcv = new { src_stage_id = "0" }
      rcv:load_async "r"
      assert(a.conn:put("r_0_0", "\3\1\0\0\0\0{"))
      local item = receive(rcv, "r")[1]
      assert.equal("ECODEC", item.code)
    end)
  end)

  describe("stop", function()
    local function prompt(adapter)
      local start = omni.now()
      adapter:stop()
      assert.is_true(omni.now() - start < 0.1, "stop took its time")
      adapter:stop()
    end

    it("tells the first who waits of a stop that came just before", function()
      local rcv = new { src_stage_id = "0" }
      local methods = require("omni.native.chunks").methods
      local stopped = methods._stopped
      methods._stopped = function(self)
        local was = stopped(self)
        self:stop() -- as another thread would, between the look and the first wait
        return was
      end
      local ok, err, code = rcv:wait { timeout = 5 }
      methods._stopped = stopped
      assert.is_nil(ok)
      assert.equal("ECLOSED", code, err)
    end)

    it("is prompt while SAVE and RECV sleep", function()
      local snd, rcv = pair()
      rcv:load_async "r"
      snd:save_async("x", 1, false)
      sent(snd, 1)
      prompt(snd)
      prompt(rcv)
      local _, _, code = snd:save_async("x", 2, true)
      assert.equal("ECLOSED", code)
      _, _, code = rcv:load_async "y"
      assert.equal("ECLOSED", code)
    end)

    for _, point in ipairs { "chunk.before_sleep", "chunk.before_build", "chunk.after_build", "chunk.after_put" } do
      it("is prompt while SAVE is held at " .. point, function()
        local rule = sys.rule { op = "POINT", match = point, action = "hold" }
        local snd = new { stage_id = "0", build_payload = BUILD }
        snd:save_async("r", "x", false)
        assert(rule:wait())
        prompt(snd)
        rule:remove()
      end)
    end

    it("is prompt while a build is blocked; its payload is dropped", function()
      local gate = os.tmpname()
      os.remove(gate)
      os.execute("mkfifo " .. gate)
      local held = assert(io.open(gate, "r+e"))
      local rule = sys.rule { op = "POINT", match = "chunk.after_build", action = "hold" }
      local snd = new { stage_id = "0", build_payload = BUILD }
      snd:save_async("r", { gate = gate, data = "x" }, false)
      eventually(function() return snd:stats().queued == 1 end)
      prompt(snd)
      held:write "go\n"
      held:flush()
      rule:wait(0.2)
      rule:remove()
      held:close()
      os.remove(gate)
      assert.is_false(stored "r_0_0")
    end)

    it("is prompt while SAVE is inside of a put, or waits for a lock, and RECV between get and commit", function()
      local inside = sys.rule { op = "PWRITEV", action = "hold" }
      local snd = new { stage_id = "0" }
      snd:save_async("r", 1, false)
      assert(inside:wait())
      prompt(snd)
      inside:remove()
      sys.rule { op = "FLOCK", action = "fail", errno = "EAGAIN", times = math.huge }
      local parked = new { stage_id = "1" }
      parked:save_async("r", 1, false)
      eventually(function() return parked:stats().put_retries > 2 end)
      prompt(parked)
      sys.reset()
      local commit = sys.rule { op = "POINT", match = "chunk.before_commit", action = "hold" }
      local out, rcv = pair { stage_id = "2" }
      rcv:stop()
      rcv = new { src_stage_id = "2" }
      rcv:load_async "r"
      out:save_async("r", 1, false)
      assert(commit:wait())
      prompt(rcv)
      commit:remove()
    end)

    it("wakes SAVE that is about to sleep when a save comes at that moment", function()
      local rule = sys.rule { op = "POINT", match = "chunk.before_sleep", action = "hold" }
      local snd, rcv = pair()
      rcv:load_async "r"
      snd:save_async("r", 1, false)
      assert(rule:wait())
      snd:save_async("r", 2, true)
      rule:remove()
      assert.same({ 1, 2 }, data_of(receive(rcv, "r")))
    end)
  end)
end)
