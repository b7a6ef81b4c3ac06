local support = require "spec.support.pipeline"
local uv = require "luv"

local data_of = support.data_of
local failure_of = support.failure_of
local next_data = support.next_data
local with_app = support.with_app

local function shell(config)
  return { exec = { "sh", "spec/fixtures/inline_stage.sh" }, inline = true, config = config }
end

-- Programs whose parent is this process.
local function children(pid)
  local found = {}
  local file = assert(io.open(("/proc/%d/task/%d/children"):format(pid, pid), "re"))
  for child in file:read("*a"):gmatch "%d+" do found[#found + 1] = tonumber(child) end
  file:close()
  return found
end

describe("a shell stage", function()
  it("gets and gives text, values and bytes on its control channel", function()
    with_app({ { "a", "pass" }, { "sh", shell() }, { "c", "pass" } }, function(app)
      for _, value in ipairs { 0, -1.5, true, false, "", "ü\n\"", "\0\255", ("x"):rep(3e5), { 1, { a = "b" } } } do
        assert.same({ value }, data_of(app:submit { data = value }))
      end
    end)
  end)

  it("serves requests side by side", function()
    with_app({ { "a", "words" }, { "sh", shell() } }, function(app)
      local requests = {}
      for i = 1, 20 do requests[i] = app:submit { data = ("one two %d"):format(i) } end
      for i = 1, 20 do assert.same({ "one", "two", tostring(i) }, data_of(requests[i])) end
    end)
  end)

  it("has fd 3 and nothing else of the host's", function()
    with_app({ { "sh", shell() } }, function(app)
      local list = data_of(app:submit { data = "descriptors" })[1]
      assert.truthy(list:find "/fd/3")
      assert.falsy(list:find "/fd/[4-9] ")
    end)
  end)

  it("that floods waits for its reader", function()
    with_app({ { "sh", shell() }, { "c", "pass" } }, function(app)
      local request = app:submit { data = "flood" }
      for i = 1, 300 do assert.equal(i, next_data(request)) end
    end, { window = 2 })
  end)

  it("is not read on while much that it said waits", function()
    with_app({ { "sh", shell() }, { "c", "pass" } }, function(app)
      local wide = app:submit { data = "wide" }
      next_data(wide)
      local behind = app:submit { data = "behind" }
      -- It would be answered at once if everything before it were taken into memory.
      assert.equal("ETIMEDOUT", select(3, behind:next { timeout = 0.3 }))
      assert.equal(199, #data_of(wide))
      assert.same({ "behind" }, data_of(behind))
    end, { window = 2 })
  end)

  it("fails a request and goes on", function()
    with_app({ { "a", "pass" }, { "sh", shell() } }, function(app)
      local err, code = failure_of(app:submit { data = "fail" })
      assert.equal("EINVAL", code)
      assert.truthy(err:find('stage "sh" failed: not that', 1, true))
      assert.same({ "fine" }, data_of(app:submit { data = "fine" }))
    end)
  end)

  it("may end a request before its input ends", function()
    with_app({ { "a", "words" }, { "sh", shell() } }, function(app)
      assert.same({ "x" }, data_of(app:submit { data = "x enough " .. ("more "):rep(100) }))
      assert.same({ "next" }, data_of(app:submit { data = "next" }))
    end, { window = 2 })
  end)

  it("that says something else is ended; the line is shown", function()
    for what, why in pairs { garbage = "no json", early = "data needs its req" } do
      with_app({ { "sh", shell() } }, function(app)
        local err, code = failure_of(app:submit { data = what })
        assert.equal("EWORKER", code)
        assert.truthy(err:find("EPROTOCOL: not a control message (", 1, true), err)
        assert.truthy(err:find(why, 1, true), err)
      end)
    end
  end)

  it("that ends takes its worker with it, which ends the same way", function()
    for what, how in pairs { exit = "exited with code 3; stderr: giving up", die = "died by signal SIGKILL" } do
      with_app({ { "sh", shell() } }, function(app)
        local err, code = failure_of(app:submit { data = what })
        assert.equal("EWORKER", code)
        assert.truthy(err:find('stage "sh" ' .. how, 1, true), err)
      end)
    end
  end)

  it("ends with its worker", function()
    with_app({ { "sh", shell() } }, function(app)
      local worker = app:stats().workers.sh
      local program = children(worker)[1]
      assert.is_number(program)
      uv.kill(worker, "sigkill")
      assert.is_true(support.await_end(program))
    end)
  end)

  it("is told of an abort and goes on", function()
    with_app({ { "a", "words" }, { "sh", shell() }, { "c", "pass" } }, function(app)
      local request = app:submit { data = "flood flood flood" }
      next_data(request)
      assert.equal("running", request:abort().stages.sh)
      assert.same({ "next" }, data_of(app:submit { data = "next" }))
    end, { window = 1 })
  end)

  it("may refuse to start, with its reason", function()
    local app, err = support.line({ { "sh", shell { broken = true } } }):start()
    assert.is_nil(app)
    assert.truthy(err:find('stage "sh" did not start: no such voice', 1, true))
  end)

  it("is declared with exec alone", function()
    local _, problems = support.line({ { "x", { module = "spec.fixtures.pass", inline = true } } }):topology()
    assert.truthy(problems[1]:find("inline is for exec", 1, true))
  end)
end)
