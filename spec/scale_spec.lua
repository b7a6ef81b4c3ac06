local omni = require "omni"
local scale = require "omni.scale"
local support = require "spec.support.pipeline"
local uv = require "luv"

local data_of = support.data_of
local inline = support.inline
local next_data = support.next_data
local with_pipeline = support.with_pipeline

-- Tells its process for each chunk; a request that is held goes on when the file config.flag is gone.
local WHO = [[
  for x in input do
    emit(require("luv").os_getpid())
    while x == "hold" and require("luv").fs_stat(self.config.flag) do require("omni").sleep(0.002) end
  end
  emit "end"]]

local function with_flag(fn)
  local flag = os.tmpname()
  local function declare(p)
    p:stage "first" { module = "spec.fixtures.pass" }
    local stage = inline(WHO)
    stage.config.flag = flag
    p:stage "a" (stage)
    p:stage "last" { module = "spec.fixtures.pass" }
    p:connect("first", "a"):connect("a", "last")
  end
  local ok, err = xpcall(with_pipeline, debug.traceback, declare, function(app) fn(app, flag) end)
  os.remove(flag)
  assert(ok, err)
end

local function await_gone(pid) assert.is_true(support.await_end(pid), "a process is left") end

describe("scaling a stage", function()
  it("up gives the new processes work when they are ready", function()
    with_flag(function(app, flag)
      local first = app:submit { data = "hold" }
      local pids = { [next_data(first)] = true }
      assert.is_true(app:scale("a", 3))
      local held = {}
      for i = 1, 2 do
        held[i] = app:submit { data = "hold" }
        pids[next_data(held[i])] = true
      end
      local workers = app:stats().workers
      assert.same({ [workers.a] = true, [workers["a.1"]] = true, [workers["a.2"]] = true }, pids)
      assert.same(0, app:stats().restarts["a.1"])
      os.remove(flag)
      for _, request in ipairs { first, held[1], held[2] } do assert.same({ "end" }, data_of(request)) end
    end)
  end)

  it("down lets the last requests of a process end before it does", function()
    with_flag(function(app, flag)
      assert.is_true(app:scale("a", 2))
      local held = { app:submit { data = "hold" }, app:submit { data = "hold" } }
      local kept, retiring = next_data(held[1]), next_data(held[2])
      assert.equal(app:stats().workers["a.1"], retiring)
      local third = app:submit { data = "hold" } -- now the other one has less to do
      assert.equal(kept, next_data(third))
      assert.is_true(app:scale("a", 1))
      for _ = 1, 4 do assert.same({ kept, "end" }, data_of(app:submit { data = "x" })) end
      assert.equal(0, uv.kill(retiring, 0))
      os.remove(flag)
      assert.same({ "end" }, data_of(held[1]))
      assert.same({ "end" }, data_of(held[2]))
      await_gone(retiring)
    end)
  end)

  it("takes a process back that was to end, and starts one again that has ended", function()
    with_flag(function(app, flag)
      app:scale("a", 2)
      local held = { app:submit { data = "hold" }, app:submit { data = "hold" } }
      next_data(held[1])
      local second = next_data(held[2])
      app:scale("a", 1)
      app:scale("a", 2)
      for i = 3, 4 do held[i] = app:submit { data = "hold" } end
      next_data(held[3])
      assert.equal(second, next_data(held[4]))
      os.remove(flag)
      data_of(held[1])
      data_of(held[2])
      assert.equal(0, uv.kill(second, 0))
      app:scale("a", 1)
      await_gone(second)
      local deadline = omni.now() + 10
      while app:stats().workers["a.1"] and omni.now() < deadline do omni.sleep(0.005) end
      assert.is_nil(app:stats().workers["a.1"])
      assert.is_true(app:scale("a", 2))
      assert.are_not.equal(second, app:stats().workers["a.1"])
      assert.same("end", data_of(app:submit { data = "x" })[2])
    end)
  end)

  it("up and down under load loses no request", function()
    with_flag(function(app)
      local requests, scaling = {}, true
      local task = omni.spawn(function()
        for _, n in ipairs { 3, 1, 4, 2, 1, 3 } do
          local ok, err, code = app:scale("a", n)
          assert(ok or code == "EBUSY", err)
        end
        scaling = false
      end)
      while scaling or #requests < 100 do
        requests[#requests + 1] = app:submit { data = #requests, deadline = 20 }
        if #requests % 10 == 0 then data_of(requests[#requests - 5]) end
        omni.sleep(0)
      end
      task:join()
      for i, request in ipairs(requests) do
        if i % 10 ~= 5 then assert.equal("end", data_of(request)[2]) end
      end
      assert.same({ #requests, 0 }, { app:stats().done, app:stats().failed })
    end)
  end)

  it("tells why a new process did not start, and goes on with those that run", function()
    local flag = os.tmpname()
    local stage = inline("for x in input do emit(x) end")
    os.remove(flag)
    stage.config.open = ("if io.open(%q) then error('no room', 0) end"):format(flag)
    with_pipeline(function(p) p:stage "a" (stage) end, function(app)
      assert(io.open(flag, "we")):close()
      local ok, err, code = app:scale("a", 2)
      assert.is_nil(ok)
      assert.equal("ESTAGE", code)
      assert.equal('ESTAGE: stage "a" did not start: no room', err)
      assert.same({ 1 }, data_of(app:submit { data = 1 }))
      os.remove(flag)
      assert.is_true(app:scale("a", 2))
    end)
    os.remove(flag)
  end)

  it("tells why a new process cannot even be made, and stops in order", function()
    local dir = assert(uv.fs_mkdtemp "/tmp/omnihost-spec-XXXXXX")
    local stage = inline("for x in input do emit(x) end")
    stage.cwd = dir
    with_pipeline(function(p) p:stage "a" (stage) end, function(app)
      assert(uv.fs_rmdir(dir))
      local ok, err, code = app:scale("a", 2)
      assert.is_nil(ok)
      assert.equal("ESTAGE", code)
      assert.matches('^ESTAGE: stage "a" could not be started: ENOENT', err)
      assert.same({ 1 }, data_of(app:submit { data = 1 }))
    end)
  end)

  it("adds no process while one that it needs is just ending", function()
    local put, added = {}, 0
    local first = { name = "a", replica = 0, state = "ready", holding = 0, definition = {} }
    local ending = { name = "a", replica = 2, state = "ready", holding = 0, retiring = true, stopped = true }
    scale.command({
      stages = { a = { first, ending } }, edges = {}, add = function() added = added + 1 end,
      outputs = { put = function(_, message) put[#put + 1] = message end },
    }, { id = 7, stage = "a", replicas = 3 })
    assert.same({ { "scaled", 7, "EBUSY: replica 2 is just ending" } }, put)
    assert.equal(0, added)
  end)

  it("answers whose process was taken back and died before it was ready", function()
    local put, job = {}, { id = 8, starting = 1 }
    local stage = { name = "a", replica = 1, label = "a.1", job = job, retiring = true }
    scale.gone({
      stages = { a = { stage } }, outputs = { put = function(_, message) put[#put + 1] = message end },
    }, stage)
    assert.same({ { "stage", "a.1", "removed" }, { "scaled", 8, false } }, put)
  end)

  it("ends with the pipeline that stops before it is done", function()
    local dir = assert(uv.fs_mkdtemp "/tmp/omnihost-spec-XXXXXX")
    local stage = inline("for x in input do emit(x) end")
    stage.config.open = ([[
      if not require("luv").fs_rmdir(%q) then require("omni").sleep(100) end]]):format(dir)
    local answer
    with_pipeline(function(p) p:stage "a" (stage) end, function(app)
      local task = omni.spawn(function() answer = { app:scale("a", 2) } end)
      omni.sleep(0)
      app:stop { abort = true }
      task:join(10)
    end)
    assert.equal("ECLOSED", assert(answer, "it still waits")[3])
  end)

  it("refuses what makes no sense", function()
    with_flag(function(app)
      for _, arguments in ipairs { { "aa", 2 }, { "a.1", 1 }, { "a", 0 }, { "a", 1.5 }, { "a", 65 }, { nil, 1 } } do
        local ok, err = pcall(app.scale, app, arguments[1], arguments[2])
        assert.is_false(ok)
        assert.truthy(err:find "scale_spec.lua:%d+: app:scale: ", err)
      end
      app:stop()
      assert.equal("ECLOSED", (select(3, app:scale("a", 2))))
    end)
  end)
end)
