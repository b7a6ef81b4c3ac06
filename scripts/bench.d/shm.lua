-- omni.shm beside a connector of Python's shared_memory and flock: nanoseconds per put and get of one key. The clock
-- starts when everything has run once.

local ffi = require "ffi"
local measure = require "measure"
local shm = require "omni.shm"
local uv = require "luv"

local NAMESPACE = "benchours"
local AHEAD = 8 -- values that a writer may be ahead of its reader

local sides = {}

local function payload(size)
  return string.rep("0123456789abcdef", math.ceil(size / 16)):sub(1, size)
end

local function key_of(base, i) return ("%s%d_0_%d"):format(base, uv.os_getpid(), i) end

function sides.inside(size, pairs)
  local c, data = shm.open { namespace = NAMESPACE }, payload(tonumber(size))
  pairs = tonumber(pairs)
  local began
  for i = 0, pairs do
    local key = key_of("inside", i)
    assert(c:put(key, data))
    assert(#c:get(key) == #data)
    began = began or uv.hrtime()
  end
  measure.result((uv.hrtime() - began) / pairs)
end

-- The value is mapped, and its bytes are copied to memory that is used again, so each is read.
function sides.view(size, pairs)
  local c, data = shm.open { namespace = NAMESPACE }, payload(tonumber(size))
  local copy = ffi.new("uint8_t[?]", #data)
  pairs = tonumber(pairs)
  local began
  for i = 0, pairs do
    local key = key_of("view", i)
    assert(c:put(key, data))
    local view = assert(c:get_view(key))
    ffi.copy(copy, view:ptr(), view:len())
    view:close()
    began = began or uv.hrtime()
  end
  measure.result((uv.hrtime() - began) / pairs)
  assert(ffi.string(copy, #data) == data)
end

-- A word that both processes see.
local function shared_word(path)
  ffi.cdef [[ void *mmap(void *, size_t, int, int, int, long); ]]
  local fd = assert(uv.fs_open(path, "r+", 384))
  local memory = ffi.C.mmap(nil, 4096, 3, 1, fd, 0)
  assert(uv.fs_close(fd))
  return ffi.cast("volatile int64_t *", memory)
end

-- Waits, busily, until the reader is so far. Interpreted: compiled, the word would be read once.
local function wait_until(taken, count)
  while taken[0] < count do end
end
jit.off(wait_until)

function sides.writer(path, base, size, pairs)
  local c, taken, data = shm.open { namespace = NAMESPACE }, shared_word(path), payload(tonumber(size))
  for i = 0, tonumber(pairs) do
    wait_until(taken, i - AHEAD + 1)
    assert(c:put(base .. i, data))
  end
end

function sides.across(size, pairs)
  local path, base = os.tmpname(), key_of("across", 0)
  local file = assert(io.open(path, "w"))
  file:write(("\0"):rep(4096))
  file:close()
  local c, taken = shm.open { namespace = NAMESPACE }, shared_word(path)
  local ended
  local writer = assert(uv.spawn(uv.exepath(), {
    args = { arg[0], "side", "writer", path, base, size, pairs },
    stdio = { nil, nil, 2 },
  }, function(code) ended = code end))
  local began
  for i = 0, tonumber(pairs) do
    local data
    repeat data = c:get(base .. i) until data
    assert(#data == tonumber(size))
    taken[0] = i + 1
    if i == 0 then began = uv.hrtime() end
  end
  measure.result((uv.hrtime() - began) / tonumber(pairs))
  os.remove(path)
  while not ended do require("omni").sleep(0.001) end
  writer:close()
  assert(ended == 0, "the writer failed")
end

function sides.absent(gets)
  local c = shm.open { namespace = NAMESPACE }
  gets = tonumber(gets)
  c:get "never put"
  local began = uv.hrtime()
  for _ = 1, gets do c:get "never put" end
  measure.result((uv.hrtime() - began) / gets)
end

local small, middle, large = measure.rounds(3000), measure.rounds(1500), measure.rounds(48)
local gets = measure.rounds(50000)

measure.main("shm", sides, {
  { name = "shm, put and get of 1 KiB in one process", unit = "ns", goal = 7,
    ours = { "inside", 1024, small }, peer = { "inside", 1024, small } },
  { name = "shm, put and get of 1 KiB across two processes", unit = "ns", goal = 4.5,
    ours = { "across", 1024, small }, peer = { "across", 1024, small } },
  { name = "shm, put and view of 64 KiB", unit = "ns", goal = 5,
    ours = { "view", 65536, middle }, peer = { "inside", 65536, middle } },
  { name = "shm, put and view of 4 MiB", unit = "ns", goal = 1.8,
    ours = { "view", 4194304, large }, peer = { "inside", 4194304, large } },
  { name = "shm, get of an absent key", unit = "ns", goal = 3,
    ours = { "absent", gets }, peer = { "absent", gets } },
}, ...)
