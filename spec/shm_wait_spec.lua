local ffi = require "ffi"
local files = require "spec.support.shm_files"
local omni = require "omni"
local process = require "spec.support.process"
local sys = require "omni.testing.sys"
local thread = require "omni.thread"
local uv = require "luv"
local exists, lock_file = files.exists, files.lock_file

describe("the shared-memory connector", function()
  local c, namespace

  local function segment_path(key) return "/dev/shm/" .. c:shm_name(key) end

  before_each(function()
    namespace = files.namespace()
    c = assert(omni.shm.open { namespace = namespace })
  end)

  after_each(function()
    sys.reset()
    local left = c:cleanup_prefix ""
    c:close()
    assert.equal(0, left)
  end)

  -- ---- between processes ----

  describe("between processes", function()
    local SHM_PUT = [[local c = assert(require("omni.shm").open { namespace = %q }); assert(c:put(%q, %q)); c:close()]]

    it("keeps a value for a second after its writer has exited", function()
      local code, _, err = process.run { uv.exepath(), "-e", SHM_PUT:format(namespace, "k", "from the past") }
      assert.equal(0, code, err)
      omni.sleep(1)
      assert.equal("from the past", c:get "k")
    end)

    local function peer(...) return { "python3", "spec/peers/shm_peer.py", namespace, "/dev/shm", ... } end

    local VALUES = { empty = "", one = "\0", page = ("p"):rep(4088), large = ("0123456789abcdef"):rep(256 * 1024) }

    it("gets what a Python program put, after that has exited", function()
      for key, value in pairs(VALUES) do
        local code, _, err = process.run(peer("put", key), value)
        assert.equal(0, code, err)
        assert.is_true(c:get(key) == value, key)
      end
    end)

    it("puts what a Python program gets", function()
      for key, value in pairs(VALUES) do
        c:put(key, value)
        local code, out, err = process.run(peer("get", key))
        assert.equal(0, code, err)
        assert.is_true(out == value, key)
        assert.equal(0, c:stats().live_segments)
        assert.is_false(exists(c:lock_path(key)))
      end
      assert.equal(3, (process.run(peer("get", "absent"))))
    end)

    it("agrees with a Python program about names", function()
      local _, out = process.run(peer("names", "req42_0_7"))
      assert.equal(c:shm_name "req42_0_7" .. "\n" .. c:lock_path "req42_0_7" .. "\n", out)
    end)

    it("respects a lock that a Python program holds, and the other way round", function()
      c:put("k", "v")
      local holder = process.start(peer("hold", "k"))
      holder:expect "held"
      assert.is_nil(c:get "k")
      assert.equal("EBUSY", select(3, c:put("k", "w", { timeout = 0 })))
      assert.equal(0, (holder:finish()))
      local unlock = lock_file(c:lock_path "k")
      assert.equal(3, (process.run(peer("get", "k"))))
      unlock()
      assert.equal("v", c:get "k")
    end)

    it("takes a stream from a Python program as it comes", function()
      local writer = process.start(peer("stream", "20"))
      for i = 0, 19 do assert.equal("value " .. i, c:wait("s_" .. i, { timeout = 20 })) end
      assert.equal(0, (writer:finish()))
    end)
  end)

  -- ---- waiting ----

  describe("waiting", function()
    it("takes what is there already", function()
      c:put("k", "v")
      assert.equal("v", c:wait("k", { timeout = 0 }))
    end)

    it("ends when the value comes, and not for other keys", function()
      local waiting = omni.spawn(function() return c:wait "k" end)
      omni.sleep(0)
      for i = 1, 20 do c:put("other" .. i, "x") end
      c:put("k", "v")
      assert.equal("v", waiting:join(10))
      c:cleanup_prefix "other"
    end)

    it("ends at its deadline", function()
      local data, message, code = c:wait("k", { timeout = 0.02 })
      assert.is_nil(data)
      assert.matches("^ETIMEDOUT: ", message)
      assert.equal("ETIMEDOUT", code)
    end)

    it("ends when the connector is closed, in whichever state", function()
      local waiting = omni.spawn(function() return select(3, c:wait "k") end)
      local elsewhere = thread.start(function(handle)
        require "omni.shm"
        return select(3, handle:wait "k")
      end, c)
      local same = omni.spawn(function() return select(3, c:wait("k", { timeout = 10 })) end)
      omni.sleep(0.02)
      c:close()
      assert.equal("ECLOSED", waiting:join(10))
      assert.equal("ECLOSED", same:join(10))
      assert.equal("ECLOSED", elsewhere:join())
    end)

    it("goes on where the lock was held when the value was announced", function()
      c:put("k", "v")
      local unlock = lock_file(c:lock_path "k")
      local waiting = omni.spawn(function() return c:wait "k" end)
      while c:stats().busy < 3 do omni.sleep(0) end
      unlock()
      assert.equal("v", waiting:join(10))
    end)

    it("serves one of many who wait for the same key", function()
      local tasks, got = {}, {}
      for i = 1, 5 do tasks[i] = omni.spawn(function() got[i] = c:wait("k", { timeout = 0.3 }) or false end) end
      omni.sleep(0)
      c:put("k", "v")
      local served = 0
      for i, task in ipairs(tasks) do
        task:join(10)
        if got[i] then served = served + 1 end
      end
      assert.equal(1, served)
    end)

    it("makes no call while nothing comes", function()
      if not sys.enabled then
        pending "this build has no hooks"
        return
      end
      local tasks = {}
      for i = 1, 10 do tasks[i] = omni.spawn(function() return c:wait("k" .. i, { timeout = 30 }) end) end
      local function calls()
        local sum = 0
        for _, op in ipairs(sys.ops) do sum = sum + (op == "CLOCK" and 0 or sys.count(op)) end
        return sum
      end
      -- The watch thread looks at each key once; a connector that polls never comes to rest.
      local before
      for _ = 1, 100 do
        before = calls()
        omni.sleep(0.1)
        if calls() == before then break end
      end
      omni.sleep(0.5)
      assert.equal(before, calls())
      for i = 1, 10 do c:put("k" .. i, "v") end
      for i = 1, 10 do assert.equal("v", tasks[i]:join(10)) end
    end)
  end)

  -- ---- views ----

  describe("a view", function()
    it("reads a value where it lies, after its names are gone", function()
      c:put("k", "hello, world")
      local view = assert(c:get_view "k")
      assert.is_nil(c:get "k")
      assert.is_false(exists(segment_path "k"))
      assert.equal(12, view:len())
      assert.equal(12, #view)
      assert.equal("hello, world", view:string())
      assert.equal("hello", view:string(1, 5))
      assert.equal("world", view:string(-5))
      assert.equal("", view:string(7, 3))
      assert.equal("hello, world", view:string(-100, 100))
      assert.equal(("w"):byte(), ffi.cast("const uint8_t *", view:ptr())[7])
      view:close()
    end)

    it("is nil where there is nothing, and empty where the value is", function()
      assert.is_nil(c:get_view "k")
      c:put("k", "")
      local view = assert(c:get_view "k")
      assert.equal("", view:string())
      view:close()
    end)

    it("can be put on", function()
      c:put("k", ("x"):rep(100000))
      local view = assert(c:get_view "k")
      assert.is_true(c:put("l", view))
      view:close()
      assert.equal(("x"):rep(100000), c:get "l")
      local ok, message = pcall(c.put, c, "l", view)
      assert.is_false(ok)
      assert.matches("open view", message)
    end)

    it("is counted until it is closed, once, or collected", function()
      c:put("a", "1234")
      c:put("b", "1234")
      local view = assert(c:get_view "a")
      local stats = c:stats()
      assert.equal(1, stats.live_views)
      assert.equal(12, stats.view_bytes)
      view:close()
      view:close()
      assert.equal(0, c:stats().live_views)
      assert.is_false(pcall(view.len, view))
      do
        local dropped = assert(c:get_view "b")
        assert.equal(1, c:stats().live_views)
        assert.equal(4, dropped:len())
      end
      collectgarbage()
      collectgarbage()
      assert.equal(0, c:stats().live_views)
      assert.equal(0, c:stats().view_bytes)
    end)

    it("is refused beyond the limit of live bytes, and the value stays", function()
      local small = assert(omni.shm.open { namespace = namespace, view_limit = 3000 })
      for _, key in ipairs { "a", "b" } do small:put(key, ("x"):rep(2000)) end
      local first = assert(small:get_view "a")
      local second, message, code = small:get_view "b"
      assert.is_nil(second)
      assert.equal("E2BIG", code)
      assert.matches("view_limit", message)
      first:close()
      second = assert(small:get_view "b")
      second:close()
      small:close()
    end)

    it("outlives its connector", function()
      local own = assert(omni.shm.open { namespace = namespace })
      own:put("k", "still here")
      local view = assert(own:get_view "k")
      own:close()
      own = nil -- luacheck: ignore
      collectgarbage()
      assert.equal("still here", view:string())
      view:close()
    end)
  end)
end)
