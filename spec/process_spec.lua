local support = require "spec.support.pipeline"
local uv = require "luv"

local data_of, filter, with_app = support.data_of, support.filter, support.with_app

-- What the descriptors of a process lead to.
local function descriptors(pid)
  local found, scan = {}, assert(uv.fs_scandir(("/proc/%s/fd"):format(pid)))
  for fd in function() return uv.fs_scandir_next(scan) end do
    found[tonumber(fd)] = uv.fs_readlink(("/proc/%s/fd/%s"):format(pid, fd))
  end
  return found
end

local function status(pid, field)
  local file = assert(io.open(("/proc/%s/stat"):format(pid), "re"))
  local fields = {}
  for word in file:read("*a"):match "%) (.*)":gmatch "%S+" do fields[#fields + 1] = word end
  file:close()
  return tonumber(fields[({ parent = 2, group = 3, session = 4 })[field]])
end

describe("a stage's process", function()
  it("has nothing of its host but log pipes, control and the owner's lock, and a group of its own", function()
    local open = assert(io.open "/etc/passwd") -- not close-on-exec: a child would inherit it
    with_app({ { "a", "pass" }, { "b", "pass" } }, function(app)
      assert.same({ 1 }, data_of(app:submit { data = 1 }))
      local stats = app:stats()
      for _, pid in pairs(stats.workers) do
        local fds = descriptors(pid)
        assert.equal("/dev/null", fds[0])
        for fd = 1, 3 do assert.matches("^socket:", fds[fd]) end -- libuv's pipes
        assert.equal(("/dev/shm/%s.owner"):format(stats.namespace), fds[4])
        for fd, target in pairs(fds) do
          assert.are_not.equal("/etc/passwd", target)
          assert.is_true(fd <= 4 or not target:find "^socket:", fd .. " " .. target)
        end
        assert.equal(uv.os_getpid(), status(pid, "parent"))
        assert.equal(pid, status(pid, "group"))
      end
    end)
    open:close()
  end)

  it("gives the programs that it starts no descriptor but theirs", function()
    local list = "for fd in $(seq 0 30); do [ ! -e /proc/$$/fd/$fd ] || echo $fd; done"
    with_app({ { "a", filter { command = { "sh", "-c", "cat >/dev/null; " .. list } } } }, function(app)
      assert.equal("0\n1\n2\n", table.concat(data_of(app:submit { data = "x" })))
    end)
    with_app({ { "a", "shell" } }, function(app) -- nor those that a module starts by itself
      assert.equal("0\n1\n2\n", table.concat(data_of(app:submit { data = list })))
    end)
  end)
end)
