local omni = require "omni"
local owner = require "omni.native.owner"
local run = require "spec.support.run"
local uv = require "luv"

-- Everything in a folder of its own on /dev/shm, so that nobody else's namespaces are seen.
describe("omnihost shm", function()
  local dir
  before_each(function() dir = assert(uv.fs_mkdtemp "/dev/shm/cli-shm-XXXXXX") end)
  after_each(function() os.execute("rm -rf " .. dir) end)

  local function shm(action, ...) return run.host("shm", action, "--shm-dir", dir, ...) end

  it("lists namespaces, whose they are and what they hold", function()
    local connector = assert(omni.shm.open { namespace = "mine", shm_dir = dir })
    connector:put("a", "1")
    connector:put("b", ("x"):rep(10000))
    local ns, fd = owner.create(dir)
    local out = shm("ls").stdout
    assert.matches("\nmine +a script +2 +16 KiB +%d%d%d%d%-%d%d%-%d%d", out)
    assert.matches("\n" .. ns .. " +alive +0 +0 B +%-", out)
    uv.fs_close(fd)
    assert.matches("\n" .. ns .. " +dead ", shm("ls").stdout)
    connector:close()
  end)

  it("removes dead pipelines' namespaces, and no others", function()
    local connector = assert(omni.shm.open { namespace = "mine", shm_dir = dir })
    connector:put("a", "1")
    local living, fd = owner.create(dir)
    local dead, gone = owner.create(dir)
    uv.fs_close(gone)
    assert.equal("1 namespaces of dead pipelines removed, 0 segments\n", shm("gc").stdout)
    local out = shm("ls").stdout
    assert.is_nil(out:find(dead, 1, true))
    assert.is_truthy(out:find(living, 1, true))
    assert.equal("1", connector:get "a")
    uv.fs_close(fd)
    connector:close()
  end)

  it("removes a script's namespace when it is named, leaving what is in use", function()
    local connector = assert(omni.shm.open { namespace = "mine", shm_dir = dir })
    for i = 1, 20 do connector:put("k" .. i, "v") end
    local other = assert(omni.shm.open { namespace = "min", shm_dir = dir })
    other:put("k", "v")
    assert.equal("mine: 20 segments removed\n", shm("gc", "mine").stdout)
    assert.is_nil((connector:get "k1"))
    assert.equal("v", other:get "k")
    assert.equal(0, connector:stats().live_segments)
    connector:close()
    other:close()
  end)

  it("refuses what runs, what is not there and wrong words, with a hint", function()
    local ns, fd = owner.create(dir)
    local p = shm("gc", ns)
    assert.equal(1, p.code)
    assert.matches("belongs to a pipeline that runs", p.stderr)
    uv.fs_close(fd)
    p = shm("gc", "nothing")
    assert.equal(1, p.code)
    assert.matches("nothing of namespace nothing is there", p.stderr)
    assert.equal(2, run.host("shm").code)
    p = run.host("shm", "lss")
    assert.equal(2, p.code)
    assert.matches('did you mean "ls"', p.stderr)
    assert.matches('did you mean "%-%-shm%-dir"', run.host("shm", "ls", "--shmdir", dir).stderr)
    assert.matches("omnihost shm ls", run.host("shm", "-h").stdout)
  end)
end)
