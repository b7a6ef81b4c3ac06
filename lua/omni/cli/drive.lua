--- Runs a pipeline that a script returned: requests as JSON lines in, results as JSON lines out.

local base64 = require "omni.base64"
local check = require "omni.check"
local host = require "omni.native.host"
local json = require "omni.json"
local omni = require "omni"
local output = require "omni.cli.output"
local rules = require("omni.app").RULES
local sched = require "omni.native.sched"
local source = require "omni.cli.source"
local wire = require "omni.wire"

local drive = {}

local IN_FLIGHT = 64 -- requests that are read ahead of their results
local EXIT_CODES = { SIGINT = 130, SIGTERM = 143 }

local REQUEST = {
  id = rules.id,
  data = {},
  data_b64 = { type = { "string", "nil" } },
  deadline = rules.deadline,
}

local function options_of(name, arguments)
  local parser = require "argparse"("omnihost " .. name, "Runs the pipeline: requests are read as JSON lines "
    .. '{"id", "data" or "data_b64", "deadline"}, results are written as JSON lines.')
  parser:option("--input", "file with the requests (default: standard input)"):argname "FILE"
  parser:option("--output", "file for the results (default: standard output)"):argname "FILE"
  parser:option("--out-dir", "folder where the bytes of each request become a file"):argname "DIR"
  parser:flag("--stats", "print all metrics to standard error at the end")
  local ok, result = parser:pparse(arguments)
  if ok then return result end
  io.stderr:write(parser:get_usage(), "\n\nomnihost: ", result, "\n")
  os.exit(2)
end

-- One line of the input as what `app:submit` takes. nil and the reason for what is no request.
local function parse_request(line)
  if not line then return nil, ("line longer than %d MiB"):format(wire.LIMIT / 2 ^ 20) end
  local request, why = json.decode(line)
  if request == nil and why then return nil, why end
  if type(request) ~= "table" or json.is_array(request) then return nil, "a request is a JSON object" end
  local problems = check.problems(request, REQUEST, "request")
  if #problems > 0 then return nil, table.concat(problems, "; ") end
  if (request.data == nil) == (request.data_b64 == nil) then return nil, "request: give it either data or data_b64" end
  local data = request.data
  if request.data_b64 then
    data = base64.decode(request.data_b64)
    if not data then return nil, 'request: key "data_b64" is not base64' end
  end
  return { id = request.id, data = data, deadline = request.deadline }
end

---@class omni.cli.drive
local Drive = {}
Drive.__index = Drive

local function complain(text)
  io.stderr:write("omnihost: ", text, "\n")
end

local function wake(self)
  local ticket = self.ticket
  self.ticket = nil
  if ticket then sched.unpark(ticket) end
end

-- Suspends until fewer than n requests are in flight.
local function await_fewer(self, n)
  while self.in_flight >= n do
    self.ticket = sched.ticket "results"
    sched.park("results", nil, self.app.outputs)
  end
end

function Drive:progress(last)
  if not self.terminal or (not last and omni.now() - self.shown < 0.1) then return end
  self.shown = omni.now()
  local text = "\r\27[K%d requests, %d in flight, %d failed; %d chunks, %.1f MiB"
  io.stderr:write(last and "\r\27[K" or text:format(self.ok + self.failed + self.in_flight, self.in_flight, self.failed,
    self.chunks, self.bytes / 2 ^ 20))
  io.stderr:flush()
end

-- The results cannot be written: nothing of what is in flight is of use to anybody.
function Drive:give_up(why)
  if self.broken then return end
  self.broken = true
  complain("cannot write results: " .. tostring(why))
  self.source:stop()
  omni.spawn(function() self.app:stop { abort = true } end)
end

local function follow(self, request, out)
  while true do
    local chunk, why, code = request:next()
    if not chunk then return why, code end
    if chunk.data ~= nil then
      self.chunks = self.chunks + 1
      self.bytes = self.bytes + (type(chunk.data) == "string" and #chunk.data or 0)
      if not out.begun then self.first[#self.first + 1] = omni.now() - request.submitted_at end
      out.begun = true
    end
    local ok, failure, failure_code = out:chunk(chunk)
    if failure_code then
      request:abort()
      return failure, failure_code
    end
    if not ok then self:give_up(failure) end
    self:progress()
  end
end

local function serve(self, id, options)
  local request = self.app:submit { id = tostring(id), data = options.data, deadline = options.deadline }
  local out = self.output:request(id)
  local why, code = out:close(follow(self, request, out))
  if why then
    local ok, failure = self.output:error(id, why, code)
    if not ok then self:give_up(failure) end
    self.failed = self.failed + 1
    complain(("request %s: %s%s"):format(id, why, request.traceback and "\n" .. request.traceback or ""))
  else
    self.ok = self.ok + 1
  end
  self.in_flight = self.in_flight - 1
  self:progress()
  wake(self)
end

local function read_requests(self)
  local number = 0
  for line in function() return self.source:next() end do
    number = number + 1
    if not line or line:find "%S" then
      local options, why = parse_request(line)
      if options then
        self.in_flight = self.in_flight + 1
        omni.spawn(serve, self, options.id == nil and number or options.id, options)
        await_fewer(self, self.most)
      else
        self.bad = self.bad + 1
        complain(("%s:%d: %s"):format(self.source.name, number, why))
      end
    end
  end
  if self.source.failure then complain("cannot read requests: " .. self.source.failure) end
  await_fewer(self, 1)
end

local function on_signal(self, name, count)
  self.signal = name
  if count == 1 then
    complain(("%s: finishing the %d requests in flight; once more to abort them"):format(name, self.in_flight))
    self.source:stop()
  else
    omni.spawn(function() self.app:stop { abort = true } end)
  end
end

local function quantile(sorted, q)
  if #sorted == 0 then return "-" end
  return ("%.0f ms"):format(sorted[math.max(1, math.ceil(q * #sorted))] * 1000)
end

function Drive:summary()
  table.sort(self.first)
  local text = "%s: %d requests ok, %d failed, %d bad lines; %d chunks, %.0f bytes in %.2f s; "
    .. "first chunk p50 %s, p99 %s\n"
  io.stderr:write(text:format(self.name, self.ok, self.failed, self.bad, self.chunks, self.bytes,
    omni.now() - self.began, quantile(self.first, 0.5), quantile(self.first, 0.99)))
end

local function open(options, name)
  local self = setmetatable({
    name = name, ok = 0, failed = 0, bad = 0, in_flight = 0, chunks = 0, bytes = 0, first = {}, shown = 0,
    began = omni.now(), terminal = host.isatty(2),
  }, Drive)
  local why
  self.source, why = source.open(options.input)
  if not self.source then return nil, why end
  self.output, why = output.open(options)
  if not self.output then return nil, why end
  return self
end

--- Runs a pipeline until its requests are done; ends the process.
---@param declared omni.pipeline
---@param name string the script's name
---@param arguments string[]
function drive.main(declared, name, arguments)
  local options = options_of(name, arguments)
  options.extension = declared.extension
  local topology, problems = declared:topology()
  if not topology then
    io.stderr:write(table.concat(problems, "\n"), "\n")
    os.exit(1)
  end
  local self, why = open(options, declared.name)
  if not self then
    complain(why)
    os.exit(1)
  end
  local app, failure, _, traceback = declared:start()
  if not app then
    complain(failure .. (traceback and "\n" .. traceback or ""))
    os.exit(1)
  end
  self.app, self.most = app, math.min(IN_FLIGHT, declared.max_requests + declared.queue)
  host.on_signal(function(...) on_signal(self, ...) end)
  read_requests(self)
  app:stop()
  self:progress(true)
  if options.stats then io.stderr:write(require("omni.metrics").text()) end
  self:summary()
  local good = self.failed == 0 and self.bad == 0 and not self.broken and not self.source.failure
  os.exit(EXIT_CODES[self.signal] or (good and 0 or 1))
end

return drive
