local omni = require "omni"
local run = require "spec.support.run"
local sys = require "omni.testing.sys"
local uv = require "luv"

local function lines(text)
  local out = {}
  for line in text:gmatch "[^\n]+" do out[#out + 1] = line end
  return out
end

-- A folder of its own with these files; removed after the spec.
local function with_files(files, fn)
  local dir = assert(uv.fs_mkdtemp("/tmp/omnihost-spec-XXXXXX"))
  for name, text in pairs(files) do
    local folder = name:match "^(.*)/"
    if folder then uv.fs_mkdir(dir .. "/" .. folder, 448) end
    local file = assert(io.open(dir .. "/" .. name, "we"))
    file:write(text)
    file:close()
  end
  local ok, err = pcall(fn, dir)
  os.execute("rm -rf " .. dir)
  if not ok then error(err, 0) end
end

describe("omnihost", function()
  it("runs a script with arg as in lua, from a file, stdin and -e", function()
    with_files({ ["s.lua"] = "print(arg[0], #arg, arg[1], ...)" }, function(dir)
      local path = dir .. "/s.lua"
      assert.equal(path .. "\t2\ta\ta\tb\n", run.host(path, "a", "b").stdout)
      assert.equal("1\tx\n", run.run({ run.omnihost, "-", "x" }, { stdin = "print(#arg, ...)" }).stdout)
      assert.equal("-e\ty\n", run.code("print(arg[0], ...)", "y").stdout)
    end)
  end)

  it("finds modules beside the script, then in its lua folder, then on LUA_PATH, in threads too", function()
    with_files({
      ["s.lua"] = [[
        print(require "beside", require "inlua", require "onpath")
        print(require("omni").thread(function() return require "beside", require "inlua", require "onpath" end):join())
      ]],
      ["beside.lua"] = "return 'beside'",
      ["lua/beside.lua"] = "return 'wrong'",
      ["lua/inlua.lua"] = "return 'inlua'",
      ["elsewhere/inlua.lua"] = "return 'wrong'",
      ["elsewhere/onpath.lua"] = "return 'onpath'",
    }, function(dir)
      local p = run.run({ run.omnihost, dir .. "/s.lua" }, { env = { LUA_PATH = dir .. "/elsewhere/?.lua;;" } })
      assert.equal(("beside\tinlua\tonpath\n"):rep(2), p.stdout)
    end)
  end)

  it("suspends at top level, and runs its loop until nothing is left", function()
    local p = run.code [[
      local omni, uv = require "omni", require "luv"
      omni.sleep(0.01)
      local timer = uv.new_timer()
      timer:start(20, 0, function() print "timer" timer:close() end)
      omni.spawn(function() omni.sleep(0.04) print "task" end)
      print "end of main"
    ]]
    assert.same({ "end of main", "timer", "task" }, lines(p.stdout))
    assert.equal(0, p.code)
  end)

  it("prints a traceback that starts at the script's frame, and exits 1", function()
    with_files({ ["bad.lua"] = "local function f(x)\n  return x.y.z\nend\nf {}\n" }, function(dir)
      local p = run.host(dir .. "/bad.lua")
      assert.equal(1, p.code)
      local out = lines(p.stderr)
      assert.matches("bad.lua:2: attempt to index field 'y'", out[1])
      assert.equal("stack traceback:", out[2])
      assert.matches("bad.lua:2: in function", out[3])
      assert.is_nil(p.stderr:find("builtin/", 1, true))
    end)
  end)

  it("exits 1 in silence for an error without a value", function()
    local p = run.code "error()"
    assert.same({ 1, "", "" }, { p.code, p.stdout, p.stderr })
  end)

  it("exits 2 for wrong usage, with a hint", function()
    local p = run.host "--plattform"
    assert.equal(2, p.code)
    assert.matches('did you mean "%-%-platform"', p.stderr)
    assert.equal(2, run.host().code)
  end)

  it("says its version and its help", function()
    assert.matches("^omnihost %d+%.%d+%.%d+\n$", run.host("-v").stdout)
    assert.matches("Usage: omnihost", run.host("-h").stdout)
  end)

  it("says what it stands on", function()
    local said = {}
    for name, text in run.host("--platform").stdout:gmatch "(%S+) +([^\n]+)\n" do said[name] = text end
    local system = uv.os_uname()
    assert.equal(run.host("-v").stdout:match "%S+\n$", said.omnihost .. "\n")
    assert.matches(jit.version, said.luajit, 1, true)
    assert.equal(require("ffi").abi "gc64", said.luajit:find("GC64", 1, true) ~= nil)
    assert.matches(jit.status() and "^on %(" or "^off %(", said.jit)
    assert.equal(uv.version_string(), said.libuv)
    assert.matches("^%d+%.%d+", said.luv)
    assert.matches("^%d+%.%d+", said.cjson)
    assert.equal(("%s %s %s"):format(system.sysname, system.release, system.machine), said.system)
    assert.matches(("^%d x %%S"):format(#uv.cpu_info()), said.cpu)
    local free, all = said.shm:match "^/dev/shm, (%d+) MiB free of (%d+) MiB$"
    assert.is_true(tonumber(free) <= tonumber(all) and tonumber(all) > 0)
  end)

  it("ends in order with the code of os.exit, also where it cannot suspend", function()
    assert.equal(7, run.code("os.exit(7)").code)
    assert.equal(0, run.code("os.exit(true)").code)
    assert.equal(1, run.code("os.exit(false)").code)
    assert.equal(3, run.code("pcall(table.sort, { 3, 2, 1 }, function() os.exit(3) end)").code)
    local p = run.code [[
      local uv = require "luv"
      uv.new_timer():start(0, 0, function() os.exit(4) end)
      require("omni").sleep(100)
    ]]
    assert.same({ 4, "" }, { p.code, p.stderr })
  end)

  it("fails the run in order for an error in a luv callback", function()
    local p = run.code [[
      local uv = require "luv"
      uv.new_timer():start(0, 0, function() error "in a callback" end)
      require("omni").sleep(100)
      print "not reached"
    ]]
    assert.equal(1, p.code)
    assert.equal("", p.stdout)
    assert.matches("in a callback\nstack traceback:\n.*%(command line%):2:", p.stderr)
  end)

  it("fails the run for an error in a spawned coroutine", function()
    local p = run.code [[
      local omni = require "omni"
      omni.spawn(function() omni.sleep(0) error "in a task" end)
      omni.sleep(100)
    ]]
    assert.equal(1, p.code)
    assert.matches("in a task\nstack traceback:", p.stderr)
  end)

  it("names each place where a coroutine waits for ever, and exits 1", function()
    local p = run.code(table.concat({
      "local omni = require 'omni'",
      "local s, t = omni.sink.new(), omni.sink.new()",
      "omni.spawn(function()",
      "  s:get_batch()",
      "end)",
      "coroutine.wrap(function()",
      "  t:get_batch()",
      "end)()",
    }, "\n"))
    assert.equal(1, p.code)
    assert.matches("%(command line%):4: waits in sink:get_batch", p.stderr)
    assert.matches("%(command line%):7: waits in sink:get_batch", p.stderr)
  end)

  it("names waits on a router that nobody else holds, however many they are", function()
    local p = run.code(table.concat({
      "local omni = require 'omni'",
      "local r = omni.router.new()",
      "for i = 1, 2 do omni.spawn(function()",
      "  r:register(i):wait()",
      "end) end",
      "r:call('k', print)",
    }, "\n"))
    assert.equal(1, p.code)
    assert.matches("%(command line%):4: waits in router:call.*%(command line%):4: waits in router:call", p.stderr)
    assert.matches("%(command line%):6: waits in router:call", p.stderr)
  end)

  it("tells who joins a thread that no state could be opened for it", function()
    if not sys.enabled then return pending "a test build is needed" end
    local rule = sys.rule { op = "EVENTFD", errno = "EMFILE" }
    local thread = omni.thread(function() return 42 end)
    local value, err, code = thread:join(10)
    rule:remove()
    assert.is_nil(value)
    assert.equal("ERUN", code)
    assert.matches("no state can be opened", err)
  end)

  it("ends with 130 and 143 on the first SIGINT and SIGTERM of a plain script, nothing left", function()
    for signal, code in pairs { sigint = 130, sigterm = 143 } do
      local p = run.start { run.omnihost, "-e", "print 'up' io.stdout:flush() require('omni').sleep(1000)" }
      while p.stdout == "" do omni.sleep(0.005) end
      p.kill(signal)
      assert.equal(code, p.wait().code)
    end
  end)

  it("hands signals to a handler, in order", function()
    local p = run.start { run.omnihost, "-e", [[
      local omni = require "omni"
      local done = omni.sink.new()
      require("omni.native.host").on_signal(function(name, count) done:put(name .. count) end)
      print "up" io.stdout:flush()
      print(done:get_batch { timeout = 60 }[1])
    ]] }
    while p.stdout == "" do omni.sleep(0.005) end
    p.kill "sigint"
    assert.equal("up\nSIGINT1\n", p.wait().stdout)
    assert.equal(0, p.code)
  end)

  it("gives up on the second SIGINT where compiled Lua does not unwind", function()
    local p = run.start { run.omnihost, "-e", "print 'up' io.stdout:flush() while true do end" }
    while p.stdout == "" do omni.sleep(0.005) end
    p.kill "sigint"
    p.kill "sigint" -- may merge with the first one where it has not been taken yet
    local killer = uv.new_timer()
    killer:start(300, 300, function() p.kill "sigint" end)
    p.wait()
    killer:close()
    assert.is_true(p.code == 130 or p.signal == 2)
  end)

  it("leaves the programs that a script starts their own signals", function()
    local p = run.code [[
      for _, signal in ipairs { "INT", "TERM", "PIPE" } do
        io.write(io.popen("sh -c 'kill -" .. signal .. " $$; echo survived'", "re"):read "*a")
      end
      print "end"
    ]]
    assert.equal("end\n", p.stdout)
  end)

  it("runs with any of its standard streams closed", function()
    for _, closed in ipairs { "0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-" } do
      local p = run.run { "sh", "-c", ("exec %s -e 'os.exit(5)' %s"):format(run.omnihost, closed) }
      assert.same({ 5, 0 }, { p.code, p.signal }, closed)
    end
  end)

  it("hides what would crash or block the host's loop", function()
    for _, name in ipairs { "run", "walk", "loop_close", "new_thread", "new_work", "queue_work", "new_async" } do
      assert.is_nil(uv[name])
    end
  end)

  it("runs specs through busted's own program", function()
    with_files({ ["a_spec.lua"] = "it('waits', function() require('omni').sleep(0.01) end)" }, function(dir)
      local p = run.run { "busted", "--lua=" .. run.omnihost, dir .. "/a_spec.lua" }
      assert.equal(0, p.code)
      assert.matches("1 success", p.stdout)
    end)
  end)
end)

describe("omni.spawn and coroutines", function()
  it("suspends inside of users' coroutines without their seeing it", function()
    local order = {}
    local co = coroutine.wrap(function(a)
      omni.sleep(0.01)
      local b = coroutine.yield(a + 1)
      omni.sleep(0.01)
      return b * 2
    end)
    order[1] = co(1)
    order[2] = co(10)
    assert.same({ 2, 20 }, order)
    local ok, err = coroutine.resume(coroutine.create(function() omni.sleep(0) error "inner" end))
    assert.is_false(ok)
    assert.matches("inner", err)
    assert.has_error(function() coroutine.wrap(function() omni.sleep(0) error("x", 0) end)() end, "x")
  end)

  it("says where suspending is impossible, and names omni.spawn", function()
    local ok, err = pcall(table.sort, { 3, 2, 1 }, function() omni.sleep(0) end)
    assert.is_false(ok)
    assert.matches("^spec/host_spec.lua:%d+: omni.sleep cannot suspend here: .*omni.spawn", err)
    local message
    local timer = uv.new_timer()
    local done = omni.sink.new()
    timer:start(0, 0, function()
      message = select(2, pcall(omni.sleep, 0))
      done:put(true)
    end)
    done:get_batch()
    timer:close()
    done:close()
    assert.matches("luv callback", message)
  end)

  it("survives errors that pass a suspended wait", function()
    assert.is_false(pcall(function()
      table.sort({ 1, 2, 3 }, function() return coroutine.wrap(function() omni.sleep(10) end)() end)
    end))
    local start = omni.now()
    omni.sleep(0.01)
    assert.is_true(omni.now() - start < 5)
  end)

  it("returns from join what the task returned, to everybody who joins", function()
    local task = omni.spawn(function(...) omni.sleep(0.01) return select("#", ...), ... end, 1, nil, 3)
    local others = {}
    for i = 1, 3 do others[i] = omni.spawn(function() return (task:join()) end) end
    assert.same({ 3, 1, nil, 3 }, { task:join() })
    for i = 1, 3 do assert.equal(3, (others[i]:join())) end
    assert.equal("ETIMEDOUT", select(3, omni.spawn(omni.sleep, 0.05):join(0)))
    omni.sleep(0.06)
  end)

  it("interrupts a wait that continues in compiled code", function()
    local p = run.start { run.omnihost, "-e", [[
      local host, omni = require "omni.native.host", require "omni"
      local s = omni.sink.new()
      omni.spawn(function()
        for i = 1, 20000 do s:put(i) omni.sleep(0) end
        assert(host.raise_main "interrupted")
      end)
      local n = 0
      local _, err = pcall(function() while true do n = n + #s:get_batch() end end)
      print(n, err)
    ]] }
    assert.equal("20000\tinterrupted\n", p.wait(30).stdout)
  end)

  it("never wakes a sleeper early", function()
    for i = 1, 200 do
      local start = omni.now()
      omni.sleep(i / 100000)
      assert.is_true(omni.now() - start >= i / 100000)
    end
  end)

  it("keeps 1000 tasks and timers in order", function()
    local ended = {}
    local tasks = {}
    for i = 1, 1000 do
      tasks[i] = omni.spawn(function() omni.sleep((i % 7) / 1000) ended[#ended + 1] = i end)
    end
    for i = 1, 1000 do tasks[i]:join() end
    assert.equal(1000, #ended)
  end)

  it("does not let tasks that never rest starve timers, inbox or sockets", function()
    local stop
    local task = omni.spawn(function() while not stop do omni.sleep(0) end end)
    local fired, put, read
    local timer = uv.new_timer()
    timer:start(1, 0, function() fired = true end)
    local s = omni.sink.new()
    local consumer = omni.spawn(function() put = s:get_batch { timeout = 20 }[1] end)
    local thread = omni.thread(function(sink) sink:put(true) end, s)
    local ends = uv.socketpair()
    local pipe = uv.new_pipe()
    pipe:open(ends[1])
    pipe:read_start(function() read = true end)
    uv.fs_write(ends[2], "x")
    local start = omni.now()
    while not (fired and put and read) and omni.now() - start < 20 do omni.sleep(0) end
    stop = true
    task:join()
    thread:join()
    consumer:join()
    timer:close()
    pipe:close()
    uv.fs_close(ends[2])
    s:close()
    assert.same({ true, true, true }, { fired, put, read })
  end)

  it("refuses wrong arguments at the caller's line", function()
    for _, wrong in ipairs { { omni.sleep, -1 }, { omni.sleep, "x" }, { omni.spawn, 1 }, { omni.thread, 1 } } do
      local ok, err = pcall(function() wrong[1](wrong[2]) end)
      assert.is_false(ok)
      assert.matches("host_spec.lua:%d+: omni%.%l+: ", err)
    end
  end)
end)

describe("omni.thread", function()
  it("runs a function or a module's function, and returns its results", function()
    assert.same({ 3, nil, "x" }, { omni.thread(function(a, b) return a + b, nil, "x" end, 1, 2):join() })
    with_files({ ["job.lua"] = "return function(x) return x * 2 end" }, function(dir)
      local p = run.run({ run.omnihost, "-e", "print(require('omni').thread('job', 21):join())" }, { cwd = dir })
      assert.equal("42\n", p.stdout)
    end)
  end)

  it("refuses a function that captures variables, with their names, and takes captured modules", function()
    local captured, other = 1, {}
    local ok, err = pcall(function()
      return omni.thread(function() return captured, other end)
    end)
    assert.is_false(ok)
    assert.matches("host_spec.lua:%d+: omni.thread: the function captures captured, other", err)
    assert.is_true(omni.thread(function() return omni.now() > 0 end):join())
  end)

  it("passes sinks inside of tables, and the json marks of arrays", function()
    local s = omni.sink.new()
    local thread = omni.thread(function(opts) opts.out.sink:put(opts.list) end, { out = { sink = s }, list = { 1, 2 } })
    assert.same({ { 1, 2 } }, s:get_batch())
    thread:join()
    s:close()
  end)

  it("gives the traceback of a failure to join, and never loses one that nobody joins", function()
    local value, err, code = omni.thread(function() local x = nil; return x.y end):join()
    assert.is_nil(value)
    assert.equal("ERUN", code)
    assert.matches("^ERUN: .*host_spec.lua:%d+: attempt to index.*traceback", err)
    local p = run.code "require('omni').thread(function() error 'lost' end)"
    assert.equal(1, p.code)
    assert.matches("nobody joined it: .*lost", p.stderr)
  end)

  it("waits at the end for threads, and stops them when the run fails", function()
    local p = run.code [[
      local omni = require "omni"
      omni.thread(function() require("omni").sleep(0.05) print "thread" end)
    ]]
    assert.equal("thread\n", p.stdout)
    p = run.code [[
      local omni = require "omni"
      omni.thread(function() require("omni").sleep(1000) end)
      error "fails"
    ]]
    assert.equal(1, p.code)
    p = run.code "require('omni').thread(function() while true do end end) os.exit(3)"
    assert.equal(3, p.code)
    assert.matches("does not stop", p.stderr)
  end)

  it("opens and closes 50 states in a row and 8 at once", function()
    for _ = 1, 50 do assert.equal(1, (omni.thread(function() return 1 end):join())) end
    local threads = {}
    for i = 1, 8 do threads[i] = omni.thread(function(n) require("omni").sleep(0.01) return n end, i) end
    for i = 1, 8 do assert.equal(i, (threads[i]:join())) end
  end)

  it("ends at once when it is asked to stop, whatever it waits for", function()
    local thread = omni.thread(function() require("omni").sleep(1000) end)
    thread:stop()
    local start = omni.now()
    thread:join(60)
    assert.is_true(omni.now() - start < 30)
  end)
end)
