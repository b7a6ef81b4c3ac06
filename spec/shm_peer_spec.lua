local files = require "spec.support.shm_files"
local omni = require "omni"
local process = require "spec.support.process"
local run = require "spec.support.run"
local sys = require "omni.testing.sys"
local tmpfs = require "spec.support.tmpfs"

-- Both sides of the protocol die at each of their steps, and the other side, which follows the same words in another
-- language, goes on.
describe("the shared-memory connector and a Python program", function()
  local c, namespace, peer

  -- The next line that the peer says after it was asked.
  local function ask(...)
    peer.out = ""
    peer:feed(("%s\n"):format(table.concat({ ... }, " ")))
    peer:expect "\n"
    return peer.out:match "^(.-)\n$"
  end

  -- Nothing of the key is left in anybody's way: values go over it in both directions, once each.
  local function works(key)
    assert.equal("done", ask("put", key, "theirs"))
    assert.equal("theirs", c:get(key))
    assert.is_true(c:put(key, "ours"))
    assert.equal('"ours"', ask("get", key))
    assert.is_nil(c:get(key))
    assert.equal("None", ask("get", key))
    assert.is_false(files.exists("/dev/shm/" .. c:shm_name(key)))
  end

  before_each(function()
    namespace = files.namespace()
    c = assert(omni.shm.open { namespace = namespace })
    peer = process.start { "python3", "spec/peers/shm_peer.py", namespace, "/dev/shm", "serve", "-" }
  end)

  after_each(function()
    assert.equal(0, (peer:finish()))
    local left = c:cleanup_prefix ""
    c:close()
    assert.equal(0, left)
  end)

  -- ---- the peer dies ----

  it("goes on after that was killed before any line of its put", function()
    local steps, seen = 0, { nothing = 0, torn = 0, whole = 0 }
    while ask("die put k", steps + 1) == "died" do
      steps = steps + 1
      local value, _, code = c:get "k"
      if value == "dying" then seen.whole = seen.whole + 1
      elseif code == "ECORRUPT" then seen.torn = seen.torn + 1
      else
        seen.nothing = seen.nothing + 1
        assert.is_nil(value)
        assert.is_nil(code)
      end
      works "k"
    end
    assert.equal("dying", c:get "k")
    assert.is_true(steps > 10 and seen.nothing > 0 and seen.torn > 0 and seen.whole > 0)
  end)

  it("loses nothing but what that had taken when it was killed before any line of its get", function()
    local steps, kept = 0, 0
    while true do
      assert.is_true(c:put("k", "v"))
      if ask("die get k", steps + 1) ~= "died" then break end
      steps = steps + 1
      local value, _, code = c:get "k"
      assert.is_true(value == "v" or value == nil and code == nil)
      if value then kept = kept + 1 end
      works "k"
    end
    assert.is_nil(c:get "k")
    assert.is_true(steps > 8 and kept > 5)
  end)

  -- ---- we die ----

  if sys.enabled then
    -- Kills a host of ours at each call of each kind that an operation makes, and looks what the peer makes of it.
    local function killed_at_each_step(code, prepare, look)
      local deaths = 0
      for _, op in ipairs { "OPENAT", "FLOCK", "FSTATAT", "PWRITEV", "PREADV", "UNLINKAT", "CLOSE" } do
        for step = 0, 100 do
          prepare()
          local when = step % 2 == 0 and "before" or "after"
          local rules = ("%s,%s,%d,1,kill,EIO,%s"):format(op, "", math.floor(step / 2), when)
          local p = run.run({ run.omnihost, "-e", code, namespace }, { env = { OMNI_SYS_RULES = rules } })
          look()
          works "k"
          if p.code == 0 and p.signal == 0 then break end
          assert.equal(9, p.signal, p.stderr)
          deaths = deaths + 1
        end
      end
      return deaths
    end

    it("is no obstacle to that when we are killed at any step of a put", function()
      local seen = {}
      local deaths = killed_at_each_step([[
        local c = require("omni.shm").open { namespace = arg[1] }
        c:put("k", "v")
      ]], function() end, function()
        local answer = ask("get", "k")
        assert.is_true(answer == "None" or answer == '"v"', answer)
        seen[answer] = true
      end)
      assert.is_true(deaths > 10 and seen.None and seen['"v"'])
    end)

    it("is no obstacle to that when we are killed at any step of a get", function()
      local seen = {}
      local deaths = killed_at_each_step([[
        local c = require("omni.shm").open { namespace = arg[1] }
        c:get "k"
      ]], function() assert.equal("done", ask("put", "k", "v")) end, function()
        local answer = ask("get", "k")
        assert.is_true(answer == "None" or answer == '"v"', answer)
        seen[answer] = true
      end)
      assert.is_true(deaths > 10 and seen.None and seen['"v"'])
    end)
  end

  -- ---- many and much ----

  it("takes what that left in a directory too small for it for torn, and goes on", function()
    if not tmpfs.available() then
      pending "this user may not mount"
      return
    end
    tmpfs.code("size=64k", "/dev/shm", [[
      local omni, process = require "omni", require "spec.support.process"
      local c = assert(omni.shm.open { namespace = "small" })
      local function peer(verb, value)
        return process.run({ "python3", "spec/peers/shm_peer.py", "small", "/dev/shm", verb, "k" }, value)
      end
      local code, _, _, signal = peer("put", ("x"):rep(1e6)) -- it maps: no room is a signal there
      assert(code ~= 0 or signal ~= 0)
      local value, _, why = c:get "k"
      assert(value == nil and (why == nil or why == "ECORRUPT"), why)
      assert(c:put("k", "small"))
      assert(select(2, peer "get") == "small")
      assert(c:cleanup_prefix "" == 0)
      c:close()
    ]])
  end)

  it("shares many unread keys with that", function()
    local writer = process.start { "python3", "spec/peers/shm_peer.py", namespace, "/dev/shm", "stream", "1000" }
    for i = 1, 1000 do assert(c:put("ours_" .. i, "value " .. i)) end
    assert.equal(0, (writer:finish()))
    for i = 0, 999 do assert.equal("value " .. i, c:get("s_" .. i)) end
    assert.equal(1000, c:cleanup_prefix "ours_")
  end)
end)
