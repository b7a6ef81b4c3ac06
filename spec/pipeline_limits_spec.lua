local support = require "spec.support.pipeline"
local sys = require "omni.testing.sys"
local tmpfs = require "spec.support.tmpfs"

describe("a pipeline whose chunks find no room", function()
  it("warns at its start, fails the request at both ends with the reason, and goes on", function()
    if not tmpfs.available() then
      pending "this user may not mount"
      return
    end
    local said = tmpfs.code("size=1m", "/dev/shm", [[
      local omni, support = require "omni", require "spec.support.pipeline"
      omni.log.capture()
      local line = { { "a", "sizes" }, { "b", "witness" } }
      support.with_app(line, function(app)
        local request = app:submit { data = "1000 2000000 1000" }
        assert(#support.next_data(request) == 1000)
        local err, code = support.failure_of(request)
        print(code, err)
        assert(#support.data_of(app:submit { data = "10 20" })[2] == 20)
        for _, name in ipairs(support.shared_names(app:stats().namespace)) do assert(not name:find "_%x+$", name) end
      end)
      for _, record in ipairs(omni.log.release()) do
        print(record.level, record.stage or "-", record.msg, tostring(record.ok), record.error or "-")
      end
    ]])
    assert.matches('^%S+\t[^\n]*stage "a" failed: [^\n]*ENOSPC', said) -- the sender's end, as the user sees it
    assert.matches("\nwarn\t%-\tlittle free space in shared memory", said)
    assert.matches('\nerror\tb\tthe input ended\tfalse\t[^\n]*stage "a"[^\n]*ENOSPC', said) -- the receiver's end
    assert.matches("\nerror\tb\tthe input ended\ttrue\t", said)
  end)

  it("for a moment only, loses none of them and nothing of their order", function()
    if not sys.enabled then
      pending "this build has no hooks"
      return
    end
    for skip = 0, 3 do -- the fourth is the terminal chunk
      local rules = ("PWRITEV,,%d,2,fail,ENOSPC,before"):format(skip)
      local full = { module = "spec.fixtures.words", env = { OMNI_SYS_RULES = rules } }
      support.with_app({ { "a", full }, { "b", "pass" } }, function(app)
        assert.same({ "one", "two", "three" }, support.data_of(app:submit { data = "one two three" }))
      end)
    end
  end)
end)
