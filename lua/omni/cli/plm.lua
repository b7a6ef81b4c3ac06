--- `omnihost plm`: runs a guest program against tools, explains it, compares both ways to run it.

local cli = require "omni.cli"
local host = require "omni.native.host"
local json = require "omni.json"
local plm = require "omni.plm"
local uv = require "luv"

local verb = {}

local DESCRIPTION = [[
Runs a guest program: plain synchronous Lua that calls tools. Reads that are certain to happen start early and
overlap; every value, error and line is delivered where the call stands.

What the program prints goes to standard output, then its results, one line of JSON each.]]

local EPILOG = [[
A tool module is a Lua module that returns
  { name = { call = function(ctx, ...) ... end, allow_early_read = true }, ... }
The program finds each tool as a global of that name, and --inputs as the global inputs. Modules are looked for in
--dir, then in its folder lua, then on LUA_PATH.
Limits: memory=64M seconds=10 instructions=1e9 calls=1000 pending=64 output=1M (these are the defaults).
The program is kept from files, network and host by an allow-list. That is enough for code that errs, not for code that
is hostile: give that a process and a user of its own.
Exit codes: 0 done, 1 the program failed (or both ways differ), 2 wrong usage.]]

local function options_of(arguments)
  local parser = require "argparse"("omnihost plm", DESCRIPTION, EPILOG)
  parser:argument("file", "the program"):argname "FILE"
  parser:option("--tools", "tool modules"):argname("MODULE"):args "+":count "*"
  parser:option("--dir", "folder of the tool modules (default: the program's)"):argname "DIR"
  parser:option("--inputs", "what the program finds in `inputs`"):argname "JSON"
  parser:option("--limits", "limits of the run"):argname("KEY=VALUE"):args "+":count "*"
  parser:flag("--off", "start nothing early")
  parser:flag("--explain", "show what would start early and why not, without running it")
  parser:flag("--compare", "run it both ways and compare; what it writes is written each time")
  parser:option("--runs", "runs of each way for --compare; times are medians"):argname("N"):default "1"
    :convert(function(text)
      local n = tonumber(text)
      if n and n >= 1 then return math.floor(n) end
      return nil, ("--runs needs a number from 1 on, not %s"):format(text)
    end)
  parser:option("--trace", "write a trace for ui.perfetto.dev or chrome://tracing"):argname "OUT.json"
  parser:flag("--json", "print the whole report as one JSON object")
  local ok, result = parser:pparse(arguments)
  if ok then return result end
  io.stderr:write(parser:get_usage(), "\n\nomnihost: ", result, "\n")
  os.exit(2)
end

-- Messages without the place in our own code.
local function complain(text) io.stderr:write("omnihost: ", tostring(text), "\n") end

local function fail(text)
  complain(text)
  os.exit(1)
end

local function read_file(path)
  local file, why = io.open(path, "rbe")
  local text = file and file:read "*a"
  if file then file:close() end
  return text or fail(("cannot read %s"):format(why or path .. ": it is no file"))
end

local function flat(lists)
  local out = {}
  for _, list in ipairs(lists or {}) do
    for _, item in ipairs(list) do out[#out + 1] = item end
  end
  return out
end

local function limits_of(pairs_given)
  local limits = {}
  for _, text in ipairs(flat(pairs_given)) do
    for part in text:gmatch "[^,]+" do
      local key, value = part:match "^([%w_]+)=(.+)$"
      if not key then cli.usage(("--limits: %s is not KEY=VALUE"):format(part)) end
      limits[key] = tonumber(value) or value
    end
  end
  return limits
end

local function inputs_of(text)
  if not text then return nil end
  local value, why = json.decode(text)
  if value == nil then cli.usage("--inputs: " .. tostring(why)) end
  return value
end

local function folder_of(o)
  local folder = o.dir or o.file:match "^(.*)/[^/]*$" or "."
  return uv.fs_realpath(folder == "" and "/" or folder) or fail(("there is no folder %s"):format(folder))
end

-- What the user gave wrongly is said without a traceback.
local function checked(fn, ...)
  local ok, result = pcall(fn, ...)
  if ok then return result end
  complain(result)
  os.exit(2)
end

-- ---- output ----

local function print_error(report)
  local e = report.error
  complain(e.message .. (e.tool and (" (tool %s)"):format(e.tool) or ""))
  if e.traceback then io.stderr:write("stack traceback:\n", e.traceback, "\n") end
end

local function print_report(report)
  io.stdout:write(report.printed)
  for i = 1, report.results.n do
    local value = report.results[i]
    io.stdout:write(json.encode(value == nil and json.null or value), "\n")
  end
  if report.stats.printed_lost > 0 then complain(("%d more bytes were printed"):format(report.stats.printed_lost)) end
  if report.error then print_error(report) end
end

local function print_json(report)
  local list = json.array {}
  for i = 1, report.results.n do list[i] = report.results[i] == nil and json.null or report.results[i] end
  io.stdout:write(assert(json.encode {
    ok = report.ok, results = list, error = report.error, logical = json.array(report.logical),
    events = json.array(report.events), stats = report.stats, printed = report.printed,
  }), "\n")
end

local function write_trace(path, report)
  local file, why = io.open(path, "we")
  if not file then fail(("cannot write %s"):format(why)) end
  file:write(require("omni.plm.report").chrome(report))
  file:close()
end

-- ---- compare ----

local function median_run(runs)
  table.sort(runs, function(a, b) return a.stats.wall < b.stats.wall end)
  return runs[math.ceil(#runs / 2)]
end

local function line_of(name, report)
  local stats = report.stats
  local text = ("%-8s %9.2f ms   %d calls"):format(name, stats.wall * 1e3, stats.calls)
  if stats.prepared == 0 then return text end
  return text .. (", %d started early, %d of them used"):format(stats.prepared, stats.adopted)
end

local function compare(runner, source, o, options)
  local texts = require "omni.plm.report"
  local off, on, differences = {}, {}, {}
  for i = 1, o.runs do
    off[i], on[i] = assert(runner:run(source, options)), assert(runner:run_plm(source, options))
    differences = #differences > 0 and differences or texts.differences(off[i], on[i])
  end
  off, on = median_run(off), median_run(on)
  local busy, span = texts.overlap(on)
  print(line_of("PLM off", off))
  print(line_of("PLM on", on))
  print(("%-8s %9.2f times   tools were at work for %.2f ms within %.2f ms"):format(
    "faster", off.stats.wall / on.stats.wall, busy * 1e3, span * 1e3))
  if on.error then print(("both end with %s: %s"):format(on.error.code, on.error.message)) end
  if #differences == 0 then print "results, errors, lines and logical traces are equal" end
  if o.trace then write_trace(o.trace, on) end
  if #differences > 0 then fail(table.concat(differences, "\n")) end
end

-- ---- the verb ----

local function explain(source, manifest, file)
  local chunk, why = loadstring(source, "@" .. file:match "[^/]*$")
  if not chunk then fail(why) end
  local _, info = plm.rewrite(source, manifest, { explain = true })
  io.stdout:write(require("omni.plm.report").explain(source, info))
end

local function run_once(runner, source, o, options)
  local run = o.off and runner.run or runner.run_plm
  local report, why = run(runner, source, options)
  if not report then fail(why) end
  if o.trace then write_trace(o.trace, report) end
  local show = o.json and print_json or print_report
  show(report)
  if not report.ok then os.exit(1) end
end

--- What `omnihost plm` does.
---@param ... string arguments
function verb.main(...)
  local o = options_of { ... }
  local source, inputs, limits = read_file(o.file), inputs_of(o.inputs), limits_of(o.limits)
  host.script_dir(folder_of(o))
  local manifest = checked(plm.manifest, flat(o.tools))
  if o.explain then
    explain(source, manifest, o.file)
    return manifest:close()
  end
  local runner = checked(plm.runner, { manifest = manifest, limits = limits })
  local act = o.compare and compare or run_once
  act(runner, source, o, { inputs = inputs, chunkname = o.file:match "[^/]*$" })
  manifest:close()
end

return verb
