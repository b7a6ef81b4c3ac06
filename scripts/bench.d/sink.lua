-- Items from producer threads to one consumer through omni.sink, beside an asyncio sink in Python: nanoseconds per item
-- from the first put to the last item taken. Every item is a string of its own, made before the clock starts.

local measure = dofile "scripts/bench.d/measure.lua"
local sink = require "omni.sink"
local thread = require "omni.thread"
local uv = require "luv"

local function produce(into, ready, go, p, share)
  local items = {}
  for i = 1, share do items[i] = ("%02d-%029d"):format(p, i) end
  go:bind()
  ready:put "ready"
  go:get_batch()
  for i = 1, share do into:put(items[i]) end
end

local function start(into, producers, share)
  local ready, threads, gates = sink.new(), {}, {}
  for p = 1, producers do
    gates[p] = sink.new { bind = false }
    threads[p] = thread.start(produce, into, ready, gates[p], p, share)
    ready:get_batch()
  end
  return threads, gates
end

local function ours(producers, total)
  local into, share = sink.new(), total / producers
  local threads, gates = start(into, producers, share)
  local began, seen = uv.hrtime(), 0
  for _, gate in ipairs(gates) do gate:put "go" end
  while seen < total do seen = seen + #into:get_batch { max_items = 256 } end
  local elapsed = uv.hrtime() - began
  for _, t in ipairs(threads) do t:join() end
  local stats = into:stats()
  assert(seen == total and stats.puts == total, "an item was lost")
  return elapsed / total, stats.wakeups_scheduled / total * 1000
end

local function python(kind, producers, total)
  return tonumber(measure.output(("python3 scripts/bench.d/sink.py %s %d %d"):format(kind, producers, total)))
end

local cases = { { "batched", 1, 200000 }, { "batched", 4, 200000 }, { "naive", 1, 40000 }, { "naive", 4, 40000 } }

for _, case in ipairs(cases) do
  local kind, producers, total = case[1], case[2], case[3]
  local wakeups
  measure.compare {
    name = ("sink, %d producer%s, Python %s"):format(producers, producers > 1 and "s" or "", kind),
    unit = "ns/item",
    ours = function()
      local per_item
      per_item, wakeups = ours(producers, 200000)
      return per_item
    end,
    peer = function() return python(kind, producers, total) end,
    more = function() return { wakeups_per_1000 = wakeups } end,
  }
end
