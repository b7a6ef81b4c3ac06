local omni = require "omni"
local support = require "spec.support.pipeline"
local supervisor = require "omni.supervisor"
local uv = require "luv"

local data_of = support.data_of
local failure_of = support.failure_of
local next_data = support.next_data
local with_fifo = support.with_fifo
local with_pipeline = support.with_pipeline

local function await(what, fn)
  local deadline = omni.now() + 10
  while not fn() do
    assert(omni.now() < deadline, "not in time: " .. what)
    omni.sleep(0.005)
  end
end

local function one(definition)
  return function(p) p:stage "a" (definition) end
end

-- A stage that ends its process for the chunk "exit".
local function fragile(max_restarts)
  return { module = "spec.fixtures.trouble", max_restarts = max_restarts }
end

describe("starting a process", function()
  it("that can have no control channel is a failure and no error", function()
    local socketpair = uv.socketpair
    uv.socketpair = function() return nil, "EMFILE: too many open files", "EMFILE" end -- luacheck: ignore
    local called, worker, err, code = pcall(supervisor.spawn, { stage = "a", command = { "true" }, owner_fd = 0 })
    uv.socketpair = socketpair -- luacheck: ignore
    assert.is_true(called, worker)
    assert.is_nil(worker)
    assert.equal('EWORKER: stage "a" could not be started: EMFILE: too many open files', err)
    assert.equal("EWORKER", code)
  end)
end)

describe("a stage whose process has died", function()
  it("gets a new one; what it held fails, what comes meanwhile waits, the rest goes on", function()
    with_fifo(function(fifo, open)
      with_pipeline(function(p)
        p:stage "first" { module = "spec.fixtures.pass" }
        p:stage "gate" (support.gate_stage(fifo))
        p:connect("first", "gate")
      end, function(app)
        local beyond = app:submit { data = "gate" }
        assert.equal("waiting", next_data(beyond))
        assert.same({ 0 }, data_of(app:submit { data = 0 })) -- the first stage has let go of the other one before
        local pid = app:stats().workers.first
        uv.kill(pid, "sigkill")
        assert.is_true(support.await_end(pid))
        for i = 1, 10 do assert.same({ i }, data_of(app:submit { data = i, deadline = 10 })) end
        local stats = app:stats()
        assert.are_not.equal(pid, stats.workers.first)
        assert.same({ first = 1, gate = 0 }, stats.restarts)
        assert.same({}, stats.down)
        open()
        assert.same({ "gate" }, data_of(beyond))
      end)
    end)
  end)

  it("fails only the requests that it held", function()
    with_pipeline(one(fragile(5)), function(app)
      for i = 1, 3 do
        local err, code = failure_of(app:submit { data = "exit" })
        assert.equal("EWORKER", code)
        assert.truthy(err:find('stage "a" exited with code 3', 1, true))
        assert.same({ i }, data_of(app:submit { data = i, deadline = 10 }))
      end
      assert.equal(3, app:stats().restarts.a)
    end)
  end)

  it("leaves nothing of what it held", function()
    with_pipeline(function(p)
      p:stage "flood" { module = "spec.fixtures.flood" }
      p:stage "last" { module = "spec.fixtures.pass" }
      p:connect("flood", "last", { window = 8 })
    end, function(app)
      for _, name in ipairs { "flood", "last" } do
        local request = app:submit { data = "flood" }
        assert.equal(1, next_data(request))
        uv.kill(app:stats().workers[name], "sigkill")
        assert.equal("EWORKER", (select(2, failure_of(request))))
        assert.is_number(data_of(app:submit { data = "how many", deadline = 10 })[1])
        await("no segment is left", function()
          local values = 0
          for _, shared in ipairs(support.shared_names(app:stats().namespace)) do
            if shared:find("_", 1, true) then values = values + 1 end
          end
          return values == 0
        end)
      end
    end)
  end)
end)

describe("a stage that dies again and again", function()
  it("is down: requests are refused with the reason until it works, then deaths are counted anew", function()
    with_pipeline(one(fragile(1)), function(app)
      assert.equal("EWORKER", (select(2, failure_of(app:submit { data = "exit" }))))
      assert.equal("EWORKER", (select(2, failure_of(app:submit { data = "exit" }))))
      local err, code = failure_of(app:submit { data = "fine" })
      assert.equal("EWORKER", code)
      assert.equal('EWORKER: stage "a" is down: it exited with code 3; stderr: giving up', err)
      assert.truthy(app:stats().down.a:find("exited with code 3", 1, true))
      await("the half-open stage", function() return not app:stats().down.a end)
      -- One more death opens the breaker at once.
      assert.truthy(failure_of(app:submit { data = "exit" }):find("exited with code 3", 1, true))
      assert.truthy(failure_of(app:submit { data = "fine" }):find("is down", 1, true))
      await("the half-open stage", function() return not app:stats().down.a end)
      assert.same({ "fine" }, data_of(app:submit { data = "fine" }))
      failure_of(app:submit { data = "exit" })
      assert.same({ "fine" }, data_of(app:submit { data = "fine", deadline = 10 }))
    end)
  end)

  it("takes those with it that waited to be admitted", function()
    with_pipeline(one(fragile(0)), function(app)
      local dying, waiting = app:submit { data = "exit" }, app:submit { data = "fine" }
      assert.truthy(failure_of(dying):find('stage "a" exited with code 3', 1, true))
      assert.truthy(failure_of(waiting):find('stage "a" is down: it exited with code 3', 1, true))
    end, { max_requests = 1 })
  end)

  it("says why it did not start again, and comes back when that has ended", function()
    local flag = os.tmpname()
    os.remove(flag)
    local stage = support.inline("for x in input do emit(x) end", { max_restarts = 1 })
    stage.config.open = ("if io.open(%q) then error('the model is gone', 0) end"):format(flag)
    with_pipeline(one(stage), function(app)
      assert.same({ 1 }, data_of(app:submit { data = 1 }))
      assert(io.open(flag, "we")):close()
      uv.kill(app:stats().workers.a, "sigkill")
      await("down", function() return app:stats().down.a end)
      assert.equal('EWORKER: stage "a" is down: it did not start: the model is gone',
        (failure_of(app:submit { data = 2 })))
      os.remove(flag)
      await("up", function() return not app:stats().down.a end)
      assert.same({ 3 }, data_of(app:submit { data = 3, deadline = 10 }))
    end)
    os.remove(flag)
  end)

  it("is stopped like any other", function()
    with_pipeline(one(fragile(0)), function(app)
      failure_of(app:submit { data = "exit" })
      app:stop()
      assert.same({}, support.shared_names(app:stats().namespace))
    end)
  end)
end)

describe("a stage that hangs", function()
  it("is told at the request's deadline, killed when it does not let go, and replaced", function()
    with_pipeline(one(fragile(5)), function(app)
      local hung = app:submit { data = "compute", deadline = 0.2 }
      assert.equal("computing", next_data(hung))
      local held = app:submit { data = "held" }
      assert.equal("ETIMEDOUT", (select(2, failure_of(hung))))
      local err = failure_of(held)
      local text = 'EWORKER: stage "a" was killed after not letting go of a request past its deadline'
      assert.equal(text, err)
      assert.same({ "next" }, data_of(app:submit { data = "next", deadline = 10 }))
    end)
  end)
end)
