-- What users get wrong, or programs do, ends what it concerns and nothing else.
local errors = require "omni.errors"
local json = require "omni.json"
local program = require "omni.program"
local run = require "spec.support.run"
local support = require "spec.support.pipeline"
local uv = require "luv"

local data_of = support.data_of
local failure_of = support.failure_of
local line = support.line
local with_app = support.with_app

local EURO = "\226\130\172"

describe("an error's text", function()
  it("is UTF-8, whatever was raised", function()
    assert.equal("caf\\xE9 " .. EURO, (errors.text_of("caf\233 " .. EURO)))
    assert.equal("\\xE2\\x82x\\xED\\xA0\\x80", (errors.text_of "\226\130x\237\160\128"))
    assert.equal("told", (errors.text_of { message = "told" }))
    assert.equal("nil", (errors.text_of(nil)))
    assert.same({ "EFULL: no room", "EFULL" }, { errors.text_of "EFULL: no room" })
    local faulty = setmetatable({}, { __index = error, __tostring = error })
    assert.equal("something that has no text (a table)", (errors.text_of(faulty)))
  end)

  it("is cut between characters", function()
    for pad = 0, 3 do
      for _, char in ipairs { EURO, "\233" } do
        local text = errors.text_of(("x"):rep(pad) .. char:rep(2 ^ 20))
        assert.is_true(#text <= 64 * 1024 + 20)
        assert.truthy(json.encode(text))
        assert.truthy(text:find(" ... (cut)", 1, true))
      end
    end
  end)
end)

describe("a stage that raises what cannot be told as it is", function()
  local told = {
    bytes = "caf\\xE9 " .. EURO, faulty = "something that has no text (a table)",
    number = "something that has no text (a table)", long = " ... (cut)", ["nil"] = "nil", memory = "",
  }

  it("fails its request and no other", function()
    with_app({ { "a", "raises" }, { "b", "pass" } }, function(app)
      local pid = app:stats().workers.a
      for what, text in pairs(told) do
        local other = app:submit { data = "fine" }
        local err, code = failure_of(app:submit { data = what, deadline = 10 })
        assert.equal("ESTAGE", code, err)
        assert.truthy(err:find(text, 1, true), err:sub(1, 200))
        assert.same({ "fine" }, data_of(other))
      end
      assert.equal(pid, app:stats().workers.a)
    end)
  end)

  it("answers the question", function()
    with_app({ { "a", "raises" } }, function(app)
      for what, text in pairs(told) do
        local _, err, code = app:rpc("a", "ask", what)
        assert.equal("ESTAGE", code, err)
        assert.truthy(err:find(text, 1, true), err:sub(1, 200))
      end
      assert.equal("fine", app:rpc("a", "ask"))
    end)
  end)

  it("tells why it did not start", function()
    for what, text in pairs(told) do
      local app, err, code = line({ { "a", { module = "spec.fixtures.raises", config = { open = what } } } }):start()
      assert.is_nil(app)
      assert.equal("ESTAGE", code, err)
      assert.truthy(err:find(text, 1, true), err:sub(1, 200))
    end
  end)

  it("may die with any bytes on stderr: the other stages are told in text", function()
    local dying = support.filter { command = { "sh", "-c", "cat >&2" } }
    local own = support.inline [[
      for _ in input do
        emit "held"
        io.stderr:write "caf\233\n"
        os.exit(3)
      end]]
    with_app({ { "own", own }, { "b", dying } }, function(app)
      local err, code = failure_of(app:submit { data = "x" })
      assert.equal("EWORKER", code)
      assert.truthy(err:find("caf\\xE9", 1, true), err)
      assert.truthy(app:rpc("b", "stats"))
    end)
  end)
end)

describe("a request that cannot be", function()
  it("is misuse, told at the caller's line", function()
    with_app({ { "a", "pass" } }, function(app)
      local function told(options, text)
        local ok, err = pcall(app.submit, app, options)
        assert.is_false(ok)
        assert.truthy(err:find("^spec/robust_spec.lua:%d+: app:submit: key ") and err:find(text, 1, true), err)
      end
      told({ id = "caf\233" }, '"id" must be UTF-8')
      told({ id = ("x"):rep(65537) }, '"id" must be at most 65536 bytes long, not 65537')
      told({ deadline = math.huge }, '"deadline" must be at most 1e9 seconds')
      told({ deadline = 0 / 0 }, '"deadline" must be a number above 0')
      assert.same({ "y" }, data_of(app:submit { data = "y", id = ("x"):rep(65536), deadline = 1e9 }))
    end)
  end)

  it("is a bad line of the command line's input", function()
    local stdin = ('{"data":"a","deadline":1e300}\n{"data":"b","id":"%s"}\n{"data":"c"}\n'):format(("x"):rep(65537))
    local p = run.run({ run.omnihost, "spec/fixtures/cli_pipeline.lua" }, { stdin = stdin })
    assert.truthy(p.stderr:find('stdin:1: request: key "deadline" must be at most 1e9 seconds', 1, true), p.stderr)
    assert.truthy(p.stderr:find('stdin:2: request: key "id" must be at most', 1, true), p.stderr)
    assert.truthy(p.stderr:find("1 requests ok, 0 failed, 2 bad lines", 1, true), p.stderr)
  end)
end)

describe("what is too long for a control message", function()
  local long = ("x"):rep(20 * 2 ^ 20)

  it("is refused where it is asked", function()
    with_app({ { "a", "raises" } }, function(app)
      local pid = app:stats().workers.a
      local value, err, code = app:rpc("a", "ask", { long })
      assert.is_nil(value)
      assert.equal("E2BIG", code)
      assert.truthy(err:find "^E2BIG: %d+ bytes are more than a control message may have %(16777216%)$", err)
      assert.equal("fine", app:rpc("a", "ask", { long:sub(1, 16 * 2 ^ 20 - 200) }))
      local ok, misuse = pcall(app.rpc, app, "a", "caf\233")
      assert.is_false(ok)
      assert.truthy(misuse:find "^spec/robust_spec.lua:%d+: app:rpc: the arguments cannot cross")
      assert.equal(pid, app:stats().workers.a)
    end)
  end)

  it("is refused at the start, as what cannot cross is, where it is a stage's configuration", function()
    for code, text in pairs { E2BIG = long, EJSON = "caf\233" } do
      local definition = { module = "spec.fixtures.raises", config = { text = text } }
      local app, err, found = line({ { "a", definition }, { "b", "pass" } }):start()
      assert.is_nil(app)
      assert.equal(code, found, err)
      assert.truthy(err:find('stage "a": its configuration cannot cross to its process', 1, true), err)
    end
  end)
end)

describe("a pick that misbehaves", function()
  it("fails its request and no other", function()
    local function pick(_, request)
      if request.id == "exit" then os.exit(3) end
      if request.id == "bytes" then error("caf\233", 0) end
      if request.id == "faulty" then error(setmetatable({}, { __tostring = error })) end
      if request.id == "odd" then return setmetatable({}, { __tostring = error }) end
      return os.time() > 0 and 1
    end
    with_app({ { "a", { module = "spec.fixtures.pass", pick = pick } } }, function(app)
      local told = {
        exit = "os.exit would end the whole pipeline", bytes = "failed: caf\\xE9",
        faulty = "failed: something that has no text (a table)",
        odd = "returned something that has no text (a table), not 1 to 1",
      }
      for what, text in pairs(told) do
        local err, code = failure_of(app:submit { id = what, data = "x" })
        assert.equal("ESTAGE", code, err)
        assert.truthy(err:find('the pick of stage "a" ', 1, true) and err:find(text, 1, true), err)
        assert.same({ "y" }, data_of(app:submit { data = "y" }))
      end
    end)
  end)
end)

describe("a program that cannot be started for want of descriptors", function()
  it("is a failure that says so", function()
    local spawn = uv.spawn
    uv.spawn = function() return nil, "EMFILE: too many open files", "EMFILE" end -- luacheck: ignore
    local called, running, err, code = pcall(program.start, { command = { "cat" } })
    uv.spawn = spawn -- luacheck: ignore
    assert.is_true(called, running)
    assert.is_nil(running)
    assert.equal('EMFILE: program "cat" could not be started: EMFILE: too many open files', err)
    assert.equal("EMFILE", code)
  end)
end)

describe("an emit of nothing", function()
  it("is misuse at the stage's line", function()
    for _, call in ipairs { "emit()", "emit(nil)", 'emit("output", nil)' } do
      local stage = support.inline("\nfor _ in input do\n" .. call .. "\nend")
      with_app({ { "a", stage } }, function(app)
        local err, code = failure_of(app:submit { data = "x" })
        assert.equal("ESTAGE", code, err)
        assert.truthy(err:find('stage "a" failed: inline:3: emit takes one value', 1, true), err)
      end)
    end
  end)
end)
