-- Guest programs with early reads beside the same programs without, a pool of plain pthreads as the floor, and, where
-- `go` is installed, futures in Go. One JSON line per figure; times are medians,
-- those of sleeping tools first quarters.

local json = require "omni.json"
local measure = require "measure"
local omni = require "omni"
local plm = require "omni.plm"
local uv = require "luv"

local here = debug.getinfo(1, "S").source:match "^@(.*)/" or "."
local manifest = plm.manifest { "plm.tools" }
local runner = plm.runner { manifest = manifest, limits = { seconds = 60, calls = 1e6 } }

local function rounded(value) return value and tonumber(("%.4g"):format(value)) end

local function line(figure)
  for key, value in pairs(figure) do
    if type(value) == "number" then figure[key] = rounded(value) end
  end
  io.stdout:write(json.encode(figure), "\n")
  io.stdout:flush()
end

local function check(report)
  assert(report.ok, report.error and report.error.message)
  assert(report.stats.pending + report.stats.active + report.stats.memory_left == 0, "something was left behind")
  return report
end

local function on(source) return check(runner:run_plm(source)) end
local function off(source) return check(runner:run(source)) end

local function median_of(n, fn)
  local values = {}
  for i = 1, n do values[i] = fn() end
  return measure.quantile(values)
end

-- The first quarter of each function's times, made in turn: what else runs on the machine makes a sleep longer, never
-- shorter.
local function quarters_of(n, ...)
  local functions, values, quarters = { ... }, {}, {}
  for k = 1, #functions do values[k] = {} end
  for i = 1, n do
    for k, fn in ipairs(functions) do values[k][i] = fn() end
  end
  for k = 1, #functions do quarters[k] = measure.quantile(values[k], 0.25) end
  return unpack(quarters)
end

local function output(command)
  local pipe = assert(io.popen(command, "re"))
  local text = pipe:read "*a"
  pipe:close()
  return json.decode(text)
end

-- Milliseconds from the first step of the host to the last delivery.
local function span(report)
  local first, last = math.huge, 0
  for _, event in ipairs(report.events) do
    first = math.min(first, event.t_prepare or math.huge, event.t_start or math.huge)
    last = math.max(last, event.t_resolve or 0)
  end
  return (last - first) * 1e3
end

-- ---- independent reads ----

local function reads(k, seconds)
  local parts = {}
  for i = 1, k do parts[i] = ("local r%d = read(%d, %g)"):format(i, i, seconds) end
  return table.concat(parts, "\n")
end

local function compiled(name)
  local program = os.tmpname()
  local command = name == "floor" and "cc -O2 -pthread -o %s %s/plm/floor.c" or "go build -o %s %s/plm/future.go"
  local ok = os.execute(command:format(program, here)) == 0
  return ok and program or nil, program
end

local function independent(floor)
  local rounds = math.max(3, measure.rounds(15))
  for _, ms in ipairs { 10, 50 } do
    for _, k in ipairs { 2, 4, 8 } do
      on(reads(k, ms / 1e3)) -- the workers are there
      local one, ours = quarters_of(rounds, function() return span(off(reads(1, ms / 1e3))) end,
        function() return span(on(reads(k, ms / 1e3))) end)
      local without = median_of(3, function() return span(off(reads(k, ms / 1e3))) end)
      local plain = floor and output(("%s %d %d %d"):format(floor, k, ms, rounds))
      local goal = ms == 10 and 1.05 or 1.02
      line {
        name = ("plm, %d reads of %d ms over one"):format(k, ms), unit = "times", ours = ours / one, goal = goal,
        met = ours / one <= goal, off = without / one, pthreads = plain and plain.all / plain.one,
      }
    end
  end
end

-- ---- a mixed program ----

local MIXED = [[
local a = read(1, 0.02)
local b = read(2, 0.03)
local c = read(a + 10, 0.03)
local d = read(b + 20, 0.02)
local e = read(3, 0.02)
local f = read(4, 0.04)
return read(c + d + e + f, 0.02)
]]
local CRITICAL = 70 -- ms: two reads that need each other, 20 + 30 or 30 + 20, then the last

local function mixed()
  on(MIXED)
  local ours = quarters_of(math.max(3, measure.rounds(15)), function() return span(on(MIXED)) end)
  line {
    name = "plm, critical path over wall of a mixed program", unit = "times", ours = CRITICAL / ours, goal = 0.95,
    met = CRITICAL / ours >= 0.95, off = CRITICAL / median_of(3, function() return span(off(MIXED)) end),
  }
end

-- ---- the cost of a future ----

-- Microseconds of each call, from delivery to delivery, in a loop of `n` calls per turn.
local function call_costs(report, n)
  local costs, last, count = {}, nil, 0
  for _, event in ipairs(report.events) do
    if event.logical then
      count = count + 1
      if count % n == 0 then
        if last then costs[#costs + 1] = (event.t_resolve - last) * 1e6 / n end
        last = event.t_resolve
      end
    end
  end
  return costs
end

local function future_cost()
  local source = ("for i = 1, %d do local a = nop() local b = nop() end"):format(measure.rounds(5000))
  on(source)
  local with, without = call_costs(on(source), 2), call_costs(off(source), 2)
  for _, case in ipairs { { "p50", 0.5, 25 }, { "p99", 0.99, 250 } } do
    local ours, plain = measure.quantile(with, case[2]), measure.quantile(without, case[2])
    line {
      name = "plm, prepare and resolve of a no-op over the call in place, " .. case[1], unit = "us",
      ours = ours - plain, goal = case[3], met = ours - plain <= case[3], early = ours, in_place = plain,
    }
  end
end

-- ---- the pass ----

local function text_of(size, statement)
  local lines, length = {}, 0
  for i = 1, math.huge do
    lines[i] = statement:format(i, i)
    length = length + #lines[i] + 1
    if length >= size then return table.concat(lines, "\n") end
  end
end

local function pass()
  local cases = {
    { "something", 400, text_of(1024, "do local a = read(%d, 0) local b = read(-%d, 0) end") },
    { "nothing", 50, text_of(1024, "local x%d = (inputs.a or %d) * 2") },
  }
  for _, case in ipairs(cases) do
    local took = median_of(measure.rounds(300), function()
      local began = uv.hrtime()
      plm.rewrite(case[3], manifest)
      return (uv.hrtime() - began) / 1e3
    end)
    line {
      name = ("plm, rewriting 1 KB with %s to hoist"):format(case[1]), unit = "us", ours = took, goal = case[2],
      met = took <= case[2],
    }
  end
end

local function single()
  local rounds, more = measure.rounds(200), {}
  local source = "local a = read(1, 0.002) return a"
  on(source)
  local plain = {}
  for i = 1, rounds do
    plain[i] = off(source).stats.wall * 1e6
    more[i] = on(source).stats.wall * 1e6
  end
  local a, b = measure.quantile(plain), measure.quantile(more)
  line {
    name = "plm, a program with one read, on over off", unit = "us", ours = b - a, goal = math.max(50, a / 100),
    off = a, met = b - a <= math.max(50, a / 100),
  }
end

-- ---- a pool with too much to do ----

local function crowd(with, method, programs)
  local took, tasks = {}, {}
  for i = 1, 16 do
    tasks[i] = omni.spawn(function()
      for n = i, programs, 16 do took[n] = check(method(with, reads(6, 0.002))).stats.wall end
    end)
  end
  for _, task in ipairs(tasks) do task:join() end
  return took
end

local function saturated()
  local small = plm.manifest { "plm.tools", workers = 4 }
  local with = plm.runner { manifest = small }
  local programs = math.max(32, measure.rounds(480))
  crowd(with, with.run, 16)
  local plain = crowd(with, with.run, programs)
  local early = crowd(with, with.run_plm, programs)
  small:close()
  local limit = measure.quantile({ unpack(plain) }, 0.95)
  local function on_time(list)
    local n = 0
    for _, seconds in ipairs(list) do n = n + (seconds <= limit and 1 or 0) end
    return n
  end
  local ratio = on_time(early) / on_time(plain)
  line {
    name = "plm, programs on time on a pool with four times its work, on over off", unit = "times", ours = ratio,
    goal = 0.99, met = ratio >= 0.99, limit_ms = limit * 1e3,
  }
end

-- ---- Go ----

local function lookups(n)
  local parts = {}
  for i = 1, n do parts[i] = ('local r%d = lookup("k%d")'):format(i, i) end
  return table.concat(parts, "\n")
end

local naps = {}
for i = 1, 64 do naps[i] = ("local r%d = read(%d, 0.001)"):format(i, i) end

local function with_go(go)
  local rounds = measure.rounds(300)
  local one = "for i = 1, 1000 do local r = lookup('k' .. (i % 64 + 1)) end"
  local cases = {
    { "a JSON lookup, 1 in flight", "ns", "lookup1",
      function() return measure.quantile(call_costs(off(one), 1)) * 1e3 end },
    { "a JSON lookup, 64 in flight", "ns", "lookup64", function() return span(on(lookups(64))) * 1e6 / 64 end },
    { "64 reads that sleep 1 ms", "ms", "sleep64", function() return span(on(table.concat(naps, "\n"))) end, 1 / 1.05 },
  }
  for _, case in ipairs(cases) do
    case[4]()
    local ours = median_of(case[3] == "lookup1" and 5 or math.max(5, measure.rounds(50)), case[4])
    local peer = go and output(("%s %s %d"):format(go, case[3], rounds)).value
    line {
      name = "plm, " .. case[1] .. (go and ", Go" or ", Go (missing)"), unit = case[2], ours = ours, peer = peer,
      ratio = peer and peer / ours, goal = case[5], met = case[5] and peer and peer / ours >= case[5] or nil,
    }
  end
end

-- ---- all of it ----

local floor, floor_file = compiled "floor"
local has_go = os.execute "command -v go >/dev/null 2>&1" == 0
local go, go_file
if has_go then go, go_file = compiled "go" end
independent(floor)
mixed()
future_cost()
pass()
single()
saturated()
with_go(go)
os.remove(floor_file)
if go_file then os.remove(go_file) end
local stats = manifest:stats()
manifest:close()
line { name = "plm, runs and jobs left behind", unit = "objects", ours = (stats.active or 0) + (stats.queued or 0),
  goal = 0, met = (stats.active or 0) + (stats.queued or 0) == 0 }
