-- What the command line does when its input or its outputs are not as they should be.
local json = require "omni.json"
local omni = require "omni"
local output = require "omni.cli.output"
local run = require "spec.support.run"
local uv = require "luv"

local PIPELINE = "spec/fixtures/cli_pipeline.lua"
local LONG = 16 * 2 ^ 20 + 1

local function with_dir(fn)
  local dir = assert(uv.fs_mkdtemp "/tmp/omnihost-spec-XXXXXX")
  local ok, err = xpcall(fn, debug.traceback, dir)
  os.execute("rm -rf " .. dir)
  assert(ok, err)
end

local function write(path, text)
  local file = assert(io.open(path, "w"))
  file:write(text)
  file:close()
end

local function read(path)
  local file = assert(io.open(path, "rb"))
  local text = file:read "*a"
  file:close()
  return text
end

local function drive(stdin, ...)
  return run.run({ run.omnihost, PIPELINE, ... }, { stdin = stdin })
end

local function records(text)
  local all = {}
  for line in text:gmatch "[^\n]+" do all[#all + 1] = assert(json.decode(line)) end
  return all
end

-- The records of a request, and those of them that are errors.
local function of(process, id)
  local mine, errors = {}, {}
  for _, record in ipairs(records(process.stdout)) do
    if record.id == id then
      mine[#mine + 1] = record
      if record.error then errors[#errors + 1] = record end
    end
  end
  return mine, errors
end

local function tells(process, text)
  assert.truthy(process.stderr:find(text, 1, true), process.stderr)
end

describe("the input", function()
  it("goes on after a line that is too long, which is bad", function()
    with_dir(function(dir)
      local long = '{"data":"' .. ("x"):rep(LONG) .. '"}'
      write(dir .. "/in", table.concat({ '{"id":"a","data":"x"}', long, '{"id":"b","data":"y"}' }, "\n"))
      local p = drive("", "--input", dir .. "/in")
      assert.equal(1, p.code)
      tells(p, dir .. "/in:2: line longer than 16 MiB\n")
      tells(p, "2 requests ok, 0 failed, 1 bad lines")
      assert.equal("Y", of(p, "b")[1].data)
    end)
  end)

  it("that cannot be read is an error", function()
    with_dir(function(dir)
      local p = drive("", "--input", dir)
      assert.equal(1, p.code)
      tells(p, ("cannot read requests: %s: EISDIR"):format(dir))
      p = run.run { "/bin/sh", "-c", ("%s %s < %s"):format(run.omnihost, PIPELINE, dir) }
      assert.equal(1, p.code)
      tells(p, "cannot read requests: stdin: EISDIR")
    end)
  end)
end)

describe("the log of a stage", function()
  it("goes on after a line that is too long, which is cut", function()
    local p = run.code([[
      local p = require("omni").pipeline "chatty"
      p:stage "a" { module = "spec.fixtures.chatty" }
      for chunk in p:start():submit { data = "one" }:chunks() do print(chunk.data) end
    ]])
    assert.equal("one\n", p.stdout)
    tells(p, "after one")
    local cut = p.stderr:match '"(x+)%.%.%. %(cut: a line longer than the limit%)"'
    assert.equal(65536, cut and #cut)
  end)
end)

describe("the folder for files", function()
  it("keeps labels apart from the names of unfinished files", function()
    with_dir(function(dir)
      local out = assert(output.open { output = "/dev/null", out_dir = dir })
      local requests = { x = out:request "x", ["x.part"] = out:request "x.part", [".x.part"] = out:request ".x.part" }
      local function all(fn) for _, id in ipairs { ".x.part", "x.part", "x" } do fn(requests[id], id) end end
      for _ = 1, 2 do all(function(request, id) assert(request:chunk { stage = "s", index = 0, data = id }) end) end
      all(function(request) assert.is_nil(request:close()) end)
      uv.fs_close(out.fd)
      for name, text in pairs { ["x"] = "xx", ["x.part"] = "x.partx.part", ["%2Ex.part"] = ".x.part.x.part" } do
        assert.equal(text, read(dir .. "/" .. name))
      end
    end)
  end)

  it("fails the request whose file cannot get its name", function()
    with_dir(function(dir)
      assert(uv.fs_mkdir(dir .. "/x.txt", tonumber("755", 8)))
      local p = drive('{"id":"x","data":"a"}\n{"id":"y","data":"b"}\n', "--out-dir", dir)
      assert.equal(1, p.code)
      local _, errors = of(p, "x")
      assert.equal(1, #errors)
      assert.equal("EIO", errors[1].code)
      assert.truthy(errors[1].error:find("x.txt: EISDIR", 1, true))
      tells(p, "1 requests ok, 1 failed")
      assert.equal("B", read(dir .. "/y.txt"))
      assert.is_nil(uv.fs_stat(dir .. "/.x.txt.part"))
    end)
  end)

  it("fails the request whose file cannot be made", function()
    with_dir(function(dir)
      assert(uv.fs_mkdir(dir .. "/.x.txt.part", tonumber("755", 8)))
      local p = drive('{"id":"x","data":"a b"}\n{"id":"y","data":"b"}\n', "--out-dir", dir)
      assert.equal(1, p.code)
      local mine, errors = of(p, "x")
      assert.same({ 1, 1 }, { #mine, #errors })
      assert.equal(("EIO: %s/.x.txt.part: Is a directory"):format(dir), errors[1].error)
      tells(p, "1 requests ok, 1 failed")
    end)
  end)
end)

describe("a folder for files that is none", function()
  it("is told before anything starts", function()
    with_dir(function(dir)
      write(dir .. "/file", "")
      local p = drive('{"id":"x","data":"a"}\n', "--out-dir", dir .. "/file")
      assert.equal(1, p.code)
      assert.equal("", p.stdout)
      assert.equal(("omnihost: --out-dir: %s/file is no folder\n"):format(dir), p.stderr)
    end)
  end)
end)

describe("a result", function()
  it("that JSON cannot carry fails its request, once", function()
    local p = drive '{"id":"x","data":"a odd b"}\n{"id":"y","data":"b"}\n'
    assert.equal(1, p.code)
    local mine, errors = of(p, "x")
    assert.equal(1, #errors)
    assert.equal(errors[1], mine[#mine])
    assert.equal("EJSON", errors[1].code)
    assert.truthy(errors[1].error:find("$.data.a", 1, true), errors[1].error)
    tells(p, "1 requests ok, 1 failed")
  end)

  it("that is an error in no known encoding is told all the same", function()
    with_dir(function(dir)
      local out = assert(output.open { output = dir .. "/out" })
      assert(out:error("x", "EIO: \255: no", "EIO"))
      uv.fs_close(out.fd)
      assert.same({ { id = "x", error = "EIO: \\255: no", code = "EIO" } }, records(read(dir .. "/out")))
    end)
  end)

  it("waits for a reader that is slow, where the output does not block", function()
    local fds = assert(uv.pipe({ nonblock = true }, { nonblock = true }))
    local out = assert(output.open {})
    out.fd = fds.write
    local tasks, text = {}, {}
    for id = 1, 3 do
      tasks[id] = omni.spawn(function() return out:line { id = id, data = (tostring(id)):rep(300000) } end)
    end
    while not out.writing do omni.sleep(0.001) end -- more than a pipe holds: it waits now
    while #records(table.concat(text):match "^.*\n" or "") < 3 do
      text[#text + 1] = uv.fs_read(fds.read, 65536, -1) or nil
      omni.sleep(0)
    end
    for id, task in ipairs(tasks) do assert.is_true(task:join(5), id) end
    for _, record in ipairs(records(table.concat(text))) do
      assert.equal((tostring(record.id)):rep(300000), record.data)
    end
    uv.fs_close(fds.read)
    uv.fs_close(fds.write)
  end)
end)
