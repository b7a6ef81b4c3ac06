local uv = require "luv"
local omni = require "omni"
local sys = require "omni.testing.sys"
local support = require "spec.support.chunk_adapters"

local BUILD = "spec.support.chunk_build"
local eventually, hold_lock = support.eventually, support.hold_lock

describe("chunk adapter", function()
  local a = support.setup(before_each, after_each)
  local new, pair, stored, receive, take, data_of, sent = a.new, a.pair, a.stored, a.receive, a.take, a.data_of, a.sent

  describe("as a sender", function()
    it("never waits in save_async, whatever SAVE does", function()
      local rule = sys.rule { op = "PWRITEV", action = "hold" }
      local snd = new { stage_id = "0" }
      snd:save_async("r", "held", false)
      assert(rule:wait())
      local start = omni.now()
      for i = 1, 1000 do snd:save_async("r", i, false) end
      assert.is_true(omni.now() - start < 1)
      assert.equal(1001, snd:stats().queued)
      rule:remove()
      sent(snd, 1001)
    end)

    it("advances the id only after a put that succeeded", function()
      local rule = sys.rule { op = "PWRITEV", action = "fail", errno = "ENOSPC", skip = 1, times = 2 }
      local snd, rcv = pair()
      rcv:load_async "r"
      for i = 1, 4 do snd:save_async("r", i, i == 4) end
      assert.same({ 1, 2, 3, 4 }, data_of(receive(rcv, "r")))
      assert.equal(2, rule:hits())
      assert.equal(2, snd:stats().put_retries)
      sent(snd, 4)
      assert.equal(0, snd:stats().put_failures)
    end)

    it("skips nil payloads unless they are final", function()
      local snd, rcv = pair { build_payload = BUILD }
      rcv:load_async "n"
      snd:save_async("n", { data = "x" }, false)
      snd:save_async("n", {}, false)
      snd:save_async("n", nil, false)
      snd:save_async("n", { data = "y" }, false)
      snd:save_async("n", {}, true)
      assert.same({ { data = "x", finished = false }, { data = "y", finished = false }, { finished = true } },
        receive(rcv, "n"))
      assert.equal(2, snd:stats().skipped)
      sent(snd, 3)
    end)

    it("tells the builder request and final, in one state for all its chunks", function()
      local snd, rcv = pair { build_payload = BUILD }
      rcv:load_async "b"
      snd:save_async("b", { tell = true }, false)
      snd:save_async("b", { tell = true }, true)
      assert.same({ { req = "b", is_final = false, builds = 1 }, { req = "b", is_final = true, builds = 2 } },
        data_of(receive(rcv, "b")))
    end)

    it("drops all but the final of a request that is cancelled before its first save", function()
      local snd, rcv = pair()
      rcv:load_async "c"
      snd:cancel_sender "c"
      snd:save_async("c", 1, false)
      snd:save_async("c", 2, true)
      assert.same({ { finished = true } }, receive(rcv, "c"))
      eventually(function() return snd:stats().senders == 0 end)
      rcv:load_async "c" -- the mark went with the final: the id can be used again
      snd:save_async("c", 3, true)
      assert.same({ { data = 3, finished = true } }, receive(rcv, "c"))
    end)

    it("begins anew with chunk 0 after the final, even where more is saved at once", function()
      local rule = sys.rule { op = "PWRITEV", action = "hold" }
      local snd, rcv = pair()
      snd:save_async("a", 1, true)
      assert(rule:wait())
      rcv:load_async "a"
      snd:save_async("b", 0, true)
      rule:remove()
      assert.same({ 1 }, data_of(receive(rcv, "a")))
      snd:save_async("a", 2, false)
      snd:save_async("a", 3, true)
      rcv:load_async "a"
      assert.same({ 2, 3 }, data_of(receive(rcv, "a")))
    end)

    for _, where in ipairs { "always", "of one request" } do
      it("reports a put that fails " .. where .. ", and drops what comes later", function()
        local match = where == "always" and a.namespace or a.conn:shm_name "bad_0_1"
        sys.rule { op = "OPENAT", match = match, action = "fail", errno = "ENOSPC", times = math.huge }
        local snd, rcv = pair { put_timeout = 0.05 }
        for i = 0, 3 do snd:save_async("bad", i, i == 3) end
        local item = receive(snd, "bad")[1]
        assert.equal("EPUT", item.code)
        assert.is_true(item.sender)
        assert.matches('^EPUT: chunk %d of request "bad" could not be stored: ENOSPC', item.error)
        assert.is_nil(item.finished)
        assert.equal(1, snd:stats().put_failures)
        local _, _, code = snd:credit "bad"
        assert.equal("EPUT", code)
        assert.is_true(snd:save_async("bad", "more", true)) -- dropped until cleanup
        assert.same({}, snd:poll_ready())
        sys.reset()
        snd:cleanup_sender "bad"
        snd:save_async("bad", "again", true)
        rcv:load_async "bad"
        assert.same({ { data = "again", finished = true } }, receive(rcv, "bad"))
      end)
    end

    it("goes on with other requests while one is parked", function()
      sys.rule {
        op = "OPENAT", match = a.conn:shm_name "stuck_0_0", action = "fail", errno = "ENOSPC", times = math.huge,
      }
      local snd, rcv = pair()
      snd:save_async("stuck", "first", false)
      snd:save_async("stuck", "second", true)
      for i = 1, 20 do
        rcv:load_async("free" .. i)
        snd:save_async("free" .. i, i, true)
      end
      local got = 0
      while got < 20 do
        assert(rcv:wait { timeout = 20 })
        for _ in pairs(rcv:poll_ready()) do got = got + 1 end
      end
      assert.equal(2, snd:stats().queued) -- the second waits behind the first
      assert.is_false(stored "stuck_0_1")
      sys.reset()
      rcv:load_async "stuck"
      assert.same({ "first", "second" }, data_of(receive(rcv, "stuck")))
    end)

    it("waits for a lock that somebody holds, without holding up others", function()
      local release, close = hold_lock(a.conn:lock_path "l_0_0")
      local snd, rcv = pair()
      snd:save_async("l", 1, false)
      snd:save_async("l", 2, true)
      rcv:load_async "l"
      rcv:load_async "other"
      snd:save_async("other", "passes", true)
      assert.same({ "passes" }, data_of(receive(rcv, "other")))
      eventually(function() return snd:stats().put_retries > 4 end)
      assert.equal(2, snd:stats().queued)
      release()
      assert.same({ 1, 2 }, data_of(receive(rcv, "l")))
      close()
    end)

    it("takes back by cleanup_sender the lock file of a put that never got its lock", function()
      local rule = sys.rule { op = "FLOCK", action = "fail", errno = "EAGAIN", times = math.huge }
      local snd = new { stage_id = "0" }
      snd:save_async("l", 1, true)
      eventually(function() return snd:stats().put_retries > 2 end)
      assert.is_not_nil(uv.fs_stat(a.conn:lock_path "l_0_0"))
      rule:remove()
      snd:cleanup_sender "l"
      eventually(function() return uv.fs_stat(a.conn:lock_path "l_0_0") == nil end)
      assert.is_false(stored "l_0_0")
    end)

    it("reports a build that raises, and goes on with others", function()
      local snd, rcv = pair { build_payload = BUILD }
      snd:save_async("r", { raise = "the reason" }, false)
      snd:save_async("r", { data = 1 }, true)
      local item = receive(snd, "r")[1]
      assert.equal("ERUN", item.code)
      assert.is_true(item.sender)
      assert.matches("the reason", item.error, 1, true)
      rcv:load_async "other"
      snd:save_async("other", "fine", true)
      assert.same({ "fine" }, data_of(receive(rcv, "other")))
      assert.is_false(stored "r_0_0")
    end)

    it("reports a builder that is no module, no function, or that suspends", function()
      for module, text in pairs {
        ["spec.support.no_such"] = "no_such", ["spec.support.run"] = "must return a function", [BUILD] = "cannot",
      } do
        local snd = new { stage_id = "0", build_payload = module }
        snd:save_async("r", { suspend = true }, true)
        local item = receive(snd, "r")[1]
        assert.equal("ERUN", item.code)
        assert.matches(text, item.error, 1, true)
      end
    end)

    it("removes by cleanup_sender what is queued, parked and stored, of this request alone", function()
      local snd, rcv = pair()
      for i = 1, 3 do
        snd:save_async("req-1", i, false)
        snd:save_async("req-1_0", i, i == 3) -- whose keys begin like those of req-1
      end
      sent(snd, 6)
      assert.equal(3, snd:cleanup_sender "req-1")
      assert.equal(0, snd:cleanup_sender "req-1")
      assert.is_false(stored "req-1_0_0" or stored "req-1_0_2")
      rcv:load_async "req-1_0"
      assert.same({ 1, 2, 3 }, data_of(receive(rcv, "req-1_0")))
    end)

    it("removes what is unread after the final, too, and nothing of requests with longer names", function()
      local snd = new { stage_id = "0" }
      snd:save_async("r", 1, false)
      snd:save_async("r", 2, true)
      snd:save_async("r_0", 3, true)
      sent(snd, 3)
      assert.equal(2, snd:cleanup_sender "r")
      assert.equal(0, snd:cleanup_sender "r")
      assert.is_true(stored "r_0_0_0")
      assert.equal(1, snd:cleanup_sender "r_0")
    end)

    it("removes only what is unread", function()
      local snd, rcv = pair()
      rcv:load_async "r"
      for i = 1, 3 do snd:save_async("r", i, false) end
      take(rcv, "r", 3)
      rcv:cleanup_receiver "r"
      snd:save_async("r", 4, false)
      snd:save_async("r", 5, false)
      sent(snd, 5)
      assert.equal(2, snd:cleanup_sender "r")
    end)

    it("leaves nothing of a put that is under way when its request is cleaned up", function()
      local rule = sys.rule { op = "POINT", match = "chunk.after_put", action = "hold" }
      local snd = new { stage_id = "0" }
      snd:save_async("r", "old", false)
      assert(rule:wait())
      snd:cleanup_sender "r"
      assert.is_true(stored "r_0_0")
      rule:remove()
      eventually(function() return not stored "r_0_0" end)
    end)

    it("begins anew after that", function()
      local rule = sys.rule { op = "POINT", match = "chunk.after_put", action = "hold" }
      local snd, rcv = pair()
      snd:save_async("r", "old", false)
      assert(rule:wait())
      assert.is_true(stored "r_0_0")
      snd:cleanup_sender "r"
      snd:save_async("r", "new", true)
      rule:remove()
      sent(snd, 1) -- the new one: the old one is undone and does not count
      rcv:load_async "r"
      assert.same({ { data = "new", finished = true } }, receive(rcv, "r"))
    end)
  end)
end)
