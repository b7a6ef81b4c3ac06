-- What the measurements share. Each side of a figure is a process of its own, this file's caller for ours and a Python
-- program for the peer, so that both can be pinned to a CPU; they run in turn, pair by pair.

local json = require "omni.json"
local uv = require "luv"

local measure = {}

local quick = os.getenv "OMNIHOST_BENCH_QUICK" == "1"

--- How many rounds to make: a hundredth where only the measurement itself is tried.
---@param n integer
---@return integer
function measure.rounds(n) return quick and math.max(4, math.floor(n / 100)) or n end

--- The middle one, or the q-quantile.
---@param values number[] sorted in place
---@param q? number 0.5
---@return number
function measure.quantile(values, q)
  table.sort(values)
  return values[math.max(1, math.ceil(#values * (q or 0.5)))]
end

--- Prints a side's result, for the process that asked for it.
---@param value number
---@param more? table further numbers for the figure's line
function measure.result(value, more)
  more = more or {}
  more.value = value
  io.stdout:write(json.encode(more), "\n")
  io.stdout:flush()
end

local function run(command)
  local pipe = assert(io.popen(command, "re"))
  local text = pipe:read "*a"
  pipe:close()
  return assert(json.decode(text), command .. " printed no result")
end

local function rounded(value) return value and tonumber(("%.4g"):format(value)) end

local function print_line(case, line)
  line.name, line.unit, line.goal, line.cpus = case.name, case.unit, case.goal, case.pinned and "pinned" or "unpinned"
  io.stdout:write(json.encode(line), "\n")
  io.stdout:flush()
end

local function middle(values) return rounded(measure.quantile({ unpack(values) })) end

-- ratio is peer / ours within each pair: smaller is better for both, so above 1 we are ahead.
local function compare(case, ours, peer)
  local mine, theirs, ratios, line = {}, {}, {}, {}
  for i = 1, quick and 1 or case.pairs or 5 do
    local result = run(ours)
    mine[i], theirs[i] = result.value, run(peer).value
    ratios[i] = theirs[i] / mine[i]
    result.value = nil
    for name, value in pairs(result) do line[name] = rounded(value) end
  end
  line.pairs, line.ours, line.peer, line.ratio = #mine, middle(mine), middle(theirs), middle(ratios)
  line.least, line.most = rounded(math.min(unpack(ratios))), rounded(math.max(unpack(ratios)))
  line.met = line.ratio >= case.goal
  print_line(case, line)
end

-- Without a peer the goal is a bound on the worst of our runs.
local function bound(case, ours)
  local mine = {}
  for i = 1, quick and 1 or case.pairs or 5 do mine[i] = run(ours).value end
  local worst = math.max(unpack(mine))
  print_line(case, { runs = #mine, ours = middle(mine), worst = rounded(worst), met = worst <= case.goal })
end

---@class measure.case
---@field name string
---@field unit string
---@field ours string[] side and its arguments
---@field peer? string[] arguments of the Python program
---@field goal number least ratio; without a peer the most that ours may be
---@field pinned? boolean both sides on one CPU
---@field pairs? integer 5

--- Runs one side where the script was started as `NAME side SIDE ARGUMENT…`, all cases otherwise.
---@param name string of the two files in this folder
---@param sides table<string, function> what ours can do; each calls measure.result
---@param cases measure.case[]
---@param first? string
---@param side? string
function measure.main(name, sides, cases, first, side, ...)
  if first == "side" then return sides[side](...) end
  local here = debug.getinfo(1, "S").source:match "^@(.*)/" or "."
  for _, case in ipairs(cases) do
    local prefix = case.pinned and "taskset -c 0 " or ""
    local ours = ("%s%s %s/%s.lua side %s"):format(prefix, uv.exepath(), here, name, table.concat(case.ours, " "))
    if case.peer then
      compare(case, ours, ("%spython3 %s/%s.py %s"):format(prefix, here, name, table.concat(case.peer, " ")))
    else
      bound(case, ours)
    end
  end
end

return measure
