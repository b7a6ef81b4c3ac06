-- What the command line does when its input or its outputs are not as they should be.
local json = require "omni.json"
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
