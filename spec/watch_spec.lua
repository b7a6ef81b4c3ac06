local chunks = require "omni.chunks"
local omni = require "omni"
local sys = require "omni.testing.sys"
local uv = require "luv"

local namespaces = 0

-- Waits for a state of affairs that another thread brings about.
local function eventually(condition)
  local deadline = omni.now() + 20
  while not condition() do
    assert(omni.now() < deadline, "in vain")
    omni.sleep(0.0005)
  end
end

local function inotify_descriptors()
  local n, request = 0, uv.fs_scandir "/proc/self/fd"
  for name in function() return uv.fs_scandir_next(request) end do
    if (uv.fs_readlink("/proc/self/fd/" .. name) or ""):find "inotify" then n = n + 1 end
  end
  return n
end

-- What the watch does is seen through those who use it: adapters that receive, and connectors that wait.
describe("watch", function()
  local conn, dir, open

  local function new(opts)
    opts.connector = conn
    local adapter = chunks.new(opts)
    open[#open + 1] = adapter
    return adapter
  end

  local function receive(rcv, req)
    assert(rcv:wait { timeout = 20 })
    return rcv:poll_ready()[req][1].data
  end

  before_each(function()
    namespaces = namespaces + 1
    local namespace = ("w%d"):format((uv.os_getpid() * 100 + namespaces) % 10000000)
    dir = "/dev/shm/" .. namespace .. ".d"
    conn = omni.shm.open { namespace = namespace, lock_dir = dir }
    open = {}
  end)

  after_each(function()
    sys.reset()
    for _, adapter in ipairs(open) do adapter:stop() end
    conn:cleanup_prefix ""
    conn:close()
    uv.fs_rmdir(dir)
  end)

  it("has one inotify instance for all who wait, and none when nobody does", function()
    assert.equal(0, inotify_descriptors())
    for i = 1, 5 do
      local rcv = new { src_stage_id = tostring(i) }
      for n = 1, 10 do rcv:load_async("r" .. n) end
    end
    eventually(function() return inotify_descriptors() == 1 end)
    for _, adapter in ipairs(open) do adapter:stop() end
    eventually(function() return inotify_descriptors() == 0 end)
  end)

  it("does not wake a receiver by what it takes itself", function()
    local snd, rcv = new { stage_id = "0" }, new { src_stage_id = "0" }
    rcv:load_async "r"
    local polls
    local function asleep()
      eventually(function()
        local before = polls
        polls = sys.count "PPOLL"
        omni.sleep(0.01)
        return polls == before
      end)
      return polls
    end
    local start = asleep()
    for i = 1, 20 do
      snd:save_async("r", i, false)
      assert.equal(i, receive(rcv, "r"))
      asleep()
    end
    -- One wait per chunk, and now and then a retry where an event came while the lock was held; not two.
    assert.is_true(polls - start <= 30, polls - start .. " waits for 20 chunks")
  end)

  for op, errno in pairs { INOTIFY_INIT = "EMFILE", INOTIFY_ADD = "ENOSPC" } do
    it("delivers without " .. op .. ", too", function()
      omni.log.capture()
      finally(function() omni.log.release() end)
      local rule = sys.rule { op = op, action = "fail", errno = errno, times = math.huge }
      local snd, rcv = new { stage_id = "0" }, new { src_stage_id = "0" }
      rcv:load_async "r"
      eventually(function() return rule:hits() > 0 end)
      for i = 1, 5 do
        snd:save_async("r", i, i == 5)
        assert.equal(i, receive(rcv, "r"))
      end
      local records = omni.log.release()
      assert.equal(1, #records) -- said once
      assert.matches("no inotify watch can be had", records[1].msg)
    end)
  end

  it("loses nothing where the event comes before the lock is free", function()
    -- The reader is woken by the close of the segment's lock; here it comes while the writer still holds it.
    local rule = sys.rule { op = "PWRITEV", when = "after", action = "hold" }
    local snd, rcv = new { stage_id = "0" }, new { src_stage_id = "0" }
    snd:save_async("r", "late", true)
    assert(rule:wait())
    rcv:load_async "r" -- its first look finds the lock held
    eventually(function() return conn:stats().busy >= 3 end) -- and it looks again
    rule:remove()
    assert.equal("late", receive(rcv, "r"))
  end)

  it("puts the key into the table before the first look", function()
    -- Held between the watch and the look: the chunk that is put now is seen by the look, or announced by an event.
    local rule = sys.rule { op = "INOTIFY_ADD", when = "after", action = "hold" }
    local snd, rcv = new { stage_id = "0" }, new { src_stage_id = "0" }
    local loader = omni.thread(function(adapter) return adapter:load_async "r" end, rcv)
    assert(rule:wait())
    snd:save_async("r", "between", true)
    eventually(function() return snd:stats().sent == 1 end)
    rule:remove()
    assert.is_true(loader:join())
    assert.equal("between", receive(rcv, "r"))
  end)

  it("tells receivers that their directory was removed", function()
    local rcv = new { src_stage_id = "0" }
    os.remove(dir)
    rcv:load_async "r"
    assert(rcv:wait { timeout = 20 })
    local item = rcv:poll_ready().r[1]
    assert.equal("ENOENT", item.code)
    assert.equal(0, rcv:stats().registered)
  end)

  it("watches consumption only while somebody waits for credit", function()
    local snd, rcv = new { stage_id = "0", window = 2 }, new { src_stage_id = "0", window = 2 }
    snd:save_async("r", 1, false)
    eventually(function() return snd:stats().sent == 1 end)
    assert.equal(0, inotify_descriptors())
    local task = omni.spawn(function() return snd:credit("r", 20) end)
    eventually(function() return inotify_descriptors() == 1 end)
    rcv:load_async "r"
    assert.is_true(task:join())
    assert.equal(1, receive(rcv, "r"))
  end)
end)
