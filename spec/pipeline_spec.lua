local json = require "omni.json"
local log = require "omni.log"
local metrics = require "omni.metrics"
local omni = require "omni"
local support = require "spec.support.pipeline"
local uv = require "luv"

local data_of = support.data_of
local failure_of = support.failure_of
local filter = support.filter
local gate_stage = support.gate_stage
local line = support.line
local next_data = support.next_data
local shared_names = support.shared_names
local with_app = support.with_app
local with_fifo = support.with_fifo

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
      local gate = gate_stage(fifo)
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
      local gate = gate_stage(fifo)
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
