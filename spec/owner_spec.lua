local files = require "spec.support.shm_files"
local omni = require "omni"
local owner = require "omni.native.owner"
local process = require "spec.support.process"
local sys = require "omni.testing.sys"
local thread = require "omni.thread"
local uv = require "luv"

local exists, write_file = files.exists, files.write_file

local function entries(dir)
  local names, request = {}, assert(uv.fs_scandir(dir))
  while true do
    local name = uv.fs_scandir_next(request)
    if not name then break end
    names[#names + 1] = name
  end
  table.sort(names)
  return names
end

describe("a host-made namespace", function()
  local dir -- a directory of our own, so that other hosts' namespaces do not count

  before_each(function()
    dir = os.tmpname()
    os.remove(dir)
    assert(uv.fs_mkdir(dir, tonumber("700", 8)))
  end)

  after_each(function()
    sys.reset()
    for _, name in ipairs(entries(dir)) do
      local path = dir .. "/" .. name
      if not os.remove(path) then uv.fs_rmdir(path) end
    end
    assert(uv.fs_rmdir(dir))
  end)

  local function try_open(namespace, lock_dir)
    return require("omni.native.shm").open { namespace = namespace, shm_dir = dir, lock_dir = lock_dir, owned = true }
  end

  local function native_open(namespace, lock_dir)
    return assert(try_open(namespace, lock_dir))
  end

  -- A namespace with values in the shared directory and in a replica's, as a pipeline leaves it when it is killed.
  local function make_populated()
    require "omni.shm"
    local namespace, fd = owner.create(dir)
    local folder = ("%s/%s.d/talker.0"):format(dir, namespace)
    assert.equal("ENOENT", select(3, try_open(namespace, folder))) -- only the host makes it
    assert(uv.fs_mkdir(folder, 448))
    local common, replica = native_open(namespace), native_open(namespace, folder)
    for i = 1, 3 do
      assert(common:put("c" .. i, "x"))
      assert(replica:put("r" .. i, "x"))
    end
    common:close()
    replica:close()
    return namespace, fd
  end

  it("has an owner file, locked, and a directory for lock files, for its user alone", function()
    local namespace, fd = owner.create(dir)
    assert.matches("^o[a-z2-7]+$", namespace)
    assert.equal(9, #namespace)
    assert.is_true(owner.is_owned_name(namespace))
    assert.same({ namespace .. ".d", namespace .. ".owner" }, entries(dir))
    assert.equal(tonumber("100600", 8), uv.fs_lstat(dir .. "/" .. namespace .. ".owner").mode)
    assert.equal(tonumber("40700", 8), uv.fs_lstat(dir .. "/" .. namespace .. ".d").mode)
    assert.is_false(pcall(files.lock_file, dir .. "/nothing"))
    uv.fs_close(fd)
    assert.equal(1, (owner.sweep_dead(dir)))
    assert.same({}, entries(dir))
  end)

  it("fails with the reason where none can be made", function()
    local namespace, message, code = owner.create "/nowhere"
    assert.is_nil(namespace)
    assert.matches("^ENOENT: a namespace cannot be made in /nowhere", message)
    assert.equal("ENOENT", code)
  end)

  it("is left alone while its owner lives, and swept when it is dead", function()
    local namespace, fd = make_populated()
    local before = entries(dir)
    assert.same({ 0, 0 }, { owner.sweep_dead(dir) })
    assert.same(before, entries(dir))
    uv.fs_close(fd)
    assert.same({ 1, 6 }, { owner.sweep_dead(dir) })
    assert.same({}, entries(dir))
    assert.equal(0, owner.sweep(namespace, dir))
  end)

  it("lives as long as any process that inherited the lock", function()
    local _, fd = make_populated()
    local child = process.start({ "cat" }, { stdio = { fd } })
    uv.fs_close(fd)
    assert.equal(0, (owner.sweep_dead(dir)))
    assert.equal(0, (child:finish()))
    assert.same({ 1, 6 }, { owner.sweep_dead(dir) })
  end)

  it("is swept by exact names only", function()
    local namespace, fd = make_populated()
    local value = namespace .. "_" .. ("0"):rep(20)
    local strangers = {
      value .. "0", value .. ".txt", value:sub(1, -2), namespace .. "x_" .. ("0"):rep(20), namespace .. ".ownership",
      "user_" .. ("0"):rep(20), "user_" .. ("0"):rep(20) .. ".lock", value:upper(),
    }
    for _, name in ipairs(strangers) do write_file(dir .. "/" .. name, "") end
    write_file(dir .. "/" .. value, "") -- a segment without a lock file: its reader died in between
    uv.fs_close(fd)
    assert.same({ 1, 7 }, { owner.sweep_dead(dir) })
    table.sort(strangers)
    assert.same(strangers, entries(dir))
    assert.equal(0, owner.sweep("user", dir))
    assert.same(strangers, entries(dir))
  end)

  it("keeps what is no lock file of its own in its directory", function()
    local namespace, fd = make_populated()
    local place = dir .. "/" .. namespace .. ".d"
    write_file(place .. "/notes.txt", "")
    uv.fs_close(fd)
    owner.sweep_dead(dir)
    assert.same({ namespace .. ".d" }, entries(dir))
    assert.same({ "notes.txt" }, entries(place))
    os.remove(place .. "/notes.txt")
  end)

  it("stays, with its owner file, while somebody holds one of its locks", function()
    local namespace, fd = owner.create(dir)
    local c = native_open(namespace)
    c:_put("k", "x")
    local unlock = files.lock_file(c:lock_path "k")
    uv.fs_close(fd)
    assert.equal(0, (owner.sweep_dead(dir)))
    assert.is_true(exists(dir .. "/" .. namespace .. ".owner"))
    assert.is_true(exists(dir .. "/" .. c:shm_name "k"))
    unlock()
    c:close()
    assert.same({ 1, 1 }, { owner.sweep_dead(dir) })
  end)

  it("of another user is not touched", function()
    if uv.getuid() ~= 0 then
      pending "only root can make files of another user"
      return
    end
    local namespace, fd = owner.create(dir)
    uv.fs_close(fd)
    assert(uv.fs_chown(dir .. "/" .. namespace .. ".owner", 65534, 65534))
    assert.equal(0, (owner.sweep_dead(dir)))
    assert.is_true(exists(dir .. "/" .. namespace .. ".owner"))
  end)

  it("leaves no temporary owner file of a dead creator", function()
    write_file(dir .. "/oabcd2345.owner.tmp", "")
    assert.equal(0, (owner.sweep_dead(dir)))
    assert.same({}, entries(dir))
  end)

  it("is removed by its own host, which holds the lock", function()
    local namespace, fd = make_populated()
    assert.equal(6, owner.sweep(namespace, dir))
    assert.same({}, entries(dir))
    uv.fs_close(fd)
  end)

  if not sys.enabled then return end

  local function create_in_thread()
    return thread.start(function(where)
      local namespace, fd = require("omni.native.owner").create(where)
      return namespace, fd
    end, dir)
  end

  it("is not swept between its lock and its name", function()
    local rule = sys.rule { op = "RENAMEAT", match = ".owner", action = "hold" }
    local creating = create_in_thread()
    assert(rule:wait())
    assert.matches("%.owner%.tmp$", entries(dir)[1])
    assert.equal(0, (owner.sweep_dead(dir)))
    assert.equal(1, #entries(dir))
    rule:remove()
    local namespace, fd = creating:join()
    assert.same({ namespace .. ".d", namespace .. ".owner" }, entries(dir))
    uv.fs_close(fd)
    owner.sweep_dead(dir)
  end)

  it("takes another name when a sweep comes before its lock", function()
    local rule = sys.rule { op = "FLOCK", action = "hold" }
    local creating = create_in_thread()
    assert(rule:wait())
    local lost = entries(dir)[1]:match "^[^.]+"
    owner.sweep_dead(dir)
    assert.same({}, entries(dir))
    rule:remove()
    local namespace, fd = creating:join()
    assert.not_equal(lost, namespace)
    assert.same({ namespace .. ".d", namespace .. ".owner" }, entries(dir))
    uv.fs_close(fd)
    owner.sweep_dead(dir)
  end)

  it("is swept by one of two hosts that start at once", function()
    local _, fd = make_populated()
    uv.fs_close(fd)
    local rule = sys.rule { op = "UNLINKAT", action = "hold" }
    local sweeping = thread.start(function(where) return require("omni.native.owner").sweep_dead(where) end, dir)
    assert(rule:wait())
    assert.equal(0, (owner.sweep_dead(dir)))
    rule:remove()
    assert.equal(1, (sweeping:join()))
    assert.same({}, entries(dir))
  end)

  it("leaves nothing where it cannot be made", function()
    for _, op in ipairs { "MKDIRAT", "RENAMEAT" } do
      sys.rule { op = op, errno = "ENOSPC" }
      assert.equal("ENOSPC", select(3, owner.create(dir)))
      assert.same({}, entries(dir))
    end
  end)

  it("is swept, its process groups killed, when its host cannot unwind", function()
    local code = [[
      local owner, uv = require "omni.native.owner", require "luv"
      local dir = ...
      local namespace = owner.create(dir)
      owner.note_namespace(namespace, true, dir)
      local handle, pid = uv.spawn("sleep", { args = { "1000" }, detached = true }, function() end)
      owner.note_group(pid, true)
      io.stdout:write(pid, " ready\n")
      io.stdout:flush()
      while true do end
    ]]
    local host = process.start { uv.exepath(), "-e", code, dir }
    host:expect "ready"
    local pid = tonumber(host.out:match "%d+")
    assert.equal(2, #entries(dir))
    uv.kill(host.pid, "sigint")
    omni.sleep(0.1) -- signals of one kind that come together are one
    uv.kill(host.pid, "sigint")
    assert.equal(130, (host:finish()))
    assert.same({}, entries(dir))
    assert.is_nil(uv.kill(pid, 0))
  end)
end)
