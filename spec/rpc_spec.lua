local omni = require "omni"
local support = require "spec.support.pipeline"
local uv = require "luv"

local data_of = support.data_of
local next_data = support.next_data
local with_app = support.with_app

local ASKED = { module = "spec.fixtures.asked", config = { name = "first" } }
local ODD = { exec = { "sh", "spec/fixtures/answers.sh" } }
local PYTHON = {
  exec = { "python3", "spec/fixtures/exec_stage.py" },
  env = { PYTHONPATH = uv.cwd() .. "/examples/python", PYTHONDONTWRITEBYTECODE = "1" },
}

local function with_stage(definition, fn)
  with_app({ { "talker", definition }, { "after", "pass" } }, fn)
end

describe("a question to a stage", function()
  it("is answered by the stage's method, with its self and the arguments", function()
    with_stage(ASKED, function(app)
      assert.same({ sum = 2, name = "first" }, app:rpc("talker", "add", 2))
      assert.same({ sum = 5, name = "first" }, app:rpc("talker", "add", 3, { replica = 0 }))
    end)
  end)

  it("may be answered by nothing", function()
    for _, definition in ipairs { ASKED, PYTHON } do
      with_stage(definition, function(app)
        local value, err = app:rpc("talker", "nothing")
        assert.is_nil(value)
        assert.is_nil(err)
      end)
    end
  end)

  it("is put to all, and each answer or failure named", function()
    with_stage(ASKED, function(app)
      local all = app:rpc("talker", "add", 4, { replica = "all" })
      assert.same({ { replica = 0, value = { sum = 4, name = "first" } } }, all)
      local failed = app:rpc("talker", "coded", nil, { replica = "all" })[1]
      assert.equal("EBUSY", failed.code)
      local late = app:rpc("talker", "never", nil, { replica = "all", timeout = 0.05 })[1]
      assert.equal("ETIMEDOUT", late.code)
      assert.equal(0, late.replica)
    end)
  end)

  it("that fails is told with stage, line and code", function()
    with_stage(ASKED, function(app)
      local value, err, code = app:rpc("talker", "fails")
      assert.is_nil(value)
      assert.equal("ESTAGE", code)
      assert.truthy(err:find 'ESTAGE: stage "talker": [^\n]*asked.lua:%d+: no idea')
      value, err, code = app:rpc("talker", "coded")
      assert.same({ "EBUSY", 'EBUSY: stage "talker": later' }, { code, err })
      assert.is_nil(value)
    end)
  end)

  it("whose answer cannot cross says so, and the stage goes on", function()
    with_stage(ASKED, function(app)
      assert.equal("ECODEC", select(3, app:rpc("talker", "odd")))
      assert.equal("E2BIG", select(3, app:rpc("talker", "long")))
      assert.equal(1, app:rpc("talker", "add", 1).sum)
    end)
  end)

  it("names the nearest method where there is none of the name", function()
    with_stage(ASKED, function(app)
      local _, err, code = app:rpc("talker", "stat")
      assert.equal("ENOENT", code)
      assert.truthy(err:find('there is no method "stat" (did you mean "stats"?)', 1, true))
    end)
  end)

  it("that is no question is refused at its line", function()
    with_stage(ASKED, function(app)
      local function says(text, ...)
        local ok, err = pcall(app.rpc, app, ...)
        assert.is_false(ok)
        assert.truthy(err:find("rpc_spec.lua", 1, true), err)
        assert.truthy(err:find(text, 1, true), err)
      end
      says('there is no stage "talkr" (did you mean "talker"?)', "talkr", "add")
      says("the arguments cannot cross", "talker", "add", print)
      says('"all"', "talker", "add", 1, { replica = "every" })
      says("timeout", "talker", "add", 1, { timeout = -1 })
    end)
  end)

  it("is not sent to a replica that does not exist", function()
    with_stage(ASKED, function(app)
      local _, err, code = app:rpc("talker", "add", 1, { replica = 5 })
      assert.equal("ENOENT", code)
      assert.truthy(err:find('stage "talker" has no replica 5', 1, true))
    end)
  end)

  it("that is never answered ends at its deadline, and leaves nothing", function()
    with_stage(ASKED, function(app)
      local before = omni.now()
      local _, err, code = app:rpc("talker", "never", nil, { timeout = 0.1 })
      assert.equal("ETIMEDOUT", code)
      assert.truthy(err:find('stage "talker" did not answer "never" within 0.1 s', 1, true))
      assert.is_true(omni.now() - before < 1)
      assert.equal(1, app:rpc("talker", "add", 1).sum)
      assert.equal(0, app:stats().late_answers)
    end)
  end)

  it("that is answered late has the answer counted, and nobody else gets it", function()
    with_stage(ODD, function(app)
      assert.equal("ETIMEDOUT", select(3, app:rpc("talker", "late", nil, { timeout = 0.05 })))
      assert.equal("now", app:rpc("talker", "now"))
      assert.equal(1, app:stats().late_answers)
    end)
  end)

  it("that is answered twice keeps the first answer; the second is counted", function()
    with_stage(ODD, function(app)
      assert.equal("one", app:rpc("talker", "twice"))
      assert.equal("one", app:rpc("talker", "twice"))
      assert.equal("mine", app:rpc("talker", "stranger")) -- an answer to what nobody asked comes first
      assert.equal(3, app:stats().late_answers)
    end)
  end)

  it("fails at once when the stage dies, or is down", function()
    for _, case in ipairs { { ODD, "dies", "died by signal SIGKILL" }, { ASKED, "exits", "exited with code 7" } } do
      with_stage(case[1], function(app)
        local before = omni.now()
        for _ = 1, 2 do
          local _, err, code = app:rpc("talker", case[2], nil, { timeout = 20 })
          assert.equal("EWORKER", code)
          assert.truthy(err:find(case[3], 1, true), err)
        end
        assert.is_true(omni.now() - before < 10)
      end)
    end
  end)

  it("that is answered against the protocol ends the stage", function()
    with_stage(ODD, function(app)
      local _, err, code = app:rpc("talker", "odd")
      assert.equal("EWORKER", code)
      assert.truthy(err:find("a code is E and capital letters", 1, true))
    end)
  end)

  it("that is slow delays neither chunks nor other questions", function()
    support.with_fifo(function(fifo, open)
      with_stage(ASKED, function(app)
        local slow = omni.spawn(function() return app:rpc("talker", "waits", fifo, { timeout = 20 }) end)
        for i = 1, 200 do assert.same({ i }, data_of(app:submit { data = i })) end
        assert.equal(1, app:rpc("talker", "add", 1).sum)
        open()
        assert.equal("waited", slow:join())
      end)
    end)
  end)

  it("is asked while chunks stream", function()
    with_app({ { "flood", "flood" }, { "talker", ASKED } }, function(app)
      local request = app:submit { data = "flood" }
      for i = 1, 1000 do
        assert.equal(i, next_data(request))
        if i % 100 == 0 then assert.equal(i / 100, app:rpc("talker", "add", 1).sum) end
      end
    end)
  end)

  it("fails when the pipeline has stopped", function()
    local app = assert(support.line({ { "talker", ASKED } }):start())
    local pending = omni.spawn(function() return app:rpc("talker", "never", nil, { timeout = 20 }) end)
    app:stop()
    local _, _, code = pending:join()
    assert.equal("ECLOSED", code)
    assert.equal("ECLOSED", select(3, app:rpc("talker", "add", 1)))
  end)
end)

describe("every stage", function()
  for what, definition in pairs { Lua = ASKED, Python = PYTHON } do
    it("answers stats, health and log_level: " .. what, function()
      with_stage(definition, function(app)
        local stats = app:rpc("talker", "stats")
        assert.equal(app:stats().workers.talker, stats.pid)
        assert.equal(0, stats.running)
        local health = app:rpc("talker", "health")
        assert.same({ 0, 0 }, { health.running, health.oldest_seconds })
        assert.is_nil(health.waits_for)
        assert.equal("info", app:rpc("talker", "log_level", "debug"))
        assert.equal("debug", app:rpc("talker", "log_level"))
      end)
    end)
  end

  it("tells how long a request has stood still, and why", function()
    for _, first in ipairs { "flood", PYTHON } do
      with_app({ { "first", first }, { "last", "pass" } }, function(app)
        local request = app:submit { data = "flood" }
        next_data(request)
        local health
        local deadline = omni.now() + 5
        repeat
          health = app:rpc("first", "health")
        until health.waits_for == "credit" and health.oldest_seconds > 0.01 or omni.now() > deadline
        assert.equal("credit", health.waits_for)
        assert.equal(1, health.running)
        assert.is_true(health.oldest_seconds > 0.01)
        request:abort()
        assert.equal(0, app:rpc("first", "health").running)
      end, { window = 2 })
    end
  end)
end)
