-- omni.sink beside a sink for asyncio. Items are strings of 32 bytes, each its own, made before the clock starts. They
-- differ at both ends: LuaJIT's hash looks at the ends and the middle of a string only.

local measure = require "measure"
local sink = require "omni.sink"
local thread = require "omni.thread"
local uv = require "luv"

local function produce(into, ready, go, p, share)
  local items = {}
  for i = 1, share do items[i] = ("%08x%08x%08x%08x"):format(i, p, i, i) end
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

local function flood(producers, total)
  local into, share = sink.new(), math.floor(total / producers)
  local threads, gates = start(into, producers, share)
  total = share * producers
  local began, seen = uv.hrtime(), 0
  for _, gate in ipairs(gates) do gate:put "go" end
  while seen < total do seen = seen + #into:get_batch { max_items = 256 } end
  local elapsed = uv.hrtime() - began
  for _, t in ipairs(threads) do t:join() end
  local stats = into:stats()
  assert(seen == total and stats.puts == total, "an item was lost")
  return elapsed / total, stats.wakeups_scheduled / total * 1000
end

local function echo(requests, answers, rounds)
  requests:bind()
  local seen = 0
  while seen < rounds do
    for _, item in ipairs(requests:get_batch { timeout = 2 }) do
      answers:put(item)
      seen = seen + 1
    end
  end
end

local sides = {}

-- Nanoseconds per item, from the first put to the last item taken.
function sides.flood(producers, total)
  local per_item, wakeups = flood(tonumber(producers), tonumber(total))
  measure.result(per_item, { wakeups_per_1000 = wakeups })
end

function sides.wakeups(producers, total)
  local _, wakeups = flood(tonumber(producers), tonumber(total))
  measure.result(wakeups)
end

function sides.unconsumed(total)
  local into = sink.new()
  for i = 1, tonumber(total) do into:put(i) end
  measure.result(into:stats().wakeups_scheduled)
end

function sides.pingpong(rounds)
  local requests, answers, took = sink.new { bind = false }, sink.new(), {}
  local t = thread.start(echo, requests, answers, tonumber(rounds))
  for i = 1, tonumber(rounds) do
    local began = uv.hrtime()
    requests:put(i)
    local answer = answers:get_batch { timeout = 2 }
    took[i] = uv.hrtime() - began
    assert(answer[1] == i)
  end
  t:join()
  measure.result(measure.quantile(took))
end

local items = measure.rounds(200000)
local few = measure.rounds(40000)
local rounds = measure.rounds(5000)

measure.main("sink", sides, {
  { name = "sink, 1 producer, Python batched", unit = "ns/item", goal = 2,
    ours = { "flood", 1, items }, peer = { "flood", "batched", 1, items } },
  { name = "sink, 4 producers, Python batched", unit = "ns/item", goal = 2,
    ours = { "flood", 4, items }, peer = { "flood", "batched", 4, items } },
  { name = "sink, 1 producer, Python with a wakeup per put", unit = "ns/item", goal = 25,
    ours = { "flood", 1, items }, peer = { "flood", "naive", 1, few } },
  { name = "sink, 4 producers, Python with a wakeup per put", unit = "ns/item", goal = 25,
    ours = { "flood", 4, items }, peer = { "flood", "naive", 4, few } },
  { name = "sink, wakeups in a flood from 4 producers", unit = "wakeups/1000 items", goal = 2,
    ours = { "wakeups", 4, math.max(items, 20000) } },
  { name = "sink, wakeups for 1000 puts that nobody takes", unit = "wakeups", goal = 1, ours = { "unconsumed", 1000 } },
  { name = "sink, ping-pong between two states, p50", unit = "ns", goal = 8, pinned = true,
    ours = { "pingpong", rounds }, peer = { "pingpong", rounds } },
  { name = "sink, ping-pong between two states, p50", unit = "ns", goal = 1,
    ours = { "pingpong", rounds }, peer = { "pingpong", rounds } },
}, ...)
