local json = require "omni.json"
local omni = require "omni"
local run = require "spec.support.run"
local uv = require "luv"

local PIPELINE = "spec/fixtures/cli_pipeline.lua"

local function with_dir(fn)
  local dir = assert(uv.fs_mkdtemp "/tmp/omnihost-spec-XXXXXX")
  local ok, err = xpcall(fn, debug.traceback, dir)
  os.execute("rm -rf " .. dir)
  assert(ok, err)
end

local function read(path)
  local file = assert(io.open(path, "rb"))
  local text = file:read "*a"
  file:close()
  return text
end

local function entries(dir)
  local names, scan = {}, uv.fs_scandir(dir)
  for name in function() return uv.fs_scandir_next(scan) end do names[#names + 1] = name end
  table.sort(names)
  return names
end

local function records(text)
  local all = {}
  for line in text:gmatch "[^\n]+" do all[#all + 1] = assert(json.decode(line)) end
  return all
end

-- What a request put out, from the records.
local function of(all, id)
  local data = {}
  for _, record in ipairs(all) do
    if record.id == id then data[#data + 1] = record.error or record.data or record.data_b64 end
  end
  return table.concat(data, " ")
end

local function drive(stdin, ...)
  return run.run({ run.omnihost, PIPELINE, ... }, { stdin = stdin })
end

-- A running pipeline that reads its requests from a pipe that stays open, in a process group of its own, with a
-- request held at a gate.
local function with_held(fn)
  with_dir(function(dir)
    os.execute(("mkfifo %s/gate %s/in"):format(dir, dir))
    local requests = assert(uv.fs_open(dir .. "/in", "r+", 0))
    local process = run.start({ run.omnihost, PIPELINE, "--input", dir .. "/in" },
      { env = { GATE = dir .. "/gate" }, detached = true })
    uv.fs_write(requests, '{"id":"held","data":"a gate b"}\n', -1)
    local function until_output(pattern)
      local deadline = omni.now() + 20
      while not process.stdout:find(pattern) and not process.code and omni.now() < deadline do omni.sleep(0.005) end
      assert(process.stdout:find(pattern), process.stderr)
    end
    until_output "WAITING"
    local function open_gate() assert.equal(0, os.execute(("timeout 20 sh -c ': > %s/gate'"):format(dir))) end
    local ok, err = xpcall(fn, debug.traceback, process, open_gate, function(line) uv.fs_write(requests, line, -1) end)
    if not process.code then process.kill() end
    process.wait()
    uv.fs_close(requests)
    assert(ok, err)
  end)
end

local function until_stderr(process, text)
  local deadline = omni.now() + 20
  while not process.stderr:find(text, 1, true) and omni.now() < deadline do omni.sleep(0.005) end
  assert.truthy(process.stderr:find(text, 1, true))
end

-- Process ids of the workers of a host.
local function workers_of(pid)
  local found = {}
  for _, tid in ipairs(entries(("/proc/%d/task"):format(pid))) do
    local children = read(("/proc/%d/task/%s/children"):format(pid, tid))
    for child in children:gmatch "%d+" do found[#found + 1] = tonumber(child) end
  end
  return found
end

describe("a pipeline on the command line", function()
  it("reads JSON lines and writes JSON lines, with a summary", function()
    local p = drive '{"id":"x","data":"one two"}\n{"data":"three"}\n'
    assert.equal(0, p.code)
    local all = records(p.stdout)
    assert.equal("ONE TWO", of(all, "x"))
    assert.equal("THREE", of(all, 2))
    local last = {}
    for _, record in ipairs(all) do
      assert.equal("shout", record.stage)
      if record.id == "x" then last[#last + 1] = { record.chunk, record.finished } end
    end
    assert.same({ { 0, false }, { 1, false }, { 2, true } }, last)
    assert.truthy(p.stderr:find "shout: 2 requests ok, 0 failed, 0 bad lines; 3 chunks, 11 bytes in [%d.]+ s; "
      .. "first chunk p50 %d+ ms, p99 %d+ ms")
  end)

  it("reads from a file and writes to a file", function()
    with_dir(function(dir)
      local file = assert(io.open(dir .. "/in", "w"))
      file:write '{"id":1,"data":"a"}' -- without a newline at the end
      file:close()
      local p = run.host(PIPELINE, "--input", dir .. "/in", "--output", dir .. "/out")
      assert.equal(0, p.code)
      assert.equal("", p.stdout)
      assert.equal("A", of(records(read(dir .. "/out")), 1))
    end)
  end)

  it("reports bad lines with their number and goes on with the others", function()
    local p = drive(table.concat({
      '{"id":"a","data":"x"}', "", "{nonsense", "[1]", '{"id":"b","dta":"x"}', '{"data":"x","data_b64":"eA=="}',
      '{"data_b64":"?"}', '{"data":"x","deadline":-1}', '{"id":"c","data":"y"}',
    }, "\n"))
    assert.equal(1, p.code)
    local all = records(p.stdout)
    assert.equal("X", of(all, "a"))
    assert.equal("Y", of(all, "c"))
    for number, text in pairs {
      [3] = "EJSON: ", [4] = "a request is a JSON object", [5] = 'unknown key "dta" (did you mean "data"?)',
      [6] = "give it either data or data_b64", [7] = 'key "data_b64" is not base64', [8] = 'key "deadline" must be',
    } do
      local line = p.stderr:match(("stdin:%d: ([^\n]*)"):format(number))
      assert.truthy(line and line:find(text, 1, true), number .. ": " .. tostring(line))
    end
    assert.truthy(p.stderr:find("2 requests ok, 0 failed, 6 bad lines", 1, true))
  end)

  it("carries bytes as base64 both ways, and other data as JSON", function()
    local p = drive '{"id":1,"data_b64":"eCBieXRlcyB5"}\n{"id":2,"data":"table"}\n'
    assert.equal(0, p.code)
    local all = records(p.stdout)
    assert.equal("X /wA= Y", of(all, 1))
    for _, record in ipairs(all) do
      if record.id == 2 and not record.finished then assert.same({ a = { 1, 2 } }, record.data) end
    end
  end)

  it("writes a failed request as a line and exits 1", function()
    local p = drive '{"id":"bad","data":"a fail"}\n{"id":"good","data":"b"}\n'
    assert.equal(1, p.code)
    local all = records(p.stdout)
    assert.equal("B", of(all, "good"))
    local failed
    for _, record in ipairs(all) do failed = record.error and record or failed end
    assert.same({ id = "bad", code = "ESTAGE", error = 'ESTAGE: stage "shout" failed: asked to fail' }, failed)
    assert.truthy(p.stderr:find("1 requests ok, 1 failed", 1, true))
  end)

  it("keeps the deadline of a request", function()
    with_dir(function(dir)
      os.execute("mkfifo " .. dir .. "/gate")
      local p = run.run({ run.omnihost, PIPELINE },
        { stdin = '{"id":1,"data":"gate","deadline":0.2}\n', env = { GATE = dir .. "/gate" } })
      assert.equal(1, p.code)
      assert.truthy(of(records(p.stdout), 1):find("ETIMEDOUT: the deadline of 0.2 s passed", 1, true))
    end)
  end)

  it("writes bytes to files whose names stay in their folder", function()
    with_dir(function(dir)
      local p = drive('{"id":"../up","data":"a b"}\n{"id":"../up","data":"c"}\n{"id":"n/ame","data":"d fail"}\n'
        .. '{"id":"茶","data":"e"}\n{"id":".hidden","data":"f"}\n', "--out-dir", dir .. "/out")
      assert.equal(1, p.code)
      assert.same({ "%2E.%2Fup-2.txt", "%2E.%2Fup.txt", "%2Ehidden.txt", "茶.txt" }, entries(dir .. "/out"))
      assert.equal("E", read(dir .. "/out/茶.txt"))
      for _, record in ipairs(records(p.stdout)) do
        if record.id == "茶" and not record.finished then
          assert.equal(dir .. "/out/茶.txt", record.file)
          assert.equal(1, record.bytes)
          assert.is_nil(record.data)
        end
      end
      assert.same({ "in", "out" }, (function()
        os.execute("touch " .. dir .. "/in")
        return entries(dir)
      end)())
    end)
  end)

  it("prints the metrics when asked to", function()
    local p = drive('{"data":"a"}\n{"data":"fail"}\n', "--stats")
    assert.truthy(p.stderr:find('omni_requests_total{[^}]*outcome="done"[^}]*} 1\n'))
    assert.truthy(p.stderr:find('omni_requests_total{[^}]*outcome="failed"[^}]*} 1\n'))
  end)

  it("shows its progress on a terminal, and clears it away", function()
    with_dir(function(dir)
      local file = assert(io.open(dir .. "/in", "w"))
      file:write '{"data":"a"}\n{"data":"b"}\n'
      file:close()
      local command = ("%s %s --input %s/in --output %s/out"):format(run.omnihost, PIPELINE, dir, dir)
      local p = run.run { "/usr/bin/script", "-qec", command, "/dev/null" }
      assert.truthy(p.stdout:find "\r\27%[K%d requests, %d in flight, 0 failed; %d chunks, 0.0 MiB")
      assert.truthy(p.stdout:find "\r\27%[Kshout: 2 requests ok")
    end)
  end)

  it("ends with 1 when nobody reads its results", function()
    local command = [[for i in $(seq 3000); do echo '{"data":"a b c"}'; done | %s %s | head -n 1 >&2; echo ended]]
    local p = run.run { "/bin/sh", "-c", command:format(run.omnihost, PIPELINE) }
    assert.equal("ended\n", p.stdout)
    assert.truthy(p.stderr:find("cannot write results", 1, true), p.stderr)
  end)

  it("ends with 1 when its results find no room", function()
    local p = drive(('{"data":"a"}\n'):rep(500), "--output", "/dev/full")
    assert.equal(1, p.code)
    assert.truthy(p.stderr:find("cannot write results: ENOSPC: no space left on device", 1, true))
  end)

  it("tells wrong options, and what to do", function()
    local p = run.host(PIPELINE, "--inptu", "x")
    assert.equal(2, p.code)
    assert.truthy(p.stderr:find("--input", 1, true))
    p = run.host(PIPELINE, "--help")
    assert.equal(0, p.code)
    assert.truthy(p.stdout:find("--out-dir DIR", 1, true))
    p = run.host(PIPELINE, "--input", "/nowhere/x")
    assert.equal(1, p.code)
    assert.truthy(p.stderr:find("/nowhere/x", 1, true))
  end)
end)

describe("a signal", function()
  it("to the whole foreground group drains: what is in flight finishes, nothing new is read", function()
    with_held(function(process, open_gate, send)
      uv.kill(-process.pid, "sigint")
      until_stderr(process, "SIGINT: finishing the 1 requests in flight")
      send '{"id":"late","data":"z"}\n'
      open_gate()
      process.wait(20)
      assert.equal(130, process.code)
      local all = records(process.stdout)
      assert.equal("A WAITING GATE B", of(all, "held"))
      assert.equal("", of(all, "late"))
    end)
  end)

  it("SIGTERM drains too, and shows in the exit code", function()
    with_held(function(process, open_gate)
      process.kill "sigterm"
      until_stderr(process, "SIGTERM: finishing")
      open_gate()
      assert.equal(143, process.wait(20).code)
    end)
  end)

  it("the second time aborts what is in flight", function()
    with_held(function(process)
      process.kill "sigint"
      until_stderr(process, "finishing the 1 requests")
      process.kill "sigint"
      assert.equal(130, process.wait(20).code)
      assert.truthy(of(records(process.stdout), "held"):find("EABORTED", 1, true))
    end)
  end)

  it("that kills the host takes its workers along, and the next start sweeps", function()
    with_held(function(process)
      local workers = workers_of(process.pid)
      assert.equal(3, #workers)
      process.kill "sigkill"
      process.wait(20)
      local deadline = omni.now() + 5
      for _, pid in ipairs(workers) do
        while uv.kill(pid, 0) == 0 and omni.now() < deadline do omni.sleep(0.005) end
        assert.are_not.equal(0, (uv.kill(pid, 0)))
      end
    end)
    assert.equal(0, drive('{"data":"a"}\n').code)
  end)
end)

describe("omnihost check", function()
  it("shows a good pipeline and starts nothing", function()
    local p = run.host("check", PIPELINE)
    assert.equal(0, p.code)
    assert.truthy(p.stdout:find("shout: 3 stages, no problems", 1, true))
    assert.truthy(p.stdout:find("split -> gate", 1, true))
  end)

  it("tells all problems with file and line, and exits 1; so does running it", function()
    with_dir(function(dir)
      local file = assert(io.open(dir .. "/bad.lua", "w"))
      file:write 'local p = require("omni").pipeline "bad"\np:stage "a" { module = "nowhere" }\n'
      file:write 'p:stage "b" { modul = "x" }\np:connect("a", "c")\nreturn p\n'
      file:close()
      for _, arguments in ipairs { { "check", dir .. "/bad.lua" }, { dir .. "/bad.lua" } } do
        local p = run.host(unpack(arguments))
        assert.equal(1, p.code)
        assert.truthy(p.stderr:find('bad.lua:2: stage "a": module "nowhere" is not found', 1, true))
        assert.truthy(p.stderr:find('bad.lua:3: stage "b": unknown key "modul"', 1, true))
        assert.truthy(p.stderr:find('bad.lua:4: edge "a -> c": there is no stage "c"', 1, true))
      end
    end)
  end)

  it("refuses a script without a pipeline", function()
    local p = run.host("check", "spec/fixtures/pass.lua")
    assert.equal(1, p.code)
    assert.truthy(p.stderr:find("returns no pipeline", 1, true))
  end)
end)

describe("a script that runs a pipeline itself", function()
  it("needs no stop at its end", function()
    local p = run.run({ run.omnihost, "-e", [[
      local omni = require "omni"
      local p = omni.pipeline "own"
      p:stage "a" { module = "spec.fixtures.upper" }
      local request = p:start():submit { data = "done" }
      for chunk in request:chunks() do print(chunk.data) end
    ]] })
    assert.equal("DONE\n", p.stdout)
    assert.equal(0, p.code)
  end)

  it("leaves no process and no memory when it fails", function()
    local p = run.run({ run.omnihost, "-e", [[
      local omni = require "omni"
      local p = omni.pipeline "own"
      p:stage "a" { module = "spec.fixtures.upper" }
      p:start():submit { data = "x" }
      error "no more"
    ]] })
    assert.equal(1, p.code)
    assert.truthy(p.stderr:find("no more", 1, true))
  end)
end)

describe("the command line", function()
  it("names what it does not know", function()
    local p = run.host "--plat"
    assert.equal(2, p.code)
    assert.truthy(p.stderr:find('did you mean "--platform"', 1, true))
    p = run.host "chek"
    assert.equal(2, p.code)
    assert.truthy(p.stderr:find('did you mean the verb "check"', 1, true))
    p = run.host "nowhere.lua"
    assert.equal(1, p.code)
    assert.truthy(p.stderr:find("cannot open nowhere.lua", 1, true))
    assert.equal(2, run.host().code)
  end)

  it("runs a script that is named like a verb through run", function()
    with_dir(function(dir)
      local file = assert(io.open(dir .. "/check", "w"))
      file:write "print(arg[0], ...)"
      file:close()
      local p = run.run({ run.omnihost, "run", "check", "x" }, { cwd = dir })
      assert.equal("check\tx\n", p.stdout)
    end)
  end)
end)
