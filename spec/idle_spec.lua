local omni = require "omni"
local run = require "spec.support.run"
local uv = require "luv"

local SECONDS = 5

-- Starts the idle host; gives its processes and what ends it.
local function start_idle()
  local input, output, errors = uv.new_pipe(), uv.new_pipe(), ""
  local host = { text = "" }
  local complaints = uv.new_pipe()
  host.handle = assert(uv.spawn(run.omnihost, {
    args = { "spec/fixtures/idle.lua" }, stdio = { input, output, complaints },
  }, function(code) host.code = code end))
  output:read_start(function(_, text) host.text = host.text .. (text or "") end)
  complaints:read_start(function(_, text) errors = errors .. (text or "") end)
  local deadline = omni.now() + 20
  while not host.text:find "ready .-\n" and not host.code and omni.now() < deadline do omni.sleep(0.01) end
  function host.stop()
    input:close()
    while not host.code and omni.now() < deadline + 20 do omni.sleep(0.01) end
    for _, handle in ipairs { output, complaints, host.handle } do handle:close() end
    assert.equal("", errors)
    assert.equal(0, host.code)
  end
  return host, { host.text:match "ready (%d+) (%d+) (%d+)" }
end

-- How often the threads of the processes have gone to sleep: strace disturbs them, this does not.
local function sleeps(pids)
  local count = 0
  for _, pid in ipairs(pids) do
    local tasks = ("/proc/%d/task/"):format(pid)
    local scan = assert(uv.fs_scandir(tasks))
    for tid in function() return uv.fs_scandir_next(scan) end do
      local file = assert(io.open(tasks .. tid .. "/status"))
      count = count + tonumber(file:read("*a"):match "\nvoluntary_ctxt_switches:%s*(%d+)")
      file:close()
    end
  end
  return count
end

describe("an idle host", function()
  it("and its workers make no system call, with requests registered", function()
    local host, pids = start_idle()
    assert.equal(3, #pids, host.text)
    omni.sleep(0.5) -- the last timers of the start
    local before = sleeps(pids)
    omni.sleep(1)
    assert.equal(before, sleeps(pids))
    local traced = run.run { "timeout", "-s", "INT", tostring(SECONDS), "strace", "-f", "-qq",
      "-p", pids[1], "-p", pids[2], "-p", pids[3] }
    host.stop()
    -- An attached thread shows the call in which it sleeps; what is resumed or begun later would follow.
    local calls = {}
    for line in traced.stderr:gmatch "[^\n]+" do
      if not line:find "<unfinished %.%.%.>$" and not line:find "<detached %.%.%.>$" then calls[#calls + 1] = line end
    end
    assert.same({}, calls)
  end)
end)
