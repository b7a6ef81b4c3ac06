-- omni.chunks beside an adapter in Python: from save_async in one process to poll_ready in another.

local chunks = require "omni.chunks"
local measure = require "measure"
local omni = require "omni"
local shm = require "omni.shm"
local uv = require "luv"

local PACE = 0.005 -- seconds between two chunks

local sides = {}

local function adapter(namespace, lock_dir)
  local connector = shm.open { namespace = namespace, lock_dir = lock_dir }
  return chunks.new { connector = connector, stage_id = "0", src_stage_id = "0" }
end

function sides.sender(namespace, count, size, pace)
  local a, body = adapter(namespace), ("x"):rep(tonumber(size))
  local due = omni.now()
  for i = 1, tonumber(count) do
    due = due + tonumber(pace)
    if due > omni.now() then omni.sleep(due - omni.now()) end
    a:save_async("v", { uv.hrtime(), body }, i == tonumber(count))
  end
  while a:stats().sent < tonumber(count) do omni.sleep(0.002) end
  a:stop()
end

-- Calls take(saved, now) for each chunk that a process of its own sends.
local function stream(count, size, pace, take)
  local namespace = ("b%08x"):format(uv.os_getpid() % 2 ^ 32)
  local a = adapter(namespace)
  a:load_async "v"
  local ended
  local sender = assert(uv.spawn(uv.exepath(), {
    args = { arg[0], "side", "sender", namespace, count, size, pace },
    stdio = { nil, nil, 2 },
  }, function(code) ended = code end))
  local finished
  while not finished do
    assert(a:wait { timeout = 60 })
    for _, chunk in ipairs(a:poll_ready().v or {}) do
      assert(not chunk.error, chunk.error)
      take(chunk.data[1], uv.hrtime())
      finished = chunk.finished
    end
  end
  a:stop()
  while not ended do omni.sleep(0.001) end
  sender:close()
  assert(ended == 0, "the sender failed")
end

-- The middle one's nanoseconds from save_async to poll_ready, at 200 chunks a second.
function sides.latency(count, size)
  local took = {}
  stream(count, size, PACE, function(saved, now) took[#took + 1] = now - saved end)
  measure.result(measure.quantile(took))
end

-- Nanoseconds per chunk, from the first save to the last poll.
function sides.burst(count, size)
  local first, last
  stream(count, size, 0, function(saved, now)
    first = first or saved
    last = now
  end)
  measure.result((last - first) / tonumber(count))
end

-- Waits with requests for which nothing comes until its input ends. The locks are in a directory of their own, so that
-- nobody else's have to be looked at.
function sides.idle(requests)
  local locks = assert(uv.fs_mkdtemp "/tmp/omnihost-bench-XXXXXX")
  local a = adapter("benchidle", locks)
  for i = 1, tonumber(requests) do a:load_async("idle" .. i) end
  print "ready"
  io.stdout:flush()
  local input = uv.new_pipe()
  input:open(0)
  input:read_start(function() a:stop() end)
  a:wait()
  input:close()
  uv.fs_rmdir(locks)
end

-- System calls per second of all threads of an idle side.
function sides.calls(command, seconds)
  local output, input = uv.new_pipe(), uv.new_pipe()
  local program, ended = command == "ours" and uv.exepath() or "python3", nil
  local script = command == "ours" and { arg[0], "side", "idle", "10" }
    or { (arg[0]:gsub("%.lua$", ".py")), "idle", "10" }
  local ready
  local idle, pid = uv.spawn(program, { args = script, stdio = { input, output, 2 } }, function() ended = true end)
  output:read_start(function(_, text) ready = ready or text end)
  while not ready do omni.sleep(0.01) end
  omni.sleep(0.2) -- what it has to do before it is idle
  local pipe = assert(io.popen(("timeout -s INT %s strace -f -qq -c -o /dev/stdout -p %d"):format(seconds, pid)))
  local calls = tonumber(pipe:read("*a"):match "(%d+)%s+%d*%s*total") or 0
  pipe:close()
  input:close()
  while not ended do omni.sleep(0.01) end
  output:close()
  idle:close()
  measure.result(calls / tonumber(seconds))
end

local paced, many = measure.rounds(400), measure.rounds(3000)
local seconds = math.max(1, measure.rounds(5))

measure.main("chunks", sides, {
  { name = "chunks, save to poll at 200/s, 1 KiB, p50", unit = "ns", goal = 6,
    ours = { "latency", paced, 1024 }, peer = { "latency", paced, 1024 } },
  { name = "chunks, save to poll at 200/s, 1 KiB, p50", unit = "ns", goal = 6, pinned = true,
    ours = { "latency", paced, 1024 }, peer = { "latency", paced, 1024 } },
  { name = "chunks, a burst of 1 KiB each", unit = "ns/chunk", goal = 5,
    ours = { "burst", many, 1024 }, peer = { "burst", many, 1024 } },
  { name = "chunks, 10 requests and nothing coming", unit = "system calls/s", goal = 0,
    ours = { "calls", "ours", seconds } },
}, ...)
