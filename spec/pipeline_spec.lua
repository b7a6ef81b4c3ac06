local json = require "omni.json"
local omni = require "omni"
local log = require "omni.log"
local metrics = require "omni.metrics"
local program = require "omni.program"
local sys = require "omni.testing.sys"
local uv = require "luv"

-- A line of stages, from {name, definition} pairs; a string is the name of a module in spec/fixtures.
local function line(stages, edges)
  local p = omni.pipeline "spec"
  for i, stage in ipairs(stages) do
    local name, definition = stage[1], stage[2]
    if type(definition) == "string" then definition = { module = "spec.fixtures." .. definition } end
    p:stage(name)(definition)
    if i > 1 then p:connect(stages[i - 1][1], name, edges) end
  end
  return p
end

local function filter(config) return { module = "omni.stages.filter", config = config } end

-- Starts, runs the function with the app, stops.
local function with_app(stages, fn, edges)
  local app = assert(line(stages, edges):start())
  local ok, err = xpcall(fn, debug.traceback, app)
  app:stop { abort = true }
  assert(ok, err)
end

local function with_fifo(fn)
  local dir = assert(uv.fs_mkdtemp "/tmp/omnihost-spec-XXXXXX")
  local path = dir .. "/gate"
  program.run { command = { "mkfifo", path } }
  local ok, err = pcall(fn, path, function() program.run { command = { "sh", "-c", ': >"$0"', path } } end)
  os.remove(path)
  uv.fs_rmdir(dir)
  assert(ok, err)
end

local function data_of(request)
  local all = {}
  for chunk in request:chunks() do all[#all + 1] = chunk.data end
  return all
end

-- The end of a request that fails.
local function failure_of(request)
  while true do
    local chunk, err, code = request:next { timeout = 20 }
    if not chunk then return err, code end
  end
end

local function next_data(request)
  return assert(request:next { timeout = 20 }).data
end

-- Waits until a process is gone: something else ends it, this only looks.
local function await_end(pid)
  local deadline = omni.now() + 5
  while uv.kill(pid, 0) == 0 and omni.now() < deadline do omni.sleep(0.005) end
  return uv.kill(pid, 0) ~= 0
end

local function shared_names(namespace)
  local found = {}
  local scan = uv.fs_scandir "/dev/shm"
  for name in function() return uv.fs_scandir_next(scan) end do
    if name:find(namespace, 1, true) then found[#found + 1] = name end
  end
  return found
end

describe("a pipeline", function()
  it("carries chunks through its stages in order and tells the last", function()
    with_app({ { "split", "words" }, { "shout", "upper" } }, function(app)
      local request = app:submit { data = "one two three" }
      local seen = {}
      while true do
        local chunk, err = request:next()
        assert.is_nil(err)
        if not chunk then break end
        seen[#seen + 1] = { chunk.stage, chunk.index, chunk.data or "-", chunk.finished }
      end
      assert.same({
        { "shout", 0, "ONE", false }, { "shout", 1, "TWO", false }, { "shout", 2, "THREE", false },
        { "shout", 3, "-", true },
      }, seen)
      assert.equal("done", request.state)
    end)
  end)

  it("runs one stage in one process of its own", function()
    with_app({ { "only", "upper" } }, function(app)
      assert.same({ "A" }, data_of(app:submit { data = "a" }))
      local pid = app:stats().workers.only
      assert.is_number(pid)
      assert.are_not.equal(uv.os_getpid(), pid)
    end)
  end)

  it("carries every plain value between Lua stages", function()
    with_app({ { "a", "pass" }, { "b", "pass" } }, function(app)
      local big = ("x"):rep(3e6)
      for _, value in ipairs { 0, -1.5, 2 ^ 53, true, false, "", "\0\255", big, { 1, { a = "b" } }, json.null } do
        assert.same({ value }, data_of(app:submit { data = value }))
      end
      assert.equal(2 ^ 60, tonumber(data_of(app:submit { data = 1152921504606846976LL })[1]))
    end)
  end)

  it("runs requests side by side in every stage", function()
    with_app({ { "a", "pass" }, { "meet", "meet" } }, function(app)
      local requests = {}
      for i = 1, 5 do requests[i] = app:submit { id = "q" .. i, data = "5" } end
      for i = 1, 5 do assert.same({ ("q%d met 5"):format(i) }, data_of(requests[i])) end
    end)
  end)

  it("sends chunks on while the stage before still works", function()
    with_fifo(function(fifo, open)
      local gate = { module = "spec.fixtures.gate", config = { fifo = fifo } }
      with_app({ { "split", "words" }, { "gate", gate }, { "shout", "upper" } }, function(app)
        local request = app:submit { data = "first gate last" }
        assert.equal("FIRST", next_data(request))
        assert.equal("WAITING", next_data(request))
        open()
        assert.same({ "GATE", "LAST" }, data_of(request))
      end)
    end)
  end)

  it("keeps a slow reader's request within its windows while others go on", function()
    with_fifo(function(fifo, open)
      local gate = { module = "spec.fixtures.gate", config = { fifo = fifo } }
      with_app({ { "flood", "flood" }, { "mid", "pass" }, { "last", gate } }, function(app)
        local slow = app:submit { data = "flood" }
        assert.equal(1, next_data(slow)) -- and nothing more is read of it
        local emitted = data_of(app:submit { data = "how many" })[1]
        -- Two edges of 4, the host's of 16, one in the hands of each stage, and what was just taken.
        assert.is_true(emitted <= 4 + 4 + 16 + 3, "emitted " .. emitted)
        local n = 1
        for _ in slow:chunks() do n = n + 1 end
        assert.equal(1000, n)
      end, { window = 4 })
      assert.is_function(open)
    end)
  end)

  it("goes on with chunks of a window of one", function()
    with_app({ { "flood", "flood" }, { "mid", "pass" }, { "last", "pass" } }, function(app)
      assert.equal(1000, #data_of(app:submit { data = "flood" }))
    end, { window = 1 })
  end)

  it("sends chunks that are larger than the edge's budget", function()
    with_app({ { "split", "words" }, { "shout", "upper" } }, function(app)
      local word = ("a"):rep(100000)
      assert.same({ word:upper(), word:upper(), "B" }, data_of(app:submit { data = word .. " " .. word .. " b" }))
    end, { budget = 1000 })
  end)

  it("takes any id, and the same one twice", function()
    with_app({ { "a", "pass" } }, function(app)
      local first, second = app:submit { id = "r1_0/..\n", data = 1 }, app:submit { id = "r1_0/..\n", data = 2 }
      assert.same({ 2 }, data_of(second))
      assert.same({ 1 }, data_of(first))
      assert.equal("r1_0/..\n", first.id)
    end)
  end)

  it("leaves nothing in shared memory when it has stopped", function()
    local namespace
    with_app({ { "split", "words" }, { "shout", "upper" } }, function(app)
      namespace = app:stats().namespace
      assert.is_true(#shared_names(namespace) > 0)
      data_of(app:submit { data = "a b c" })
      app:submit { data = ("w "):rep(100) }
    end)
    assert.same({}, shared_names(namespace))
  end)

  it("drains on stop, keeps what was not read, and stops once", function()
    local app = assert(line({ { "flood", "flood" }, { "b", "pass" } }):start())
    local request = app:submit { data = "flood" }
    app:stop()
    app:stop()
    app:close()
    assert.equal("done", request.state)
    assert.equal(1000, #data_of(request))
    local err, code = failure_of(app:submit { data = "late" })
    assert.equal("ECLOSED", code)
    assert.truthy(err:find "^ECLOSED: ")
  end)
end)

describe("a request that fails", function()
  it("raises in the loop over its chunks", function()
    with_app({ { "a", "trouble" } }, function(app)
      local ok, err = pcall(data_of, app:submit { data = "error" })
      assert.is_false(ok)
      assert.truthy(err:find 'ESTAGE: stage "a" failed: .*trouble.lua:3: no idea what error is')
    end)
  end)

  it("names the stage and the line, with the traceback, and leaves the stage alive", function()
    with_app({ { "a", "pass" }, { "b", "trouble" }, { "c", "pass" } }, function(app)
      local request = app:submit { data = "error" }
      local err, code = failure_of(request)
      assert.equal("ESTAGE", code)
      assert.truthy(err:find('stage "b" failed: ', 1, true))
      assert.truthy(err:find "trouble.lua:3: no idea what error is")
      local frames = "^stack traceback:\n[^\n]*trouble.lua:3: in function 'deep'\n[^\n]*trouble.lua:9: "
      assert.truthy(request.traceback:find(frames))
      assert.truthy(failure_of(app:submit { data = "table" }):find "told by a table")
      assert.truthy(failure_of(app:submit { data = "function" }):find "trouble.lua:%d+: .*cannot carry")
      assert.same({ "fine" }, data_of(app:submit { data = "fine" }))
    end)
  end)

  it("names a worker that was killed, its signal and the end of its stderr; others go on or are told", function()
    with_fifo(function(fifo, open)
      local noisy = filter { command = { "sh", "-c", "echo I was here >&2; cat" } }
      local gate = { module = "spec.fixtures.gate", config = { fifo = fifo } }
      with_app({ { "noisy", noisy }, { "mid", "words" }, { "gate", gate } }, function(app)
        local beyond = app:submit { data = "gate" } -- past the first stage, waits in the last
        assert.equal("waiting", next_data(beyond))
        local pid = app:stats().workers.mid
        local held = app:submit { data = "gate" }
        assert.equal("waiting", next_data(held))
        uv.kill(app:stats().workers.noisy, "sigkill")
        assert.is_true(await_end(app:stats().workers.noisy))
        local err, code = failure_of(app:submit { data = "late" })
        assert.equal("EWORKER", code)
        assert.truthy(err:find('stage "noisy"', 1, true))
        assert.truthy(err:find("died by signal SIGKILL; stderr: I was here", 1, true))
        assert.equal(0, uv.kill(pid, 0))
        open()
        assert.same({ "gate" }, data_of(beyond))
        assert.is_not_nil(held)
      end)
    end)
  end)

  it("fails when the worker that holds it is killed", function()
    with_fifo(function(fifo)
      local gate = { module = "spec.fixtures.gate", config = { fifo = fifo } }
      with_app({ { "a", "words" }, { "gate", gate }, { "c", "pass" } }, function(app)
        local held = app:submit { data = "gate" }
        assert.equal("waiting", next_data(held))
        uv.kill(app:stats().workers.gate, "sigkill")
        local err, code = failure_of(held)
        assert.equal("EWORKER", code)
        assert.truthy(err:find('stage "gate" died by signal SIGKILL', 1, true))
        assert.truthy(failure_of(app:submit { data = "x" }):find('stage "gate" is down', 1, true))
      end)
    end)
  end)

  it("tells the exit code of a worker that ends by itself", function()
    with_app({ { "a", "trouble" }, { "b", "pass" } }, function(app)
      local err, code = failure_of(app:submit { data = "exit" })
      assert.equal("EWORKER", code)
      assert.truthy(err:find('stage "a" exited with code 3; stderr: giving up', 1, true))
    end)
  end)

  it("fails at its deadline, names who had not finished, and leaves the stages free", function()
    with_fifo(function(fifo)
      local gate = { module = "spec.fixtures.gate", config = { fifo = fifo } }
      with_app({ { "a", "words" }, { "gate", gate } }, function(app)
        local err, code = failure_of(app:submit { data = "gate", deadline = 0.05 })
        assert.equal("ETIMEDOUT", code)
        assert.truthy(err:find("the deadline of 0.05 s passed while gate had not finished", 1, true))
        assert.same({ "free" }, data_of(app:submit { data = "free", deadline = 20 }))
      end)
    end)
  end)

  it("shows a stage how long it has", function()
    with_app({ { "a", "trouble" } }, function(app)
      local left = data_of(app:submit { data = "remaining", deadline = 50 })[1]
      assert.is_true(left > 40 and left <= 50)
    end)
  end)

  it("fails when its stage breaks the control protocol, which is shown with the line", function()
    with_app({ { "a", "trouble" }, { "b", "pass" } }, function(app)
      local err, code = failure_of(app:submit { data = "garbage" })
      assert.equal("EWORKER", code)
      assert.truthy(err:find('stage "a" was killed after EPROTOCOL: not a control message', 1, true))
      assert.truthy(err:find(": no json", 1, true))
    end)
  end)

  it("fails with the reason when shared memory is full, and the stage goes on", function()
    if not sys.enabled then return pending "this build has no hooks" end
    local full = { module = "spec.fixtures.words", env = { OMNI_SYS_RULES = "PWRITEV,,0,inf,fail,ENOSPC,before" } }
    with_app({ { "a", full }, { "b", "pass" } }, function(app)
      for _ = 1, 2 do
        local err = failure_of(app:submit { data = "x y" })
        assert.truthy(err:find('stage "a" failed: ', 1, true))
        assert.truthy(err:lower():find("space", 1, true))
      end
    end)
  end)

  it("fails at both ends when a chunk cannot be stored", function()
    with_app({ { "a", "words" }, { "b", "pass" } }, function(app)
      os.execute(("rm -rf /dev/shm/%s.d/b.0"):format(app:stats().namespace))
      local err, code = failure_of(app:submit { data = "x y" })
      assert.is_not_nil(code)
      assert.truthy(err:find("^E%u+: "))
    end)
  end)
end)

describe("an abort", function()
  it("is answered with what each stage did, as often as it is asked", function()
    with_fifo(function(fifo)
      local gate = { module = "spec.fixtures.gate", config = { fifo = fifo } }
      with_app({ { "a", "words" }, { "gate", gate }, { "c", "pass" } }, function(app)
        local request = app:submit { data = "gate" }
        assert.equal("waiting", next_data(request))
        local expected = { outcome = "aborted", stages = { a = "finished", gate = "running", c = "running" } }
        assert.same(expected, request:abort())
        assert.same(expected, request:abort())
        local err, code = failure_of(request)
        assert.equal("EABORTED", code)
        assert.truthy(err)
        assert.equal("aborted", request.state)
        assert.same({ "next" }, data_of(app:submit { data = "next" }))
      end)
    end)
  end)

  it("wakes senders that wait for credit and removes what they stored", function()
    with_app({ { "flood", "flood" }, { "mid", "pass" }, { "last", "pass" } }, function(app)
      local request = app:submit { data = "flood" }
      assert.equal(1, next_data(request))
      assert.equal("aborted", request:abort().outcome)
      assert.is_number(data_of(app:submit { data = "how many" })[1])
      for _, name in ipairs(shared_names(app:stats().namespace)) do assert.falsy(name:find("_", 1, true), name) end
    end, { window = 2 })
  end)

  it("of a finished request says so", function()
    with_app({ { "a", "pass" } }, function(app)
      local request = app:submit { data = 1 }
      data_of(request)
      assert.same({ outcome = "already finished", stages = {} }, request:abort())
    end)
  end)

  it("does not wait for a stage that computes without end", function()
    with_app({ { "a", "trouble" } }, function(app)
      local request = app:submit { data = "compute" }
      assert.equal("computing", next_data(request))
      assert.same({ outcome = "aborted", stages = { a = "no answer" } }, request:abort())
    end)
  end)
end)

describe("a pipeline's start", function()
  it("raises all that is wrong with the declaration at once", function()
    local p = omni.pipeline "wrong"
    p:stage "a" { module = "spec.fixtures.nowhere" }
    p:stage "b" { module = "omni.stages.filter", config = { command = { "no-such-program" } } }
    p:connect("a", "c")
    local ok, err = pcall(p.start, p)
    assert.is_false(ok)
    assert.truthy(err:find 'pipeline_spec.lua:%d+: stage "a": module "spec.fixtures.nowhere" is not found')
    assert.truthy(err:find 'pipeline_spec.lua:%d+: stage "b": program "no%-such%-program" is not found')
    assert.truthy(err:find 'pipeline_spec.lua:%d+: edge "a %-> c": there is no stage "c"')
  end)

  it("fails with the stage's own error and where it came from, and leaves nothing", function()
    local app, err, code, traceback = line({
      { "a", "pass" }, { "b", { module = "spec.fixtures.stubborn", config = { model = "tiny" } } },
    }):start()
    assert.is_nil(app)
    assert.equal("ESTAGE", code)
    assert.truthy(err:find('stage "b" did not start: ', 1, true))
    assert.truthy(err:find "stubborn.lua:5: the model tiny is missing")
    assert.truthy(traceback:find "stubborn.lua:5")
  end)

  it("fails where a module is no stage", function()
    local _, err = line({ { "a", "nostage" } }):start()
    assert.truthy(err:find('module "spec.fixtures.nostage" is no stage', 1, true))
  end)

  it("fails when a stage is not ready in time", function()
    local slow = { module = "spec.fixtures.stubborn", config = { wait = true }, start_timeout = 0.1 }
    local _, err, code = line({ { "slow", slow } }):start()
    assert.equal("ETIMEDOUT", code)
    assert.truthy(err:find('stage "slow" was not ready within 0.1 s', 1, true))
  end)

  it("gives stages their environment, working directory and processors", function()
    local show = filter { command = { "sh", "-c", 'echo "$COLOUR in $PWD on $(nproc)"' } }
    show.env, show.cwd, show.cpus = { COLOUR = "green" }, "/tmp", 0
    with_app({ { "show", show } }, function(app)
      assert.same({ "green in /tmp on 1\n" }, data_of(app:submit { data = "" }))
    end)
  end)

  it("opens a stage once, gives run what that returned, and closes it at an orderly end", function()
    with_app({ { "a", { module = "spec.fixtures.counting", config = { from = 10 } } } }, function(app)
      assert.same({ 11 }, data_of(app:submit { data = 1 }))
      assert.same({ 12 }, data_of(app:submit { data = 1 }))
      log.capture()
      app:stop()
      local said = {}
      for _, record in ipairs(log.release()) do said[#said + 1] = record.msg end
      assert.same({ "closed at 12" }, said)
    end)
  end)

  it("brings what stages log and print into the host's log, with the stage's name", function()
    local warner = filter { command = { "sh", "-c", "cat; echo careful >&2" } }
    with_app({ { "a", "trouble" }, { "b", warner } }, function(app)
      log.capture()
      local ok, err = pcall(data_of, app:submit { data = "log" })
      app:stop()
      local seen = {}
      for _, record in ipairs(log.release()) do seen[record.msg] = record end
      assert(ok, err)
      assert.equal("error", seen["told by the stage"].level)
      assert.equal("red", seen["told by the stage"].colour)
      assert.equal("a", seen["told by the stage"].stage)
      assert.equal("b", seen.careful.stage)
      assert.equal("stderr", seen.careful.stream)
    end)
  end)
end)

describe("a filter", function()
  it("runs a program for each chunk", function()
    with_app({ { "split", "words" }, { "rev", filter { command = { "rev" } } } }, function(app)
      assert.same({ "cba", "fed" }, data_of(app:submit { data = "abc def" }))
    end)
  end)

  it("cuts the output into pieces where that is asked for", function()
    with_app({ { "cat", filter { command = { "cat" }, chunk_bytes = 4 } } }, function(app)
      assert.same({ "0123", "4567", "89" }, data_of(app:submit { data = "0123456789" }))
    end)
  end)

  it("runs one program for a whole request and sends on what it writes while it reads", function()
    with_fifo(function(fifo, open)
      local gate = { module = "spec.fixtures.gate", config = { fifo = fifo } }
      local upper = filter { command = { "sed", "-u", "s/.*/<&>/" }, per = "request" }
      local lines = filter { command = { "sh", "-c", "cat; echo" } }
      with_app({ { "split", "words" }, { "gate", gate }, { "nl", lines }, { "tag", upper } }, function(app)
        local request = app:submit { data = "a\ngate\nb" }
        assert.equal("<a", (next_data(request)):sub(1, 2))
        open()
        assert.truthy(table.concat(data_of(request)):find "b>")
      end)
    end)
  end)

  it("moves megabytes both ways at once", function()
    with_app({ { "cat", filter { command = { "cat" }, per = "request" } } }, function(app)
      local bytes = ("0123456789abcdef"):rep(2 ^ 18)
      assert.equal(bytes, table.concat(data_of(app:submit { data = bytes })))
    end)
  end)

  it("may stop reading before its input ends", function()
    with_app({ { "flood", "flood" }, { "head", filter { command = { "head", "-c", "1" }, per = "request" } } },
      function(app)
        assert.same({ "1" }, data_of(app:submit { data = "flood" }))
      end)
  end)

  it("fails the request with the end of its stderr when it fails", function()
    local bad = { "sh", "-c", "cat >/dev/null; echo no paper >&2; exit 7" }
    for _, per in ipairs { "chunk", "request" } do
      with_app({ { "print", filter { command = bad, per = per } } }, function(app)
        local err, code = failure_of(app:submit { data = "x" })
        assert.equal("ESTAGE", code)
        assert.truthy(err:find('stage "print" failed: program "sh" exited with code 7; stderr: no paper', 1, true))
      end)
    end
  end)

  it("kills the program and its children when the request ends", function()
    local dir = assert(uv.fs_mkdtemp "/tmp/omnihost-spec-XXXXXX")
    local command = ("sleep 300 & echo $! >%s/pid; echo started; wait"):format(dir)
    with_app({ { "sleep", filter { command = { "sh", "-c", command }, per = "request" } } }, function(app)
      local request = app:submit { data = "" }
      assert.equal("started\n", next_data(request))
      assert.equal("aborted", request:abort().outcome)
      local file = assert(io.open(dir .. "/pid"))
      local pid = file:read "*n"
      file:close()
      assert.is_true(await_end(pid))
    end)
    os.execute("rm -rf " .. dir)
  end)

  it("refuses chunks that are no bytes", function()
    with_app({ { "cat", filter { command = { "cat" } } } }, function(app)
      local err = failure_of(app:submit { data = { 1 } })
      assert.truthy(err:find("a filter reads bytes, but a chunk is a table", 1, true))
    end)
  end)
end)

describe("the stats of a pipeline", function()
  it("move with its requests", function()
    with_app({ { "a", "trouble" }, { "b", "words" } }, function(app)
      data_of(app:submit { data = "one two three" })
      failure_of(app:submit { data = "error" })
      local held = app:submit { data = "compute" }
      assert.equal("computing", next_data(held))
      local stats = app:stats()
      assert.same({ 3, 1, 1, 0, 1 }, { stats.submitted, stats.done, stats.failed, stats.aborted, stats.running })
      assert.is_true(stats.chunks >= 5) -- three and a terminal one; one; perhaps the terminal one of what failed
      held:abort()
      assert.equal(1, app:stats().aborted)
      assert.truthy(metrics.text():find('omni_first_chunk_microseconds_count{instance="' .. stats.namespace, 1, true))
    end)
  end)
end)

describe("submit", function()
  it("refuses data that cannot cross to another process, and counts nothing", function()
    with_app({ { "a", "pass" } }, function(app)
      assert.has_error(function() app:submit { data = print } end)
      assert.equal(0, app:stats().submitted)
    end)
  end)

  it("checks its keys at the script's line", function()
    with_app({ { "a", "pass" } }, function(app)
      local ok, err = pcall(app.submit, app, { dta = 1, deadline = -1 })
      assert.is_false(ok)
      assert.truthy(err:find 'pipeline_spec.lua:%d+: app:submit: unknown key "dta" %(did you mean "data"%?%)')
      assert.truthy(err:find 'key "deadline" must be a number above 0')
    end)
  end)

  it("lets one task at a time read a request", function()
    with_app({ { "a", "trouble" } }, function(app)
      local request = app:submit { data = "compute" }
      assert.equal("computing", next_data(request))
      assert.equal("ETIMEDOUT", (select(3, request:next { timeout = 0.01 })))
      local reader = omni.spawn(function() return request:next() end)
      omni.sleep(0)
      local ok, err = pcall(request.next, request)
      assert.is_false(ok)
      assert.truthy(err:find "pipeline_spec.lua:%d+: request:next: another task waits")
      request:abort()
      reader:join()
    end)
  end)
end)
