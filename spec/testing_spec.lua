local run = require "spec.support.run"
local uv = require "luv"

-- What `omnihost test` says of a spec file with this text.
local function verdict(text)
  local dir = assert(uv.fs_mkdtemp "/tmp/omnihost-spec-XXXXXX")
  local path = dir .. "/some_spec.lua"
  local file = assert(io.open(path, "we"))
  file:write('local omni, uv = require "omni", require "luv"\n' .. text)
  file:close()
  local p = run.host("test", path)
  os.execute("rm -rf " .. dir)
  return p.code, p.stdout .. p.stderr
end

describe("what a spec leaves behind", function()
  it("fails it, and is told", function()
    local code, said = verdict [[
      it("leaves everything", function()
        leaked = assert(uv.fs_open("/etc/passwd", "r", 0))
        uv.new_timer():start(1e6, 0, function() end)
        omni.spawn(function() omni.sleep(1000) end)
        omni.thread(function() require("omni").sleep(1000) end)
        uv.spawn("sleep", { args = { "4" } }, function() end)
        local c = omni.shm.open { namespace = "leftover" }
        c:put("k", "v")
        c:close()
      end)
    ]]
    os.execute "rm -f /dev/shm/leftover_*"
    assert.is_true(code > 0)
    for _, what in ipairs {
      "left behind:", "descriptor %d+ %-> /etc/passwd", "%d more handles in this state", "1 more tasks in this state",
      "thread %d+ %(", "process %d+: sleep 4", "/dev/shm/leftover_%x+\n", "/dev/shm/leftover_%x+%.lock",
    } do
      assert.matches(what, said)
    end
  end)

  it("is nothing where all is gone in the end", function()
    local code, said = verdict [[
      it("tidies up", function()
        local c = omni.shm.open { namespace = "tidy" }
        c:put("k", "v")
        assert(c:cleanup_prefix "" == 1)
        c:close()
        local timer = uv.new_timer()
        timer:start(1, 0, function() timer:close() end) -- a moment after the spec
        omni.thread(function() require("omni").sleep(0.01) end)
        omni.spawn(function() omni.sleep(0.01) end)
      end)
    ]]
    assert.equal(0, code, said)
  end)
end)

describe("an error outside of a spec's own calls", function()
  it("fails the spec that runs, from a callback as from a task", function()
    local code, said = verdict [[
      it("one", function() uv.new_timer():start(0, 0, function() error "of the callback" end) omni.sleep(10) end)
      it("two", function() omni.spawn(function() omni.sleep(0) error "of the task" end) omni.sleep(10) end)
      it("three", function() end)
    ]]
    assert.is_true(code > 0)
    assert.matches("1 success", said)
    assert.matches("of the callback", said)
    assert.matches("of the task", said)
  end)
end)

describe("omni.testing", function()
  it("does the same for users' own programs", function()
    local p = run.code [[
      local omni, testing = require "omni", require "omni.testing"
      local before = testing.snapshot()
      assert(#testing.leaks(before) == 0)
      local task = omni.spawn(function() omni.sleep(1) end)
      print(table.concat(testing.leaks(before), ";"))
      task:join()
      testing.check(before)
      print "nothing left"
    ]]
    assert.matches("1 more tasks in this state\nnothing left\n", p.stdout)
    assert.equal(0, p.code, p.stderr)
  end)
end)
