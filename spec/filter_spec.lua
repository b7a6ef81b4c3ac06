local support = require "spec.support.pipeline"
local uv = require "luv"

local await_end = support.await_end
local data_of = support.data_of
local failure_of = support.failure_of
local filter = support.filter
local gate_stage = support.gate_stage
local next_data = support.next_data
local with_app = support.with_app
local with_fifo = support.with_fifo

describe("a filter", function()
  it("runs a program for each chunk", function()
    with_app({ { "split", "words" }, { "rev", filter { command = { "rev" } } } }, function(app)
      assert.same({ "cba", "fed" }, data_of(app:submit { data = "abc def" }))
    end)
  end)

  it("cuts the output into pieces where that is asked for", function()
    with_app({ { "cat", filter { command = { "cat" }, chunk_bytes = 4 } } }, function(app)
      assert.same({ "0123", "4567", "89" }, data_of(app:submit { data = "0123456789" }))
    end)
  end)

  it("runs one program for a whole request and sends on what it writes while it reads", function()
    with_fifo(function(fifo, open)
      local gate = gate_stage(fifo)
      local upper = filter { command = { "sed", "-u", "s/.*/<&>/" }, per = "request" }
      local lines = filter { command = { "sh", "-c", "cat; echo" } }
      with_app({ { "split", "words" }, { "gate", gate }, { "nl", lines }, { "tag", upper } }, function(app)
        local request = app:submit { data = "a\ngate\nb" }
        assert.equal("<a", (next_data(request)):sub(1, 2))
        open()
        assert.truthy(table.concat(data_of(request)):find "b>")
      end)
    end)
  end)

  it("moves megabytes both ways at once", function()
    with_app({ { "cat", filter { command = { "cat" }, per = "request" } } }, function(app)
      local bytes = ("0123456789abcdef"):rep(2 ^ 18)
      assert.equal(bytes, table.concat(data_of(app:submit { data = bytes })))
    end)
  end)

  it("may stop reading before its input ends", function()
    with_app({ { "flood", "flood" }, { "head", filter { command = { "head", "-c", "1" }, per = "request" } } },
      function(app)
        assert.same({ "1" }, data_of(app:submit { data = "flood" }))
      end)
  end)

  it("fails the request with the end of its stderr when it fails", function()
    local bad = { "sh", "-c", "cat >/dev/null; echo no paper >&2; exit 7" }
    for _, per in ipairs { "chunk", "request" } do
      with_app({ { "print", filter { command = bad, per = per } } }, function(app)
        local err, code = failure_of(app:submit { data = "x" })
        assert.equal("ESTAGE", code)
        assert.truthy(err:find('stage "print" failed: program "sh" exited with code 7; stderr: no paper', 1, true))
      end)
    end
  end)

  it("kills the program and its children when the request ends", function()
    local dir = assert(uv.fs_mkdtemp "/tmp/omnihost-spec-XXXXXX")
    local command = ("sleep 300 & echo $! >%s/pid; echo started; wait"):format(dir)
    with_app({ { "sleep", filter { command = { "sh", "-c", command }, per = "request" } } }, function(app)
      local request = app:submit { data = "" }
      assert.equal("started\n", next_data(request))
      assert.equal("aborted", request:abort().outcome)
      local file = assert(io.open(dir .. "/pid"))
      local pid = file:read "*n"
      file:close()
      assert.is_true(await_end(pid))
    end)
    os.execute("rm -rf " .. dir)
  end)

  it("refuses chunks that are no bytes", function()
    with_app({ { "cat", filter { command = { "cat" } } } }, function(app)
      local err = failure_of(app:submit { data = { 1 } })
      assert.truthy(err:find("a filter reads bytes, but a chunk is a table", 1, true))
    end)
  end)
end)
