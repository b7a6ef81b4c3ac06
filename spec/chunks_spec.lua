local chunks = require "omni.chunks"
local omni = require "omni"
local sys = require "omni.testing.sys"
local ffi = require "ffi"
local uv = require "luv"

ffi.cdef [[ int open(const char *, int, ...); int flock(int, int); int close(int); ]]

local BUILD = "spec.support.chunk_build"
local namespaces = 0

-- Waits for a state of affairs that another thread brings about.
local function eventually(condition, what)
  local deadline = omni.now() + 20
  while not condition() do
    assert(omni.now() < deadline, "in vain: " .. (what or "condition"))
    omni.sleep(0.0005)
  end
end

-- Holds a lock file as a stranger would. The function that it returns unlocks without an event for the watchers.
local function hold_lock(path)
  local fd = ffi.C.open(path, 0x80042, ffi.cast("int", 384)) -- O_RDWR | O_CREAT | O_CLOEXEC, 0600
  assert(fd >= 0 and ffi.C.flock(fd, 2) == 0)
  return function() ffi.C.flock(fd, 8) end, function() ffi.C.close(fd) end
end

describe("chunk adapter", function()
  local conn, open, namespace

  -- An adapter that the spec's end stops.
  local function new(opts)
    opts.connector = conn
    local adapter = chunks.new(opts)
    open[#open + 1] = adapter
    return adapter
  end

  local function pair(opts)
    local send, receive = { stage_id = "0" }, { src_stage_id = "0" }
    for key, value in pairs(opts or {}) do
      send[key] = value
      if key == "window" or key == "encoding" then receive[key] = value end
    end
    return new(send), new(receive)
  end

  local function stored(key) return uv.fs_stat("/dev/shm/" .. conn:shm_name(key)) ~= nil end

  -- All items of a request until the finished one or an error.
  local function receive(rcv, req)
    local items = {}
    while true do
      assert(rcv:wait { timeout = 20 })
      for _, item in ipairs(rcv:poll_ready()[req] or {}) do
        items[#items + 1] = item
        if item.finished or item.error then return items end
        rcv:consumed(req)
      end
    end
  end

  -- Exactly n items of a request.
  local function take(rcv, req, n)
    local items = {}
    while #items < n do
      assert(rcv:wait { timeout = 20 })
      for _, item in ipairs(rcv:poll_ready()[req] or {}) do items[#items + 1] = item end
    end
    assert.equal(n, #items)
    return items
  end

  local function data_of(items)
    local all = {}
    for i, item in ipairs(items) do all[i] = item.data end
    return all
  end

  local function sent(snd, n) eventually(function() return snd:stats().sent == n end, n .. " chunks sent") end

  before_each(function()
    namespaces = namespaces + 1
    namespace = ("c%d"):format((uv.os_getpid() * 100 + namespaces) % 10000000)
    -- A directory of our own: what strangers do in /dev/shm would wake RECV.
    conn = omni.shm.open { namespace = namespace, lock_dir = "/dev/shm/" .. namespace .. ".d" }
    open = {}
  end)

  after_each(function()
    sys.reset()
    for _, adapter in ipairs(open) do adapter:stop() end
    eventually(function() -- what threads still held is undone by them
      conn:cleanup_prefix ""
      return conn:stats().live_segments == 0
    end)
    conn:close()
    assert(uv.fs_rmdir("/dev/shm/" .. namespace .. ".d"))
  end)

  describe("by its examples", function()
    it("builds one key from the sender's stage and the receiver's source", function()
      local snd = new { stage_id = "0" }
      local rcv = new { stage_id = "1", src_stage_id = "0" }
      rcv:load_async "r"
      snd:save_async("r", "hello", false)
      assert.same({ { data = "hello", finished = false } }, take(rcv, "r", 1))
      snd:save_async("r", "bye", true)
      assert.same({ { data = "bye", finished = true } }, take(rcv, "r", 1))
      assert.equal(0, rcv:stats().registered)
    end)

    it("puts {data, finished} under <req>_<stage>_<n>", function()
      local snd = new { stage_id = "7" }
      snd:save_async("v", "first", false)
      snd:save_async("v", "last", true)
      sent(snd, 2)
      assert.equal("\1\0\0\0\0\0first", conn:get "v_7_0")
      assert.equal("\1\1\0\0\0\0last", conn:get "v_7_1")
      assert.is_nil(conn:get "v_7_2")
    end)

    it("isolates snapshots from what the scheduling thread does to the value later", function()
      local snd, rcv = pair()
      local live = { "a" }
      rcv:load_async "v"
      snd:save_async("v", live, false)
      live[#live + 1] = "b"
      snd:save_async("v", live, true)
      live[#live + 1] = "c"
      assert.same({ { "a" }, { "a", "b" } }, data_of(receive(rcv, "v")))
      sent(snd, 2)
    end)

    it("hands out by poll_ready what came since the last time", function()
      local snd, rcv = pair()
      rcv:load_async "q"
      snd:save_async("q", 1, false)
      snd:save_async("q", 2, false)
      eventually(function() return rcv:stats().received == 2 end)
      assert.same({ q = { { data = 1, finished = false }, { data = 2, finished = false } } }, rcv:poll_ready())
      assert.same({}, rcv:poll_ready())
      snd:save_async("q", 3, true)
      assert.is_true(rcv:wait { timeout = 20 })
      assert.same({ q = { { data = 3, finished = true } } }, rcv:poll_ready())
    end)

    it("delivers what was put before load_async", function()
      local snd, rcv = pair()
      for i = 1, 5 do snd:save_async("early", i, i == 5) end
      sent(snd, 5)
      rcv:load_async "early"
      assert.same({ 1, 2, 3, 4, 5 }, data_of(receive(rcv, "early")))
    end)

    it("drops what is queued on cancel while a build is blocked; the final goes out with nil data", function()
      local gate = os.tmpname()
      os.remove(gate)
      os.execute("mkfifo " .. gate)
      local held = assert(io.open(gate, "r+e"))
      local snd, rcv = pair { build_payload = BUILD }
      rcv:load_async "w"
      snd:save_async("w", { gate = gate, data = "p0" }, false)
      eventually(function() return snd:stats().queued == 1 end)
      for i = 1, 3 do snd:save_async("w", { data = "p" .. i }, false) end
      snd:save_async("w", { data = "end" }, true)
      snd:cancel_sender "w"
      held:write "go\n"
      held:flush()
      local items = receive(rcv, "w")
      held:close()
      os.remove(gate)
      assert.same({ finished = true }, items[#items]) -- no data
      assert.is_true(#items == 1 or #items == 2)
      if #items == 2 then assert.same({ data = "p0", finished = false }, items[1]) end
      sent(snd, #items)
    end)

    it("keeps ids gapless and the final sure when it is cancelled after the check, held at the build", function()
      local rule = sys.rule { op = "POINT", match = "chunk.before_build", action = "hold" }
      local snd, rcv = pair { build_payload = BUILD }
      snd:save_async("w", "p0", false)
      assert(rule:wait())
      for i = 1, 3 do snd:save_async("w", "p" .. i, false) end
      snd:save_async("w", "end", true)
      snd:cancel_sender "w"
      rule:remove()
      sent(snd, 2)
      assert.is_true(stored "w_0_0" and stored "w_0_1")
      assert.is_false(stored "w_0_2")
      assert.equal(3, snd:stats().dropped)
      assert.equal(0, snd:stats().senders)
      rcv:load_async "w"
      assert.same({ { data = "p0", finished = false }, { finished = true } }, receive(rcv, "w"))
    end)
  end)

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
        local match = where == "always" and namespace or conn:shm_name "bad_0_1"
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
        op = "OPENAT", match = conn:shm_name "stuck_0_0", action = "fail", errno = "ENOSPC", times = math.huge,
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
      local release, close = hold_lock(conn:lock_path "l_0_0")
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
      assert.is_not_nil(uv.fs_stat(conn:lock_path "l_0_0"))
      rule:remove()
      snd:cleanup_sender "l"
      eventually(function() return uv.fs_stat(conn:lock_path "l_0_0") == nil end)
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

    it("undoes a put that is under way when its request is cleaned up", function()
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
      assert.equal(0, conn:stats().live_segments)
    end)

    it("reports an envelope that is none, and then watches that request no more", function()
      local rcv = new { src_stage_id = "0" }
      rcv:load_async "r"
      assert(conn:put("r_0_0", "?"))
      local item = receive(rcv, "r")[1]
      assert.equal("EPROTOCOL", item.code)
      assert.is_nil(item.sender)
      assert.equal(0, rcv:stats().registered)
      assert(conn:put("r_0_1", "left"))
      rcv:cleanup_receiver("r", true)
      assert.equal(0, conn:stats().live_segments)
    end)

    it("takes a chunk whose lock a stranger held, though its release announces nothing", function()
      local snd, rcv = pair()
      snd:save_async("r", 1, true)
      sent(snd, 1)
      local release, close = hold_lock(conn:lock_path "r_0_0")
      rcv:load_async "r"
      eventually(function() return conn:stats().busy > 3 end)
      release()
      assert.same({ 1 }, data_of(receive(rcv, "r")))
      close()
    end)

    it("skips metadata of envelopes", function()
      local rcv = new { src_stage_id = "0" }
      rcv:load_async "r"
      assert(conn:put("r_0_0", "\1\1\3\0\0\0abcdata"))
      assert.same({ { data = "data", finished = true } }, receive(rcv, "r"))
    end)

    it("makes bytes that do not decode the chunk's error", function()
      local rcv = new { src_stage_id = "0" }
      rcv:load_async "r"
      assert(conn:put("r_0_0", "\3\1\0\0\0\0{"))
      local item = receive(rcv, "r")[1]
      assert.equal("ECODEC", item.code)
    end)
  end)

  describe("with values", function()
    local function through(value, opts)
      local snd, rcv = pair(opts)
      rcv:load_async "r"
      snd:save_async("r", value, true)
      return receive(rcv, "r")[1].data
    end

    it("carries what string.buffer carries", function()
      assert.equal("bytes \0\255", through "bytes \0\255")
      assert.equal("", through "")
      assert.equal(1.5, through(1.5))
      assert.equal(false, through(false))
      assert.same({ a = { 1, 2, { b = true } } }, through { a = { 1, 2, { b = true } } })
      assert.equal(12345678901234LL, through(12345678901234LL))
    end)

    it("writes JSON, or strings only, where it is told to", function()
      assert.same({ a = { 1, 2 } }, through({ a = { 1, 2 } }, { encoding = "json" }))
      local snd = new { stage_id = "0", encoding = "json" }
      snd:save_async("j", { b = 1, a = "x" }, true)
      sent(snd, 1)
      assert.equal('\3\1\0\0\0\0{"a":"x","b":1}', conn:get "j_0_0")
      assert.error_matches(function() new({ stage_id = "0", encoding = "bytes" }):save_async("r", {}, true) end,
        'encoding "bytes" carries strings and nil, not a table')
    end)

    it("raises where a value cannot be carried, at the caller's line", function()
      local snd = new { stage_id = "0" }
      local _, message = pcall(function() snd:save_async("r", print, false) end)
      assert.matches("^spec/chunks_spec.lua:%d+: chunks:save_async cannot carry this value", message)
      assert.equal(0, snd:stats().saved)
    end)
  end)

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

  describe("at rest", function()
    it("makes no system call while 10 registered requests wait", function()
      local rcv = new { src_stage_id = "0" }
      for i = 1, 10 do rcv:load_async("r" .. i) end
      eventually(function() return rcv:stats().registered == 10 end)
      local function calls()
        local n = 0
        for _, op in ipairs { "PPOLL", "READ", "WRITE", "OPENAT", "FSTATAT", "FLOCK", "INOTIFY_ADD" } do
          n = n + sys.count(op)
        end
        return n
      end
      local last
      eventually(function() -- the first probes are over
        local before = last
        last = calls()
        omni.sleep(0.02)
        return before == last
      end)
      omni.sleep(0.3)
      assert.equal(last, calls())
    end)

    it("hands out a burst at once and in order", function()
      local snd, rcv = pair()
      rcv:load_async "r"
      for i = 1, 500 do snd:save_async("r", i, i == 500) end
      eventually(function() return rcv:stats().received == 500 end)
      local items = rcv:poll_ready().r
      assert.equal(500, #items)
      for i, item in ipairs(items) do assert.equal(i, item.data) end
    end)

    it("times out as a whole and tells of its stop who waits", function()
      local rcv = new { src_stage_id = "0" }
      rcv:load_async "r"
      local start = omni.now()
      local ready, message, code = rcv:wait { timeout = 0.05 }
      assert.is_nil(ready)
      assert.equal("ETIMEDOUT", code)
      assert.matches("^ETIMEDOUT: ", message)
      assert.is_true(omni.now() - start >= 0.049)
      local result
      local task = omni.spawn(function() result = { rcv:wait() } end)
      omni.sleep(0)
      rcv:stop()
      task:join()
      assert.equal("ECLOSED", result[3])
    end)
  end)

  describe("stop", function()
    local function prompt(adapter)
      local start = omni.now()
      adapter:stop()
      assert.is_true(omni.now() - start < 0.1, "stop took its time")
      adapter:stop()
    end

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

  it("survives a thousand requests at once", function()
    local snd, rcv = pair()
    for i = 1, 1000 do
      if i % 2 == 0 then rcv:load_async("r" .. i) end
      for n = 1, 3 do snd:save_async("r" .. i, n, n == 3) end
      if i % 2 == 1 then rcv:load_async("r" .. i) end
    end
    local finished, last = 0, {}
    while finished < 1000 do
      assert(rcv:wait { timeout = 20 })
      for req, items in pairs(rcv:poll_ready()) do
        for _, item in ipairs(items) do
          assert.equal((last[req] or 0) + 1, item.data)
          last[req] = item.data
          if item.finished then finished = finished + 1 end
        end
      end
    end
    eventually(function() return snd:stats().senders == 0 end)
    assert.equal(0, rcv:stats().registered)
  end)

  it("can be used from another thread", function()
    local snd, rcv = pair()
    rcv:load_async "r"
    local thread = omni.thread(function(adapter)
      for i = 1, 10 do adapter:save_async("r", i, i == 10) end
      return true
    end, snd)
    assert.same({ 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 }, data_of(receive(rcv, "r")))
    assert(thread:join())
  end)

  it("names what is wrong with its options and arguments", function()
    local function fails(pattern, fn)
      local ok, message = pcall(fn)
      assert.is_false(ok)
      assert.matches("^spec/chunks_spec.lua:%d+: ", message)
      assert.matches(pattern, message)
    end
    fails('unknown key "windw" %(did you mean "window"%?%)',
      function() chunks.new { connector = conn, stage_id = "0", windw = 1 } end)
    fails('"stage_id" %(to send%) or "src_stage_id" %(to receive%) is needed',
      function() chunks.new { connector = conn } end)
    fails("must be an open handle of omni.shm, not omni.sink",
      function() chunks.new { connector = omni.sink.new {}, stage_id = "0" } end)
    fails('"jsn" is no encoding %(did you mean "json"%?%)',
      function() chunks.new { connector = conn, stage_id = "0", encoding = "jsn" } end)
    fails("must be 1 or more", function() chunks.new { connector = conn, stage_id = "0", window = 0 } end)
    fails("stage id must be", function() new { stage_id = "" } end)
    local snd = new { stage_id = "0" }
    fails("a request id must be a string, not a number", function() snd:save_async(1, 2) end)
    fails("1 to 200 bytes", function() snd:save_async("", 2) end)
    fails("is_final must be a boolean", function() snd:save_async("r", 2, 1) end)
    fails("src_stage_id", function() snd:load_async "r" end)
    fails('unknown key "timout"', function() snd:wait { timout = 1 } end)
  end)

  it("shows its figures in the metrics", function()
    local snd, rcv = pair()
    rcv:load_async "r"
    snd:save_async("r", "x", true)
    receive(rcv, "r")
    sent(snd, 1)
    local seen = {}
    for _, metric in ipairs(omni.metrics.snapshot()) do
      if metric.name:find "^omni_chunks_" then seen[metric.name] = (seen[metric.name] or 0) + (metric.value or 0) end
    end
    for _, name in ipairs { "saved", "sent", "sent_bytes", "received", "received_bytes" } do
      assert.is_true(seen["omni_chunks_" .. name .. "_total"] >= 1, name)
    end
  end)
end)
