local files = require "spec.support.shm_files"
local omni = require "omni"
local sys = require "omni.testing.sys"
local thread = require "omni.thread"
local tmpfs = require "spec.support.tmpfs"
local uv = require "luv"
local exists, header, write_file = files.exists, files.header, files.write_file

local STRANGER = 65534

-- A directory that is no place of values yet.
local function with_dir(fn)
  local dir = assert(uv.fs_mkdtemp "/tmp/omnihost-spec-XXXXXX")
  local ok, err = xpcall(fn, debug.traceback, dir)
  os.execute("rm -rf " .. dir)
  assert(ok, err)
end

-- Waits until the connector has found the lock held so often.
local function until_busy(c, times)
  local deadline = omni.now() + 10
  while c:stats().busy < times do
    assert(omni.now() < deadline, "it does not look again")
    omni.sleep(0.001)
  end
end

describe("the shared-memory connector at its limits", function()
  local c, namespace

  local function segment_path(key) return "/dev/shm/" .. c:shm_name(key) end

  local function failed(code, ...)
    local value, message, got = ...
    assert.is_nil(value)
    assert.equal(code, got)
    assert.matches("^" .. code .. ": ", message)
  end

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

  -- ---- no room ----

  describe("in a directory that is full", function()
    local function full(options, code)
      if not tmpfs.available() then
        pending "this user may not mount"
        return
      end
      with_dir(function(dir)
        tmpfs.code(options, dir, [[
          local omni, uv = require "omni", require "luv"
          local dir = ...
          local c = assert(omni.shm.open { namespace = "full", shm_dir = dir, lock_dir = dir })
          local function entries()
            local n, scan = 0, uv.fs_scandir(dir)
            while uv.fs_scandir_next(scan) do n = n + 1 end
            return n
          end
          local function free() return (require("omni.native.host").free_space(dir)) end
          -- Puts values until one fails; returns how many were stored.
          local function fill(value)
            for i = 1, 1000 do
              local before = entries()
              local ok, message, code = c:put("k" .. i, value)
              if not ok then
                assert(code == "ENOSPC" and message:find("^ENOSPC: "), message)
                assert(entries() == before, "something is left of the value that found no room")
                return i - 1
              end
            end
          end
        ]] .. code .. "\nassert(c:cleanup_prefix '' == 0 and entries() == 0)\nc:close()", dir)
      end)
    end

    it("fails what finds no bytes, keeps what is there and takes more once some was read", function()
      full("size=256k", [[
        local value = ("0123456789abcdef"):rep(2000)
        local n = fill(value)
        assert(n == 8, n) -- of 32 KiB each
        assert(c:stats().live_segments == n)
        assert(c:get "k1" == value)
        assert(c:put("again", value))
        for i = 2, n do assert(c:get("k" .. i) == value) end
        assert(c:get "again" == value)
      ]])
    end)

    it("gives back what a value took that ran out of room on its way", function()
      full("size=256k", [[
        local before = free()
        for _ = 1, 3 do
          local ok, message, code = c:put("large", ("x"):rep(1e6))
          assert(ok == nil and code == "ENOSPC", message)
          assert(message:find("has no room for 1000000 bytes", 1, true), message)
        end
        assert(free() == before, "room is lost")
        assert(c:put("small", "x"))
        assert(c:get "small" == "x")
      ]])
    end)

    it("fails what finds no inode, for the lock as for the segment", function()
      for inodes = 8, 9 do -- one is the directory's own; so once there is one left for a lock, and once none
        full("size=1m,nr_inodes=" .. inodes, [[
          local n = fill "x"
          assert(n == ]] .. math.floor((inodes - 1) / 2) .. [[, n)
          for i = 1, n do assert(c:get("k" .. i) == "x") end
          assert(c:put("k1", "y"))
          assert(c:get "k1" == "y")
        ]])
      end
    end)

    it("leaves a key usable whose new value found no room in the old one's place", function()
      full("size=64k", [[
        assert(c:put("k", "old"))
        local _, _, code = c:put("k", ("x"):rep(1e5))
        assert(code == "ENOSPC")
        local value, message = c:get "k"
        assert((value == nil or value == "old") and message == nil, message)
        assert(c:put("k", "new"))
        assert(c:get "k" == "new")
      ]])
    end)
  end)

  if sys.enabled then
    it("fails and leaves nothing where writing fails, for whatever reason", function()
      for errno, code in pairs { EDQUOT = "ENOSPC", EIO = "EIO", EFBIG = "E2BIG", EMFILE = "EMFILE" } do
        for _, rule in ipairs { { "OPENAT", "" }, { "OPENAT", c:shm_name "k" }, { "PWRITEV" } } do
          sys.rule { op = rule[1], match = rule[2], errno = errno, skip = rule[2] == "" and 1 or 0 }
          failed(code, c:put("k", "x"))
          assert.is_false(exists(segment_path "k") or exists(c:lock_path "k"))
        end
      end
      assert.is_true(c:put("k", "fits"))
      assert.equal("fits", c:get "k")
    end)
  end

  -- ---- what is not ours ----

  describe("where something else lies in the place", function()
    -- What every operation says of a key that is in strange hands; `replaced` puts the stranger there.
    local function refused(path, replaced)
      c:put("k", "x")
      assert(os.remove(path))
      replaced(path)
      local before = assert(uv.fs_lstat(path))
      for _ = 1, 2 do
        failed("EACCES", c:get "k")
        failed("EACCES", c:get_view "k")
        failed("EACCES", c:wait("k", { timeout = 20 }))
      end
      for _ = 1, 2 do failed("EACCES", c:put("k", "y")) end
      c:cleanup_prefix "k"
      assert.equal(before.ino, (uv.fs_lstat(path) or {}).ino) -- it is where it was
      os.remove(segment_path "k")
      os.remove(c:lock_path "k")
    end

    local places = { segment = function() return segment_path "k" end, lock = function() return c:lock_path "k" end }
    for name, path in pairs(places) do
      it(("of the %s, a symlink is not followed"):format(name), function()
        with_dir(function(dir)
          write_file(dir .. "/secret", header(6) .. "secret")
          refused(path(), function(at) assert(uv.fs_symlink(dir .. "/secret", at)) end)
          assert.equal(header(6) .. "secret", files.read_file(dir .. "/secret"))
        end)
      end)

      it(("of the %s, a pipe holds nobody up"):format(name), function()
        refused(path(), function(at) assert.equal(0, os.execute("mkfifo " .. at)) end)
      end)

      it(("of the %s, a file of another user is not trusted and not removed"):format(name), function()
        if uv.getuid() ~= 0 then
          pending "only root can make files of another user"
          return
        end
        refused(path(), function(at)
          write_file(at, header(6) .. "forged")
          assert(uv.fs_chown(at, STRANGER, STRANGER))
        end)
      end)
    end

    it("of the segment, a directory is no value", function()
      c:put("k", "x")
      assert(os.remove(segment_path "k"))
      assert(uv.fs_mkdir(segment_path "k", 448))
      failed("EACCES", c:get "k")
      failed("EACCES", c:put("k", "y"))
      uv.fs_rmdir(segment_path "k")
      os.remove(c:lock_path "k")
    end)
  end)

  -- ---- what cannot be ----

  it("refuses lengths that no file can have, and reserves no memory for them", function()
    for _, length in ipairs { "\0\0\0\0\0\0\0\128", ("\255"):rep(8), ("\255"):rep(7) .. "\127" } do
      for _, rest in ipairs { "", "x", ("x"):rep(4088), ("x"):rep(100000) } do
        c:put("k", "x")
        write_file(segment_path "k", length .. rest)
        failed("E2BIG", c:get "k")
        failed("E2BIG", c:get_view "k")
        failed("E2BIG", c:wait "k")
      end
    end
    -- A length that could be is compared with the file before anything is reserved.
    write_file(segment_path "k", "\0\0\0\0\0\0\0\32" .. ("x"):rep(100000))
    failed("ECORRUPT", c:get "k")
    assert.equal(1, c:cleanup_prefix "")
  end)

  it("takes a truncated segment for torn, wherever it was cut", function()
    local value = header(100000) .. ("x"):rep(100000)
    for _, at in ipairs { 0, 1, 7, 8, 9, 4096, 65536, 65537, 100007 } do
      c:put("k", "x")
      write_file(segment_path "k", value:sub(1, at))
      failed("ECORRUPT", c:get "k")
      failed("ECORRUPT", c:get_view "k")
    end
    write_file(segment_path "k", value)
    assert.equal(100000, #c:get "k")
  end)

  it("works with names at their limit, and says when a path is beyond the system's", function()
    with_dir(function(dir)
      local deep = dir .. "/" .. ("d"):rep(255)
      local nine = assert(omni.shm.open { namespace = "zzzzzzzz9", lock_dir = deep })
      local key = ("k"):rep(2 ^ 20)
      local waiting = omni.spawn(function() return nine:wait(key, { timeout = 20 }) end)
      omni.sleep(0)
      assert.equal(30, #nine:shm_name(key))
      assert.is_true(nine:put(key, "value"))
      assert.equal("value", waiting:join())
      nine:close()
      failed("E2BIG", omni.shm.open { namespace = "zzzzzzzz9", lock_dir = dir .. "/" .. ("d"):rep(256) })
    end)
  end)

  -- ---- many at once ----

  it("counts each of many keys once, by the reader or by the cleanup that races it", function()
    local total = 3000
    for i = 1, total do assert(c:put("many_" .. i, "x")) end
    for i = 1, 10 do assert(c:put("other_" .. i, "x")) end
    local reader = thread.start(function(ns, n)
      local own, got = assert(require("omni.shm").open { namespace = ns }), 0
      for i = n, 1, -1 do if own:get("many_" .. i) then got = got + 1 end end
      own:close()
      return got
    end, namespace, total)
    local cleaned = c:cleanup_prefix "many_"
    local got = reader:join()
    assert.equal(total, cleaned + got + c:cleanup_prefix "many_")
    assert.equal(10, c:stats().live_segments)
    assert.equal(10, c:cleanup_prefix "other_")
  end)

  -- ---- waiting in vain ----

  it("says to who waits that the lock directory is gone", function()
    with_dir(function(dir)
      local own = assert(omni.shm.open { namespace = namespace, lock_dir = dir .. "/locks" })
      local waiting = omni.spawn(function() return own:wait("k", { timeout = 0.05 }) end)
      omni.sleep(0.01)
      assert(uv.fs_rmdir(dir .. "/locks"))
      failed("ENOENT", waiting:join(20)) -- not that nothing came
      failed("ENOENT", own:wait "later") -- at once
      own:close()
    end)
  end)

  it("sees a lock that a stranger lets go without a word", function()
    c:put("k", "v")
    local unlock, close = files.hold_lock(c:lock_path "k")
    local waiting = omni.spawn(function() return c:wait("k", { timeout = 20 }) end)
    until_busy(c, 5)
    unlock() -- and its descriptor stays open: no event is made
    assert.equal("v", waiting:join(20))
    close()
  end)

  it("loses nothing where the event of the close comes before the lock is free", function()
    local waiting = omni.spawn(function() return c:wait("k", { timeout = 20 }) end)
    omni.sleep(0.01)
    local unlock, close = files.hold_lock(c:lock_path "k", true)
    write_file(segment_path "k", header(1) .. "v")
    local busy = c:stats().busy
    write_file(c:lock_path "k", "") -- opened for writing and closed: the only event, and the lock is held
    until_busy(c, busy + 5)
    unlock()
    assert.equal("v", waiting:join(20))
    close()
  end)
end)
