local files = require "spec.support.shm_files"
local omni = require "omni"
local sys = require "omni.testing.sys"
local thread = require "omni.thread"
local uv = require "luv"
local exists, header, lock_file, read_file, write_file =
  files.exists, files.header, files.lock_file, files.read_file, files.write_file

local function descriptors()
  local n, request = 0, assert(uv.fs_scandir "/proc/self/fd")
  while uv.fs_scandir_next(request) do n = n + 1 end
  return n
end

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

  -- ---- the examples of the protocol's description, line by line ----

  it("delivers a value once", function()
    local k = "req7_0_0"
    assert.is_true(c:put(k, "abc"))
    assert.is_true(exists(c:lock_path(k)))
    assert.equal("abc", c:get(k))
    assert.is_nil(c:get(k))
    assert.is_false(exists(c:lock_path(k)))
    assert.is_false(exists(segment_path(k)))
    assert.is_nil(c:get "never_written")
    assert.equal(c:shm_name(k), c:shm_name(k))
    assert.is_true(#c:shm_name(k) <= 30)
    c:put(k, "one")
    c:put(k, "two!")
    assert.equal("two!", c:get(k))
  end)

  it("says nothing is there while somebody else holds the lock", function()
    c:put("job_0_3", "xyz")
    local unlock = lock_file(c:lock_path "job_0_3")
    local data, message = c:get "job_0_3"
    assert.is_nil(data)
    assert.is_nil(message)
    unlock()
    assert.equal("xyz", c:get "job_0_3")
  end)

  it("cleans up the unread keys of a prefix and no others", function()
    for i = 0, 2 do c:put(("rA_0_%d"):format(i), string.char(i)) end
    c:put("rAx_0_0", "q")
    assert.equal("\1", c:get "rA_0_1")
    assert.equal(2, c:cleanup_prefix "rA_")
    assert.equal(0, c:cleanup_prefix "rA_")
    assert.is_nil(c:get "rA_0_0")
    assert.equal("q", c:get "rAx_0_0")
  end)

  -- ---- the life of a key: lock file, flock, segment -> what a get says ----

  describe("in the life of a key", function()
    local key = "req_0_7"

    it("without lock and segment: nothing", function()
      assert.is_nil(c:get(key))
      assert.is_false(exists(c:lock_path(key)))
    end)

    it("with a free lock and no segment: nothing, and the lock stays", function()
      write_file(c:lock_path(key), "")
      local data, message = c:get(key)
      assert.is_nil(data)
      assert.is_nil(message)
      assert.is_true(exists(c:lock_path(key)))
      c:put(key, "after all")
      assert.equal("after all", c:get(key))
    end)

    it("with the lock held and the segment half written: nothing", function()
      write_file(c:lock_path(key), "")
      write_file(segment_path(key), header(100) .. "half")
      local unlock = lock_file(c:lock_path(key))
      assert.is_nil(c:get(key))
      assert.equal(1, c:stats().busy)
      unlock()
      c:put(key, "whole")
      assert.equal("whole", c:get(key))
    end)

    it("with a free lock and the segment: the data", function()
      write_file(c:lock_path(key), "")
      write_file(segment_path(key), header(4) .. "data")
      assert.equal("data", c:get(key))
    end)

    it("with the segment rounded up to a page: as many bytes as the header says", function()
      write_file(c:lock_path(key), "")
      write_file(segment_path(key), header(3) .. "abc" .. ("\0"):rep(4096 - 11))
      assert.equal("abc", c:get(key))
    end)

    it("after the get: nothing again", function()
      c:put(key, "x")
      assert.equal("x", c:get(key))
      assert.is_nil(c:get(key))
      assert.is_false(exists(c:lock_path(key)))
    end)
  end)

  -- ---- names ----

  describe("names", function()
    it("are at most 30 bytes, safe in a file name and the same in every process", function()
      local nine = assert(omni.shm.open { namespace = "abcdefgh9" })
      assert.matches("^abcdefgh9_%x+$", nine:shm_name "k")
      assert.equal(30, #nine:shm_name(("long"):rep(1000)))
      assert.equal("/dev/shm/" .. nine:shm_name "k" .. ".lock", nine:lock_path "k")
      -- first 20 hex digits of SHA-256("k")
      assert.equal("abcdefgh9_8254c329a92850f6d539", nine:shm_name "k")
      nine:close()
    end)

    it("belong to any bytes", function()
      for _, key in ipairs { "", "\0", "a\0b", "a\0c", "ä/..//\n", ("x"):rep(100000) } do
        assert.is_true(c:put(key, "value of " .. #key .. key))
      end
      for _, key in ipairs { "", "\0", "a\0b", "a\0c", "ä/..//\n", ("x"):rep(100000) } do
        assert.equal("value of " .. #key .. key, c:get(key))
      end
    end)

    it("of two namespaces do not meet, of one do", function()
      local other = assert(omni.shm.open { namespace = files.namespace() })
      local same = assert(omni.shm.open { namespace = namespace })
      c:put("k", "mine")
      assert.is_nil(other:get "k")
      assert.equal("mine", same:get "k")
      other:close()
      same:close()
    end)

    local function refused(pattern, options)
      local ok, message = pcall(omni.shm.open, options)
      assert.is_false(ok)
      assert.matches("shm_spec.lua:%d+: ", message)
      assert.matches(pattern, message)
    end

    it("of a namespace that is too long are refused with the limit", function()
      refused("14 characters, the limit is 9", { namespace = "speechpipeline" })
    end)

    it("of a namespace with other characters are refused", function()
      for _, bad in ipairs { "", "Speech", "a_b", "../x", "ä" } do refused("a%-z and 0%-9", { namespace = bad }) end
    end)

    it("of the form that hosts make are refused to scripts", function()
      refused("omnihost makes", { namespace = "oabcd2345" })
      assert(omni.shm.open { namespace = "oabcd1890" }):close() -- 1, 8, 9 and 0 are no digits of that form
    end)

    it("of options are checked", function()
      refused('unknown key "lockdir" %(did you mean "lock_dir"%?%)', { namespace = "x", lockdir = "/" })
      refused('key "namespace" is missing', {})
    end)
  end)

  it("fails to open where a directory is missing", function()
    local handle, message, code = omni.shm.open { namespace = namespace, lock_dir = "/nowhere/at/all" }
    assert.is_nil(handle)
    assert.matches("^ENOENT: lock_dir /nowhere/at/all", message)
    assert.equal("ENOENT", code)
    assert.equal("ENOENT", select(3, omni.shm.open { namespace = namespace, shm_dir = "/nowhere" }))
  end)

  it("makes its lock directory where the parent exists", function()
    local dir = os.tmpname() .. ".d"
    local own = assert(omni.shm.open { namespace = namespace, lock_dir = dir })
    assert.equal(tonumber("40700", 8), uv.fs_lstat(dir).mode)
    own:put("k", "v")
    assert.equal(dir .. "/" .. own:shm_name "k" .. ".lock", own:lock_path "k")
    assert.is_true(exists(own:lock_path "k"))
    assert.equal("v", own:get "k")
    own:close()
    uv.fs_rmdir(dir)
    os.remove((dir:gsub("%.d$", "")))
  end)

  -- ---- values ----

  it("carries empty, page-sized and large values", function()
    for _, size in ipairs { 0, 1, 4087, 4088, 4089, 65528, 65529, 4 * 1024 * 1024 } do
      local value = ("0123456789abcdef"):rep(math.ceil(size / 16)):sub(1, size)
      assert.is_true(c:put("k", value))
      assert.equal(8 + size, uv.fs_lstat(segment_path "k").size)
      assert.is_true(c:get "k" == value)
    end
  end)

  it("writes the length as eight bytes, little-endian, and for its user alone", function()
    c:put("k", ("x"):rep(258))
    assert.equal("\2\1\0\0\0\0\0\0", read_file(segment_path "k"):sub(1, 8))
    assert.equal(tonumber("100600", 8), uv.fs_lstat(segment_path "k").mode)
    assert.equal(tonumber("100600", 8), uv.fs_lstat(c:lock_path "k").mode)
    c:get "k"
  end)

  it("refuses keys and values of other types at the caller's line", function()
    for _, call in ipairs {
      function() c:put(1, "x") end,
      function() c:put("k", 1) end,
      function() c:put("k", {}) end,
      function() c:get(nil) end,
      function() c:cleanup_prefix(7) end,
      function() c:put("k", "x", { timeouts = 1 }) end,
    } do
      local ok, message = pcall(call)
      assert.is_false(ok)
      assert.matches("shm_spec.lua:%d+: ", message)
    end
  end)

  it("leaks no descriptor, whatever a get comes to", function()
    c:put("held", "x")
    c:put("torn", "x")
    write_file(segment_path "torn", header(9) .. "x")
    write_file(c:lock_path "bare", "")
    local unlock = lock_file(c:lock_path "held")
    local before = descriptors()
    for i = 1, 50 do
      for _, key in ipairs { "held", "torn", "bare", "absent" } do c:get(key) end
      c:put("held", "y", { timeout = 0 })
      c:put("good" .. i, "z")
      c:get("good" .. i)
    end
    assert.equal(before, descriptors())
    unlock()
    assert.equal(2, c:cleanup_prefix "")
    os.remove(c:lock_path "bare")
  end)

  -- ---- the handle ----

  it("fails after close, without losing what was put", function()
    c:put("k", "v")
    c:close()
    c:close()
    for _, code in ipairs { select(3, c:put("k", "x")), select(3, c:get "k"), select(3, c:wait "k") } do
      assert.equal("ECLOSED", code)
    end
    assert.equal(0, c:cleanup_prefix "")
    local later = assert(omni.shm.open { namespace = namespace })
    assert.equal("v", later:get "k")
    later:close()
  end)

  it("can be used from another thread", function()
    local t = thread.start(function(handle) return handle:get "k" end, c)
    t:join()
    c:put("k", "v")
    assert.equal("v", thread.start(function(handle) return handle:get "k" end, c):join())
  end)

  it("counts what it does", function()
    c:put("a", "12345")
    c:put("b", "1")
    c:put("c", "1")
    c:get "a"
    c:cleanup_prefix "b"
    local stats = c:stats()
    assert.equal(3, stats.puts)
    assert.equal(7, stats.put_bytes)
    assert.equal(1, stats.gets)
    assert.equal(5, stats.get_bytes)
    assert.equal(1, stats.cleaned)
    assert.equal(1, stats.live_segments)
    c:get "c"
    assert.equal(0, c:stats().live_segments)
  end)

  it("keeps ten thousand unread keys and cleans them up", function()
    for i = 1, 10000 do assert(c:put("many_" .. i, "x")) end
    for i = 1, 10000, 2 do assert.equal("x", c:get("many_" .. i)) end
    assert.equal(5000, c:stats().live_segments)
    assert.equal(5000, c:cleanup_prefix "many_")
    assert.equal(0, c:stats().live_segments)
  end)
end)
