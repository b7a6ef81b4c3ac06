-- omni.router beside one of threads and queues: calls with keys such as {"rpc", 7} and a timeout.

local measure = require "measure"
local router = require "omni.router"
local sink = require "omni.sink"
local thread = require "omni.thread"
local uv = require "luv"

local sides = {}

-- The result is delivered inside of send. Nanoseconds per call.
function sides.inside(calls)
  local r = router.new()
  calls = tonumber(calls)
  local began = uv.hrtime()
  for i = 1, calls do
    local key = { "rpc", i }
    assert(r:call(key, function() r:deliver(key, i) end, 1) == i)
  end
  measure.result((uv.hrtime() - began) / calls)
end

local function respond(r, requests)
  requests:bind()
  while true do
    for _, i in ipairs(requests:get_batch()) do
      if i == false then return end
      r:deliver({ "rpc", i }, i)
    end
  end
end

-- The request goes to another thread, which delivers. The middle call's nanoseconds.
function sides.across(calls)
  local r, requests, took = router.new(), sink.new { bind = false }, {}
  local t = thread.start(respond, r, requests)
  for i = 1, tonumber(calls) do
    local key = { "rpc", i }
    local began = uv.hrtime()
    local value = r:call(key, function() requests:put(i) end, 5)
    took[i] = uv.hrtime() - began
    assert(value == i)
  end
  requests:put(false)
  t:join()
  measure.result(measure.quantile(took))
end

local inside, across = measure.rounds(50000), measure.rounds(5000)

measure.main("router", sides, {
  { name = "router, call with delivery inside of send", unit = "ns", goal = 30,
    ours = { "inside", inside }, peer = { "inside", inside } },
  { name = "router, call across threads, p50", unit = "ns", goal = 5, pinned = true,
    ours = { "across", across }, peer = { "across", across } },
  { name = "router, call across threads, p50", unit = "ns", goal = 1,
    ours = { "across", across }, peer = { "across", across } },
}, ...)
