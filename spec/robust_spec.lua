-- What users get wrong, or programs do, ends what it concerns and nothing else.
local errors = require "omni.errors"
local json = require "omni.json"
local run = require "spec.support.run"
local support = require "spec.support.pipeline"

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
    assert.equal("an error that has no text (a table)", (errors.text_of(faulty)))
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
    bytes = "caf\\xE9 " .. EURO, faulty = "an error that has no text (a table)",
    number = "an error that has no text (a table)", long = " ... (cut)", ["nil"] = "nil", memory = "",
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
