--- What the specs of the chunk adapter share: a connector of their own, adapters that end with the spec, ways to wait.
local chunks = require "omni.chunks"
local ffi = require "ffi"
local omni = require "omni"
local sys = require "omni.testing.sys"
local uv = require "luv"

ffi.cdef [[ int open(const char *, int, ...); int flock(int, int); int close(int); ]]

local M = {}
local namespaces = 0

--- Waits for a state of affairs that another thread brings about.
---@param condition fun(): boolean?
---@param what? string
function M.eventually(condition, what)
  local deadline = omni.now() + 20
  while not condition() do
    assert(omni.now() < deadline, "in vain: " .. (what or "condition"))
    omni.sleep(0.0005)
  end
end

--- Holds a lock file as a stranger would.
---@param path string
---@return fun() release unlocks, without an event for the watchers
---@return fun() close
function M.hold_lock(path)
  local fd = ffi.C.open(path, 0x80042, ffi.cast("int", 384)) -- O_RDWR | O_CREAT | O_CLOEXEC, 0600
  assert(fd >= 0 and ffi.C.flock(fd, 2) == 0)
  return function() ffi.C.flock(fd, 8) end, function() ffi.C.close(fd) end
end

---@class spec.ChunkAdapters
---@field conn omni.Shm the spec's connector
---@field namespace string
local Adapters = {}

--- Before each spec a connector, after it nothing: adapters stopped, keys removed.
---@param before_each fun(fn: fun()) busted's
---@param after_each fun(fn: fun()) busted's
---@return spec.ChunkAdapters a its functions need no self
function M.setup(before_each, after_each)
  local a, open = {}, {}
  for name, fn in pairs(Adapters) do
    a[name] = function(...) return fn(a, ...) end
  end

  --- An adapter that the spec's end stops.
  function a.new(opts)
    opts.connector = a.conn
    local adapter = chunks.new(opts)
    open[#open + 1] = adapter
    return adapter
  end

  before_each(function()
    namespaces = namespaces + 1
    a.namespace = ("c%d"):format((uv.os_getpid() * 100 + namespaces) % 10000000)
    -- A directory of our own: what strangers do in /dev/shm would wake RECV.
    a.conn = omni.shm.open { namespace = a.namespace, lock_dir = "/dev/shm/" .. a.namespace .. ".d" }
    open = {}
  end)

  after_each(function()
    sys.reset()
    for _, adapter in ipairs(open) do adapter:stop() end
    M.eventually(function() -- what threads still held is undone by them
      a.conn:cleanup_prefix ""
      return a.conn:stats().live_segments == 0
    end)
    a.conn:close()
    assert(uv.fs_rmdir("/dev/shm/" .. a.namespace .. ".d"))
  end)
  return a
end

--- A sender and a receiver of stage "0".
function Adapters.pair(a, opts)
  local send, receive = { stage_id = "0" }, { src_stage_id = "0" }
  for key, value in pairs(opts or {}) do
    send[key] = value
    if key == "window" or key == "encoding" then receive[key] = value end
  end
  return a.new(send), a.new(receive)
end

--- Whether the segment of a key is there.
function Adapters.stored(a, key) return uv.fs_stat("/dev/shm/" .. a.conn:shm_name(key)) ~= nil end

--- All items of a request until the finished one or an error.
function Adapters.receive(_, rcv, req)
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

--- Exactly n items of a request.
function Adapters.take(_, rcv, req, n)
  local items = {}
  while #items < n do
    assert(rcv:wait { timeout = 20 })
    for _, item in ipairs(rcv:poll_ready()[req] or {}) do items[#items + 1] = item end
  end
  assert(#items == n, #items .. " items")
  return items
end

--- The data of items.
function Adapters.data_of(_, items)
  local all = {}
  for i, item in ipairs(items) do all[i] = item.data end
  return all
end

--- Waits until the sender has put n chunks.
function Adapters.sent(_, snd, n)
  M.eventually(function() return snd:stats().sent == n end, n .. " chunks sent")
end

return M
