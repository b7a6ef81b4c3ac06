local files = require "spec.support.shm_files"
local omni = require "omni"
local sys = require "omni.testing.sys"
local thread = require "omni.thread"
local uv = require "luv"
local exists, header, lock_file, read_file, write_file =
  files.exists, files.header, files.lock_file, files.read_file, files.write_file

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

  -- ---- locks ----

  it("waits for a lock without holding anybody up, and gives up at its deadline", function()
    c:put("k", "old")
    local unlock, turns = lock_file(c:lock_path "k"), 0
    local other = omni.spawn(function()
      for _ = 1, 5 do
        omni.sleep(0)
        turns = turns + 1
      end
    end)
    local began = omni.now()
    local ok, message, code = c:put("k", "new", { timeout = 0.05 })
    assert.is_nil(ok)
    assert.matches("^EBUSY: ", message)
    assert.equal("EBUSY", code)
    assert.is_true(omni.now() - began >= 0.05)
    other:join()
    assert.equal(5, turns)
    unlock()
    assert.equal("old", c:get "k")
  end)

  it("puts as soon as the lock is free", function()
    c:put("k", "old")
    local unlock = lock_file(c:lock_path "k")
    local put = omni.spawn(function() return c:put("k", "new") end)
    while c:stats().busy < 3 do omni.sleep(0) end
    unlock()
    assert.is_true(put:join(5))
    assert.equal("new", c:get "k")
  end)

  -- ---- faults ----

  describe("when something is wrong", function()
    local function failed(code, ...)
      local value, message, got = ...
      assert.is_nil(value)
      assert.equal(code, got)
      assert.matches("^" .. code .. ": ", message)
    end

    it("reports a segment whose writer died, counts it once and lets it be replaced", function()
      c:put("k", ("x"):rep(100))
      write_file(segment_path "k", header(100) .. ("x"):rep(99))
      for _ = 1, 3 do failed("ECORRUPT", c:get "k") end
      failed("ECORRUPT", c:get_view "k")
      assert.equal(1, c:stats().incomplete)
      c:put("k", "anew")
      assert.equal("anew", c:get "k")
    end)

    it("takes a segment that is shorter than its header for torn", function()
      for _, torn in ipairs { "", "\0\0\0", header(1), header(1) .. ("\0"):rep(4089), ("\0"):rep(4096) } do
        c:put("k", "x")
        write_file(segment_path "k", torn)
        failed("ECORRUPT", c:get "k")
      end
      c:cleanup_prefix ""
    end)

    it("refuses a length that no file can have", function()
      c:put("k", "x")
      write_file(segment_path "k", ("\0"):rep(7) .. "\128") -- 2^63
      failed("E2BIG", c:get "k")
      failed("E2BIG", c:get_view "k")
      assert.equal(1, c:cleanup_prefix "")
    end)

    it("follows no symlink, in the segment's place or the lock's", function()
      local target = os.tmpname()
      write_file(target, header(6) .. "secret")
      c:put("k", "x")
      os.remove(segment_path "k")
      assert(uv.fs_symlink(target, segment_path "k"))
      failed("EACCES", c:get "k")
      failed("EACCES", c:put("k", "overwrite"))
      assert(uv.fs_symlink(target, c:lock_path "l"))
      failed("EACCES", c:get "l")
      failed("EACCES", c:put("l", "overwrite"))
      assert.equal(header(6) .. "secret", read_file(target))
      for _, path in ipairs { segment_path "k", c:lock_path "k", c:lock_path "l", target } do os.remove(path) end
    end)

    it("trusts no segment and no lock of another user", function()
      if uv.getuid() ~= 0 then
        pending "only root can make files of another user"
        return
      end
      c:put("k", "x")
      assert(uv.fs_chown(segment_path "k", 65534, 65534))
      failed("EACCES", c:get "k")
      failed("EACCES", c:put("k", "y"))
      c:put("l", "x")
      assert(uv.fs_chown(c:lock_path "l", 65534, 65534))
      failed("EACCES", c:get "l")
      failed("EACCES", c:put("l", "y"))
      for _, key in ipairs { "k", "l" } do
        os.remove(segment_path(key))
        os.remove(c:lock_path(key))
      end
    end)

    it("says when a directory is gone, to who puts and to who waits", function()
      local dir = os.tmpname() .. ".d"
      local own = assert(omni.shm.open { namespace = namespace, lock_dir = dir })
      local waiting = omni.spawn(function() return own:wait("k", { timeout = 10 }) end)
      omni.sleep(0)
      uv.fs_rmdir(dir)
      failed("ENOENT", own:put("k", "x"))
      own:close()
      failed("ECLOSED", waiting:join(10))
      os.remove((dir:gsub("%.d$", "")))
    end)

    if not sys.enabled then return end

    it("leaves nothing of a put that finds no room", function()
      sys.rule { op = "PWRITEV", errno = "ENOSPC" }
      local ok, message, code = c:put("k", ("x"):rep(1000))
      assert.is_nil(ok)
      assert.equal("ENOSPC", code)
      assert.matches("/dev/shm has no room for 1000 bytes", message)
      assert.is_false(exists(segment_path "k"))
      assert.is_false(exists(c:lock_path "k"))
      assert.equal(0, c:stats().live_segments)
      assert.is_true(c:put("k", "fits"))
      assert.equal("fits", c:get "k")
    end)

    it("consumes nothing with a get that fails", function()
      c:put("k", "kept")
      for _, op in ipairs { "FSTAT", "PREADV", "UNLINKAT" } do
        sys.rule { op = op, errno = "EIO" }
        failed("EIO", c:get "k")
      end
      assert.equal("kept", c:get "k")
    end)

    it("goes on after an interrupted call", function()
      for _, op in ipairs { "OPENAT", "FLOCK", "FSTATAT", "PWRITEV", "PREADV" } do
        sys.rule { op = op, errno = "EINTR" }
      end
      assert.is_true(c:put("k", "v"))
      assert.equal("v", c:get "k")
    end)
  end)

  -- ---- order of steps ----

  describe("keeps the order of steps", function()
    if not sys.enabled then
      it("in test builds", function() pending "this build has no hooks: use build/test/omnihost" end)
      return
    end

    local function put_in_thread(key, value)
      return thread.start(function(ns, k, v)
        local own = assert(require("omni.shm").open { namespace = ns })
        local ok, message = own:put(k, v)
        own:close()
        return ok or message
      end, namespace, key, value)
    end

    local function get_in_thread(key)
      return thread.start(function(ns, k)
        local own = assert(require("omni.shm").open { namespace = ns })
        local data = own:get(k)
        own:close()
        return data
      end, namespace, key)
    end

    it("lock before segment: nobody sees a segment that is being made", function()
      local rule = sys.rule { op = "POINT", match = "shm.put.locked", action = "hold" }
      local put = put_in_thread("k", "v")
      assert(rule:wait())
      assert.is_true(exists(c:lock_path "k"))
      assert.is_false(exists(segment_path "k"))
      assert.is_nil(c:get "k")
      assert.equal(1, c:stats().busy)
      rule:remove()
      assert.is_true(put:join())
      assert.equal("v", c:get "k")
    end)

    it("segment unlinked first, then the lock file, then unlocked", function()
      c:put("k", "v")
      local rule = sys.rule { op = "POINT", match = "shm.remove.segment", action = "hold" }
      local get = get_in_thread "k"
      assert(rule:wait())
      assert.is_false(exists(segment_path "k"))
      assert.is_true(exists(c:lock_path "k"))
      assert.equal("EBUSY", select(3, c:put("k", "w", { timeout = 0 })))
      rule:remove()
      assert.equal("v", get:join())
    end)

    it("unlocked before its close: whom the close wakes finds it free, whoever shares the descriptor", function()
      local rule = sys.rule { op = "CLOSE", skip = 1, action = "hold" } -- the first close is the segment's
      local put = put_in_thread("k", "v")
      assert(rule:wait())
      assert.equal("v", c:get "k")
      rule:remove()
      assert.is_true(put:join())
    end)

    it("a key that is put again between a reader's unlinks and its unlock is not stuck", function()
      c:put("k", "old")
      local rule = sys.rule { op = "FLOCK", skip = 1, action = "hold" } -- the reader's second flock is its unlock
      local get = get_in_thread "k"
      assert(rule:wait())
      assert.is_true(c:put("k", "new"))
      rule:remove()
      assert.equal("old", get:join())
      assert.equal("new", c:get "k")
    end)

    it("a writer that waited for the lock of a consumed value starts over", function()
      c:put("k", "old")
      local rule = sys.rule { op = "FLOCK", action = "hold" } -- it has the old lock file open
      local put = put_in_thread("k", "new")
      assert(rule:wait())
      assert.equal("old", c:get "k")
      rule:remove()
      assert.is_true(put:join())
      assert.equal("new", c:get "k")
    end)

    it("one of a cleanup and a reader has the value", function()
      c:put("k", "v")
      local rule = sys.rule { op = "POINT", match = "shm.get.fetched", action = "hold" }
      local get = get_in_thread "k"
      assert(rule:wait())
      assert.equal(0, c:cleanup_prefix "k")
      rule:remove()
      assert.equal("v", get:join())
      assert.equal(0, c:cleanup_prefix "k")
    end)

    it("does not clean up what somebody else put under the same key since", function()
      c:put("k", "mine")
      assert.equal("mine", get_in_thread("k"):join())
      assert.is_true(put_in_thread("k", "theirs"):join())
      assert.equal(0, c:cleanup_prefix "k")
      assert.equal("theirs", c:get "k")
    end)
  end)
end)
