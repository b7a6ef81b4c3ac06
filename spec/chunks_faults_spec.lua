local files = require "spec.support.shm_files"
local omni = require "omni"
local support = require "spec.support.chunk_adapters"
local uv = require "luv"

local eventually = support.eventually

-- What lies where the next chunk should be, and how the request ends for who receives it.
local FAULTS = {
  ["a segment whose writer died"] = { "ECORRUPT", function(path) files.write_file(path, files.header(100) .. "x") end },
  ["a length that no file can have"] = { "E2BIG", function(path) files.write_file(path, ("\0"):rep(7) .. "\128") end },
  ["a symlink"] = { "EACCES", function(path)
    assert(os.remove(path))
    assert(uv.fs_symlink("/etc/passwd", path))
  end },
  ["a file of another user"] = { "EACCES", function(path) assert(uv.fs_chown(path, 65534, 65534)) end, root = true },
}

describe("chunk adapter", function()
  local a = support.setup(before_each, after_each)

  for name, fault in pairs(FAULTS) do
    it(("fails the request that finds %s, and goes on with others"):format(name), function()
      if fault.root and uv.getuid() ~= 0 then
        pending "only root can make files of another user"
        return
      end
      local snd, rcv = a.pair()
      snd:save_async("bad", 1, false)
      snd:save_async("good", 1, false)
      a.sent(snd, 2)
      local path = "/dev/shm/" .. a.conn:shm_name "bad_0_0"
      fault[2](path)
      rcv:load_async "bad"
      rcv:load_async "good"
      local items = {}
      while not (items.bad and items.good) do
        assert(rcv:wait { timeout = 20 })
        for req, list in pairs(rcv:poll_ready()) do items[req] = list[1] end
      end
      assert.equal(fault[1], items.bad.code)
      assert.matches(('^%s: chunk 0 of request "bad": '):format(fault[1]), items.bad.error)
      assert.is_nil(items.bad.data)
      assert.is_nil(items.bad.sender)
      assert.same({ data = 1, finished = false }, items.good)
      assert.equal(1, rcv:stats().registered)
      snd:save_async("bad", 2, true)
      a.sent(snd, 3)
      snd:save_async("good", 2, true)
      assert.same({ 2 }, a.data_of(a.receive(rcv, "good"))) -- and nothing more of the bad one
      os.remove(path)
      os.remove(a.conn:lock_path "bad_0_0")
    end)
  end

  it("takes a lock that is let go without a word, for many requests at once", function()
    local snd, rcv = a.pair()
    local held = {}
    for i = 1, 20 do
      snd:save_async("r" .. i, i, true)
      a.sent(snd, i)
      held[i] = { files.hold_lock(a.conn:lock_path(("r%d_0_0"):format(i))) }
      rcv:load_async("r" .. i)
    end
    eventually(function() return a.conn:stats().busy > 60 end)
    for i = 1, 20 do held[i][1]() end
    local got = 0
    while got < 20 do
      assert(rcv:wait { timeout = 20 })
      for req, list in pairs(rcv:poll_ready()) do
        assert.equal(req, "r" .. list[1].data)
        got = got + 1
      end
    end
    for i = 1, 20 do held[i][2]() end
  end)

  it("stops at once while SAVE waits for a lock that somebody holds, and keeps that one's lock file", function()
    local path = a.conn:lock_path "r_0_0"
    local unlock, close = files.hold_lock(path, true)
    local snd = a.new { stage_id = "0" }
    snd:save_async("r", 1, false)
    eventually(function() return snd:stats().put_retries > 3 end)
    local start = omni.now()
    snd:stop()
    assert.is_true(omni.now() - start < 0.1)
    unlock()
    close()
    assert.is_true(files.exists(path))
    assert.is_false(a.stored "r_0_0")
    os.remove(path)
  end)
end)
