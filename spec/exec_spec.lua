local omni = require "omni"
local support = require "spec.support.pipeline"
local uv = require "luv"

local data_of = support.data_of
local failure_of = support.failure_of
local next_data = support.next_data
local with_app = support.with_app

local function python(config)
  local env = { PYTHONPATH = uv.cwd() .. "/examples/python", PYTHONDONTWRITEBYTECODE = "1" }
  return { exec = { "python3", "spec/fixtures/exec_stage.py" }, env = env, config = config }
end

-- A stage that says these lines; then it waits for the host to end it.
local function says(...)
  return { exec = { "sh", "-c", [[printf '%s\n' "$@" >&3; cat <&3 >/dev/null]], "sh", ... } }
end

local HELLO, READY = '{"type":"hello","protocol":1}', '{"type":"ready"}'

-- How many chunks of a pipeline lie in shared memory.
local function stored(app)
  local n = 0
  for _, name in ipairs(support.shared_names(app:stats().namespace)) do
    if name:find("_", 1, true) then n = n + 1 end
  end
  return n
end

local function emptied(app)
  local deadline = omni.now() + 5
  while stored(app) > 0 and omni.now() < deadline do omni.sleep(0.005) end
  return stored(app) == 0
end

-- How often the threads of a process went to sleep so far.
local function sleeps(pid)
  local n, scan = 0, assert(uv.fs_scandir(("/proc/%d/task"):format(pid)))
  for thread in function() return (uv.fs_scandir_next(scan)) end do
    local file = assert(io.open(("/proc/%d/task/%s/status"):format(pid, thread), "re"))
    n = n + tonumber(file:read("*a"):match "\nvoluntary_ctxt_switches:%s*(%d+)")
    file:close()
  end
  return n
end

describe("a Python stage", function()
  it("passes between Lua stages what bytes and JSON carry", function()
    with_app({ { "a", "pass" }, { "py", python() }, { "c", "pass" } }, function(app)
      local big = ("x\0\255"):rep(1e6)
      for _, value in ipairs { 0, -1.5, 2 ^ 53, true, false, "", "ü", "\0\255", big, { 1, { a = "b" } } } do
        assert.same({ value }, data_of(app:submit { data = value }))
      end
    end)
  end)

  it("may be first and last, and knows its request and its configuration", function()
    with_app({ { "py", python { digits = 3 } } }, function(app)
      assert.same({ { id = "q/1", config = { digits = 3 } } }, data_of(app:submit { id = "q/1", data = "who" }))
    end)
  end)

  it("serves many requests side by side", function()
    with_app({ { "a", "words" }, { "py", python() }, { "c", "pass" } }, function(app)
      local requests = {}
      for i = 1, 50 do requests[i] = app:submit { data = ("one two %d"):format(i) } end
      for i = 1, 50 do assert.same({ "one", "two", tostring(i) }, data_of(requests[i])) end
    end)
  end)

  it("fails a request with file and line, and goes on", function()
    with_app({ { "a", "pass" }, { "py", python() }, { "c", "pass" } }, function(app)
      local request = app:submit { data = "error" }
      local err, code = failure_of(request)
      assert.equal("ESTAGE", code)
      assert.truthy(err:find 'stage "py" failed: exec_stage.py:%d+: ValueError: no idea what that is')
      assert.truthy(request.traceback:find("Traceback", 1, true))
      assert.same({ "fine" }, data_of(app:submit { data = "fine" }))
    end)
  end)

  it("stays within its windows while other requests go on", function()
    with_app({ { "py", python() }, { "mid", "pass" }, { "last", "pass" } }, function(app)
      local slow = app:submit { data = "flood" }
      assert.equal(0, next_data(slow))
      local emitted = data_of(app:submit { data = "how many" })[1]
      -- Two edges of 4, the host's of 16, one in the hands of each stage, and what was just taken.
      assert.is_true(emitted <= 4 + 4 + 16 + 3, "emitted " .. emitted)
      local n = 1
      for chunk in slow:chunks() do
        assert.equal(n, chunk.data)
        n = n + 1
      end
      assert.equal(1000, n)
    end, { window = 4 })
  end)

  it("goes on with a window of one and chunks beyond the budget", function()
    with_app({ { "a", "pass" }, { "py", python() }, { "c", "pass" } }, function(app)
      assert.equal(1000, #data_of(app:submit { data = "flood" }))
    end, { window = 1, budget = 1 })
  end)

  it("does not hold up senders when it has read enough", function()
    with_app({ { "flood", "flood" }, { "py", python() }, { "c", "pass" } }, function(app)
      assert.same(1000, #data_of(app:submit { data = "flood" }))
    end, { window = 2 })
    with_app({ { "a", "words" }, { "py", python() } }, function(app)
      assert.same({}, data_of(app:submit { data = "enough " .. ("more "):rep(100) }))
    end, { window = 2 })
  end)

  it("sleeps while there is nothing to do", function()
    support.with_fifo(function(fifo, open)
      with_app({ { "gate", support.gate_stage(fifo) }, { "py", python() }, { "c", "pass" } }, function(app)
        local request = app:submit { data = "gate" }
        assert.equal("waiting", next_data(request)) -- and now it waits for its next input
        local pid = app:stats().workers.py
        local before = sleeps(pid)
        omni.sleep(0.2) -- a measurement, no order of events
        assert.is_true(sleeps(pid) - before <= 4, sleeps(pid) - before .. " wakeups")
        open()
        assert.same({ "gate" }, data_of(request))
      end)
    end)
  end)

  it("that is killed fails its requests alone and leaves nothing in shared memory", function()
    with_app({ { "a", "pass" }, { "py", python() }, { "mid", "pass" }, { "last", "pass" } }, function(app)
      local flood = app:submit { data = "flood" }
      assert.equal(0, next_data(flood))
      assert.is_true(stored(app) > 0)
      uv.kill(app:stats().workers.py, "sigkill")
      local err, code = failure_of(flood)
      assert.equal("EWORKER", code)
      assert.truthy(err:find('stage "py" died by signal SIGKILL', 1, true))
      assert.is_true(emptied(app))
    end, { window = 8 })
  end)

  it("that dies over a chunk is named itself, not the half of a chunk that it left", function()
    for _, line in ipairs { { { "py", python() } }, { { "py", python() }, { "after", "pass" } } } do
      with_app(line, function(app)
        local err, code = failure_of(app:submit { data = "torn" })
        assert.equal("EWORKER", code)
        assert.truthy(err:find('stage "py" died by signal SIGKILL', 1, true))
        assert.is_true(emptied(app))
      end)
    end
  end)

  it("removes what a reader that died has not read", function()
    with_app({ { "py", python() }, { "mid", "pass" }, { "last", "pass" } }, function(app)
      local flood = app:submit { data = "flood" }
      assert.equal(0, next_data(flood))
      uv.kill(app:stats().workers.mid, "sigkill")
      assert.truthy(failure_of(flood):find('stage "mid" died by signal SIGKILL', 1, true))
      assert.is_true(emptied(app))
    end, { window = 8 })
  end)

  it("tells its exit code and what it said last", function()
    with_app({ { "py", python() } }, function(app)
      local err, code = failure_of(app:submit { data = "exit" })
      assert.equal("EWORKER", code)
      assert.truthy(err:find('stage "py" exited with code 3; stderr: giving up', 1, true))
    end)
  end)

  it("lets go of an aborted request, whether it computes or waits for room", function()
    with_app({ { "py", python() }, { "mid", "pass" }, { "last", "pass" } }, function(app)
      for _, what in ipairs { "hang", "flood" } do
        local request = app:submit { data = what }
        next_data(request)
        local answer = request:abort()
        assert.equal("running", answer.stages.py)
        assert.is_true(emptied(app))
      end
      assert.same({ "next" }, data_of(app:submit { data = "next" }))
    end, { window = 2 })
  end)

  it("that breaks the protocol is killed; the line is shown", function()
    with_app({ { "py", python() } }, function(app)
      local err, code = failure_of(app:submit { data = "garbage" })
      assert.equal("EWORKER", code)
      local why = 'stage "py" was killed after EPROTOCOL: not a control message (done needs "req", a string)'
      assert.truthy(err:find(why, 1, true))
      assert.truthy(err:find('{"type":"done","req":7}', 1, true))
    end)
  end)
end)

-- A join that reads nothing, and says this of what it waits for.
local function with_liar(waits, fn)
  local script = [[printf '%s\n' "$1" "$2" >&3
    while read -r line <&3; do case $line in *'"type":"waits"'*) printf '%s\n' "$3" >&3; esac; done]]
  local lie = '{"type":"waits","req":"r1","inquiry":1,"waits":[' .. waits .. '],"sent":[],"got":[]}'
  support.with_pipeline(function(p)
    p:stage "source" { module = "spec.fixtures.flood" }
    p:stage "left" { module = "spec.fixtures.pass" }
    p:stage "right" { module = "spec.fixtures.pass" }
    p:stage "join" { exec = { "sh", "-c", script, "sh", HELLO, READY, lie } }
    for _, name in ipairs { "left", "right" } do
      p:connect("source", name, { window = 2 })
      p:edge(name .. " -> join." .. name, { window = 2 })
    end
  end, fn)
end

describe("a program that is asked what it waits for", function()
  for waits, why in pairs {
    ['{"on":"credit","edge":99}'] = "there is no edge 99",
    ['{"on":"credit"}'] = 'each of waits needs "edge", a number',
    ["7"] = 'each of waits needs "edge", a number',
    ['{"on":"tea","edge":1}'] = 'a wait is on "input" or "credit"',
  } do
    it("and answers " .. waits .. " fails alone", function()
      with_liar(waits, function(app)
        local err, code = failure_of(app:submit { data = "flood", deadline = 10 })
        assert.equal("EWORKER", code)
        assert.truthy(err:find('stage "join" was killed after EPROTOCOL: not a control message (' .. why, 1, true), err)
      end)
    end)
  end
end)

describe("a Python stage in a graph", function()
  -- source feeds two branches; the join reads them one after the other.
  local function diamond(join)
    local p = omni.pipeline "diamond"
    p:stage "source" { module = "spec.fixtures.flood" }
    p:stage "left" (python())
    p:stage "right" (python())
    p:stage "join" (join)
    p:connect("source", "left", { window = 2 })
    p:connect("source", "right", { window = 2 })
    p:edge("left -> join.left", { window = 2 })
    p:edge("right -> join.right", { window = 2 })
    return assert(p:start())
  end

  it("does not hang a join that reads one branch to its end first", function()
    local app = diamond { module = "spec.fixtures.one_by_one" }
    local all = data_of(app:submit { data = "flood", deadline = 20 })
    app:stop()
    assert.equal(2000, #all)
    assert.equal(1000, all[1000])
    assert.equal(1, all[1001])
  end)

  it("that is such a join itself fails with the reason", function()
    local app = diamond(python { order = { "left", "right" } })
    local err, code = failure_of(app:submit { data = "flood", deadline = 20 })
    app:stop()
    assert.equal("EDEADLOCK", code)
    assert.truthy(err:find("the stages wait for each other: ", 1, true))
    assert.truthy(err:find("join waits for input (left -> join.left)", 1, true))
  end)

  it("has replicas, and writes to those of its reader", function()
    local many = python()
    many.replicas = 2
    local p = omni.pipeline "replicas"
    p:stage "a" { module = "spec.fixtures.words" }
    p:stage "py" (many)
    p:stage "b" { module = "spec.fixtures.pass", replicas = 3 }
    p:connect("a", "py"):connect("py", "b")
    local app = assert(p:start())
    local requests = {}
    for i = 1, 12 do requests[i] = app:submit { data = ("x y %d"):format(i), deadline = 20 } end
    for i = 1, 12 do assert.same({ "x", "y", tostring(i) }, data_of(requests[i])) end
    app:stop()
  end)

  it("reads and writes named ports", function()
    local p = omni.pipeline "ports"
    p:stage "a" { module = "spec.fixtures.words" }
    p:stage "py" (python { order = { "left" }, port = "out" })
    p:stage "b" { module = "spec.fixtures.pass" }
    p:edge "a -> py.left"
    p:edge "py.out -> b"
    local app = assert(p:start())
    assert.same({ "x", "y" }, data_of(app:submit { data = "x y" }))
    app:stop()
  end)
end)

describe("a program that does not speak the protocol", function()
  local cases = {
    { "no JSON", "no json", says "no json" },
    { "no type", "it has no type", says "{}" },
    { "an unknown message", 'there is no message "redy" (did you mean "ready"?)', says(HELLO, '{"type":"redy"}') },
    { "ready before hello", "hello must come first", says(READY) },
    { "hello twice", "hello was said before", says(HELLO, HELLO) },
    { "ready twice", "ready was said before", says(HELLO, READY, READY) },
    { "a failure without its text", 'failed needs "error", a string',
      says(HELLO, '{"type":"failed","req":"r1","code":"ESTAGE"}') },
    { "a code of another form", "a code is E and capital letters",
      says(HELLO, '{"type":"failed","req":"r1","code":"oops","error":"x"}') },
    { "another protocol", "speaks protocol 99, this host 1", says '{"type":"hello","protocol":99}' },
  }
  for _, case in ipairs(cases) do
    it("fails with the reason: " .. case[1], function()
      local app, err = support.line({ { "odd", case[3] } }):start()
      if app then
        err = failure_of(app:submit { data = 1 })
        app:stop()
      end
      assert.truthy(err:find(case[2], 1, true), err)
      assert.truthy(err:find('stage "odd"', 1, true), err)
    end)
  end

  it("fails when it ends at once", function()
    local app, err = support.line({ { "odd", { exec = { "sh", "-c", "echo sorry >&2; exit 4" } } } }):start()
    assert.is_nil(app)
    assert.truthy(err:find('stage "odd" exited with code 4; stderr: sorry', 1, true))
  end)
end)

describe("the declaration of a program", function()
  local function problem(definition)
    local _, problems = support.line({ { "x", definition } }):topology()
    return table.concat(problems, "\n")
  end

  it("is refused when it cannot run", function()
    assert.truthy(problem({ exec = { "no-such-program" } }):find('program "no-such-program" is not found', 1, true))
    assert.truthy(problem({ exec = {} }):find("exec must name a program", 1, true))
    assert.truthy(problem({ exec = { "cat" }, module = "spec.fixtures.pass" }):find("both module and exec", 1, true))
    assert.equal("", problem { exec = { "cat" } })
  end)
end)
