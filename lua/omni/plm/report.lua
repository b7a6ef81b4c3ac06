--- What a report says, for people: what overlapped, what was hoisted and why not, and the trace for a browser.

local json = require "omni.json"

local M = {}

-- ---- time ----

-- The stretches in which a tool was at work for the program; what was prepared and claimed counts once.
local function stretches(report)
  local list = {}
  for _, event in ipairs(report.events) do
    local again = event.op == "resolve" and event.outcome == "adopted"
    if event.t_start and event.t_end and not again then list[#list + 1] = event end
  end
  table.sort(list, function(a, b) return a.t_start < b.t_start end)
  return list
end

--- How long tools were at work, each for itself and all together.
---@param report omni.plm.Report
---@return number busy seconds, added up
---@return number span seconds in which at least one was at work
function M.overlap(report)
  local busy, span, until_ = 0, 0, -math.huge
  for _, event in ipairs(stretches(report)) do
    busy = busy + event.t_end - event.t_start
    span = span + math.max(0, event.t_end - math.max(event.t_start, until_))
    until_ = math.max(until_, event.t_end)
  end
  return busy, span
end

-- ---- equality ----

local function calls_text(report)
  local lines = {}
  for i, call in ipairs(report.logical) do lines[i] = call.tool .. call.args end
  return table.concat(lines, "\n")
end

local function result_text(report)
  local list = {}
  for i = 1, report.results.n do list[i] = report.results[i] == nil and json.null or report.results[i] end
  return assert(json.encode(json.array(list)))
end

local function error_text(report)
  local e = report.error
  return e and ("%s at line %s: %s"):format(e.code, tostring(e.line), e.message) or "none"
end

--- In what two reports of one program differ.
---@param a omni.plm.Report
---@param b omni.plm.Report
---@return string[] differences empty when they tell the same
function M.differences(a, b)
  local found = {}
  local function compare(what, x, y)
    if x ~= y then found[#found + 1] = ("%s differ:\n  %s\n  %s"):format(what, x, y) end
  end
  compare("results", result_text(a), result_text(b))
  compare("errors", error_text(a), error_text(b))
  compare("logical traces", calls_text(a), calls_text(b))
  compare("prints", a.printed, b.printed)
  return found
end

-- ---- a trace for chrome://tracing and ui.perfetto.dev ----

local PROGRAM = 0 -- the track of the program itself; workers have their own numbers
local LOOP = 1000 -- and inline tools run on the script's loop

local function track_name(id, name)
  return { ph = "M", name = "thread_name", pid = 1, tid = id, args = { name = name } }
end

local function microseconds(report, time) return (time - report.began) * 1e6 end

local function slice(report, event)
  return {
    ph = "X", name = event.tool, cat = event.op, pid = 1, tid = event.worker or LOOP,
    ts = microseconds(report, event.t_start), dur = (event.t_end - event.t_start) * 1e6,
    args = { args = event.args, line = event.line, handle = event.handle, outcome = event.outcome },
  }
end

local function mark(report, event, what, time)
  return {
    ph = "i", s = "t", name = ("%s %s"):format(what, event.tool), pid = 1, tid = PROGRAM,
    ts = microseconds(report, time),
    args = { args = event.args, line = event.line, outcome = event.outcome },
  }
end

--- The report's events as Trace Event JSON, one track for the program and one for each worker.
---@param report omni.plm.Report
---@return string
function M.chrome(report)
  local out, tracks = { track_name(PROGRAM, "program") }, {}
  out[2] = {
    ph = "X", name = "program", pid = 1, tid = PROGRAM, ts = 0, dur = report.stats.guest * 1e6,
    args = { ok = report.ok, error = report.error and report.error.message },
  }
  for _, event in ipairs(stretches(report)) do
    local id = event.worker or LOOP
    if not tracks[id] then
      tracks[id] = true
      out[#out + 1] = track_name(id, id == LOOP and "script's loop" or ("worker %d"):format(id))
    end
    out[#out + 1] = slice(report, event)
  end
  for _, event in ipairs(report.events) do
    if event.op == "prepare" then out[#out + 1] = mark(report, event, "prepare", event.t_prepare) end
    if event.logical and event.t_resolve then out[#out + 1] = mark(report, event, "deliver", event.t_resolve) end
  end
  return assert(json.encode { traceEvents = json.array(out), displayTimeUnit = "ms" })
end

-- ---- the source beside what was hoisted ----

local WIDTH = 72 -- of the source; longer lines push the remarks on

local function remark(call)
  if not call.hoisted then return ("%s: %s"):format(call.tool, call.why or "stays") end
  if call.at == call.line then return ("%s: starts early"):format(call.tool) end
  return ("%s: starts at line %d"):format(call.tool, call.at)
end

local function by_line(calls)
  local lines = {}
  for _, call in ipairs(calls) do
    lines[call.line] = lines[call.line] or {}
    table.insert(lines[call.line], call)
  end
  return lines
end

--- The source with a remark for each tool call; `>` marks lines at which reads are started.
---@param source string
---@param info omni.plm.rewrite_info
---@return string
function M.explain(source, info)
  local out, calls, starts, number = {}, by_line(info.calls), {}, 0
  for _, call in ipairs(info.calls) do
    if call.hoisted then starts[call.at] = true end
  end
  if source:sub(-1) ~= "\n" then source = source .. "\n" end
  for line in source:gmatch "(.-)\r?\n" do
    number = number + 1
    local text = ("%4d %s %s"):format(number, starts[number] and ">" or " ", line)
    for _, call in ipairs(calls[number] or {}) do
      out[#out + 1] = ("%-" .. WIDTH .. "s | %s"):format(text, remark(call))
      text = ""
    end
    if text ~= "" then out[#out + 1] = text end
  end
  out[#out + 1] = info.changed and ("%d of %d calls start early"):format(#info.sites, #info.calls)
    or ("nothing starts early%s"):format(info.reason and ": " .. info.reason or "")
  return table.concat(out, "\n") .. "\n"
end

return M
