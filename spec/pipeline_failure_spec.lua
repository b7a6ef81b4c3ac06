local omni = require "omni"
local run = require "spec.support.run"
local support = require "spec.support.pipeline"
local sys = require "omni.testing.sys"
local uv = require "luv"

local await_end = support.await_end
local data_of = support.data_of
local failure_of = support.failure_of
local filter = support.filter
local gate_stage = support.gate_stage
local next_data = support.next_data
local shared_names = support.shared_names
local with_app = support.with_app
local with_fifo = support.with_fifo

describe("a request that fails", function()
  it("raises in the loop over its chunks", function()
    with_app({ { "a", "trouble" } }, function(app)
      local ok, err = pcall(data_of, app:submit { data = "error" })
      assert.is_false(ok)
      assert.truthy(err:find 'ESTAGE: stage "a" failed: .*trouble.lua:3: no idea what error is')
    end)
  end)

  it("is told at once when its chunks cannot be watched for", function()
    if not sys.enabled then return pending "a test build is needed" end
    with_app({ { "a", "pass" } }, function(app)
      local rule = sys.rule { op = "THREAD", match = "omni-recv", errno = "ENOMEM" }
      local err, code = failure_of(app:submit { data = "x", deadline = 2 })
      rule:remove()
      assert.equal("ENOMEM", code, err)
      assert.same({ "y" }, data_of(app:submit { data = "y" }))
    end)
  end)

  it("is told, and nobody else fails, when the way to its first stage cannot be opened", function()
    if not sys.enabled then return pending "a test build is needed" end
    with_app({ { "a", "pass" } }, function(app)
      local rule = sys.rule { op = "OPENAT", match = "/a.0", errno = "EMFILE" }
      local err, code = failure_of(app:submit { data = "x", deadline = 2 })
      rule:remove()
      assert.equal("EMFILE", code, err)
      assert.same({ "y" }, data_of(app:submit { data = "y" }))
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
      noisy.max_restarts = 0
      local gate = gate_stage(fifo)
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
      local gate = gate_stage(fifo)
      gate.max_restarts = 0
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

  it("leaves nothing in shared memory when its sender is killed, while the pipeline goes on", function()
    with_app({ { "flood", "flood" }, { "mid", "pass" }, { "last", "pass" } }, function(app)
      local request = app:submit { data = "flood" }
      assert.equal(1, next_data(request))
      uv.kill(app:stats().workers.flood, "sigkill")
      local _, code = failure_of(request)
      assert.equal("EWORKER", code)
      -- The request has ended for its user; the other stages let go of it now.
      local deadline = omni.now() + 5
      local function stored()
        local values = 0
        for _, name in ipairs(shared_names(app:stats().namespace)) do
          if name:find("_", 1, true) then values = values + 1 end
        end
        return values
      end
      while stored() > 0 and omni.now() < deadline do omni.sleep(0.005) end
      assert.equal(0, stored())
    end, { window = 8 })
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
      local gate = gate_stage(fifo)
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

  it("fails when the orchestrator itself does, and nobody waits for it", function()
    local process = run.code [[
      local omni = require "omni"
      local p = omni.pipeline "p"
      p:stage "a" { module = "omni.stages.filter", config = { command = { "cat" } }, pick = function()
        require("luv").new_timer():start(0, 0, function() error "boom" end)
        return 1
      end }
      local app = assert(p:start())
      omni.spawn(function() omni.sleep(5) print "hangs" os.exit(3) end)
      print(select(3, app:submit({ data = "x" }):next()))
      print(select(3, app:rpc("a", "stats")))
      app:stop()
      os.exit(0)]]
    assert.equal("ERUN\nERUN\n", process.stdout)
    assert.equal(0, process.code)
    assert.truthy(process.stderr:find("boom", 1, true))
  end)

  it("fails when its stage breaks the control protocol, which is shown with the line", function()
    with_app({ { "a", "trouble" }, { "b", "pass" } }, function(app)
      local err, code = failure_of(app:submit { data = "garbage" })
      assert.equal("EWORKER", code)
      assert.truthy(err:find('stage "a" was killed after EPROTOCOL: not a control message', 1, true))
      assert.truthy(err:find(": no json", 1, true))
    end)
  end)

  it("fails at both ends when a chunk cannot be stored", function()
    with_app({ { "a", "words" }, { "b", "pass" } }, function(app)
      os.execute(("rm -rf /dev/shm/%s.d/b.0"):format(app:stats().namespace))
      local err, code = failure_of(app:submit { data = "x y" })
      assert.is_not_nil(code)
      assert.truthy(err:find("^E%u+: ") and not err:find("^ETIMEDOUT"), err)
    end)
  end)
end)

describe("an abort", function()
  it("is answered with what each stage did, as often as it is asked", function()
    with_fifo(function(fifo)
      local gate = gate_stage(fifo)
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

  it("reaches programs that are started after it", function()
    with_app({ { "late", "late_program" } }, function(app)
      local request = app:submit { data = "start" }
      assert.equal("ready", next_data(request))
      request:abort()
      assert.same({ 'ESTAGE: program "sleep" died by signal SIGKILL' }, data_of(app:submit { data = "what" }))
    end)
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
