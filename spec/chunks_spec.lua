local omni = require "omni"
local chunks = require "omni.chunks"
local sys = require "omni.testing.sys"
local run = require "spec.support.run"
local support = require "spec.support.chunk_adapters"

local BUILD = "spec.support.chunk_build"
local eventually = support.eventually

describe("chunk adapter", function()
  local a = support.setup(before_each, after_each)
  local new, pair, stored, receive, take, data_of, sent = a.new, a.pair, a.stored, a.receive, a.take, a.data_of, a.sent

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
      assert.equal("\1\0\0\0\0\0first", a.conn:get "v_7_0")
      assert.equal("\1\1\0\0\0\0last", a.conn:get "v_7_1")
      assert.is_nil(a.conn:get "v_7_2")
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
      assert.equal('\3\1\0\0\0\0{"a":"x","b":1}', a.conn:get "j_0_0")
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

    it("is not taken for a script that waits for ever while the last chunk is on its way", function()
      local script = [[
        local omni = require "omni"
        local conn = omni.shm.open { namespace = arg[1] }
        local snd = omni.chunks.new { connector = conn, stage_id = "0" }
        local rcv = omni.chunks.new { connector = conn, src_stage_id = "0" }
        for i = 1, 300 do
          rcv:load_async("r" .. i)
          snd:save_async("r" .. i, i, true)
          assert(rcv:wait())
          assert(rcv:poll_ready()["r" .. i][1].data == i)
        end
        snd:stop()
        rcv:load_async "never"
        rcv:stop()
        io.write(select(3, rcv:wait()), "\n")
        conn:close()
      ]]
      local result = run.code(script, a.namespace)
      assert.equal("", result.stderr)
      assert.equal("ECLOSED\n", result.stdout)
      assert.equal(0, result.code)
    end)

    it("times out as a whole and tells of its stop who waits", function()
      local rcv = new { src_stage_id = "0" }
      rcv:load_async "r"
      local start = omni.now()
      local ready, message, code = rcv:wait { timeout = 0.05 }
      assert.is_nil(ready)
      assert.equal("ETIMEDOUT", code)
      assert.matches("^ETIMEDOUT: ", message)
      assert.is_true(omni.now() - start >= 0.05)
      local result
      local task = omni.spawn(function() result = { rcv:wait() } end)
      omni.sleep(0)
      rcv:stop()
      task:join()
      assert.equal("ECLOSED", result[3])
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
      function() chunks.new { connector = a.conn, stage_id = "0", windw = 1 } end)
    fails('"stage_id" %(to send%) or "src_stage_id" %(to receive%) is needed',
      function() chunks.new { connector = a.conn } end)
    fails("must be an open handle of omni.shm, not omni.sink",
      function() chunks.new { connector = omni.sink.new {}, stage_id = "0" } end)
    fails('"jsn" is no encoding %(did you mean "json"%?%)',
      function() chunks.new { connector = a.conn, stage_id = "0", encoding = "jsn" } end)
    fails("must be 1 or more", function() chunks.new { connector = a.conn, stage_id = "0", window = 0 } end)
    fails("stage id must be", function() chunks.new { connector = a.conn, stage_id = "" } end)
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
