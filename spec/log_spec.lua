local json = require "omni.json"
local log = require "omni.log"

describe("omni.log", function()
  local before

  before_each(function()
    before = log.level "info"
    log.capture()
  end)

  after_each(function()
    log.release()
    log.level(before)
  end)

  it("writes a line with time, level, message and fields", function()
    log.info("ready", { stage = "talker", replica = 0, parts = json.array() })
    local record = log.release()[1]
    assert.matches("^%d%d%d%d%-%d%d%-%d%dT%d%d:%d%d:%d%d%.%d%d%dZ$", record.ts)
    record.ts = nil
    assert.same({ level = "info", msg = "ready", stage = "talker", replica = 0, parts = {} }, record)
  end)

  it("writes what the level wants", function()
    log.level "warn"
    log.debug "a"
    log.info "b"
    log.warn "c"
    log.error "d"
    log.level "off"
    log.error "e"
    log.level "debug"
    log.debug "f"
    local seen = {}
    for i, record in ipairs(log.release()) do seen[i] = record.msg .. record.level end
    assert.same({ "cwarn", "derror", "fdebug" }, seen)
  end)

  it("tells the level that was before", function()
    assert.equal("info", log.level "error")
    assert.equal("error", log.level())
  end)

  it("adds the fields of a logger, those of the message first", function()
    local request = log.with { request = 7, stage = "a" }
    request.info "one"
    request.with({ chunk = 2 }).warn("two", { stage = "b" })
    local one, two = unpack(log.release())
    assert.equal(7, one.request)
    assert.equal("a", one.stage)
    assert.same({ 7, 2, "b" }, { two.request, two.chunk, two.stage })
  end)

  it("never raises, whatever it is given", function()
    local loop = {}
    loop.loop = loop
    local broken = setmetatable({}, { __tostring = function() error "no" end })
    log.info()
    log.info(nil, 5)
    log.info(broken, { broken = broken, fn = print, nan = 0 / 0, loop = loop, bytes = "\255\0", [3] = true })
    local first, second, third = unpack(log.release())
    assert.equal("nil", first.msg)
    assert.equal(5, second.fields)
    assert.equal("(table)", third.msg)
    assert.matches("^function: ", third.fn)
    assert.equal("nan", third.nan)
    assert.matches("^table: ", third.loop)
    assert.equal("\\255\0", third.bytes)
    assert.is_true(third["3"])
  end)

  it("keeps its own keys apart from fields of the same name", function()
    log.info("text", { msg = "other", level = "x", ts = 1 })
    local record = log.release()[1]
    assert.same({ "text", "info", "other", "x", 1 },
      { record.msg, record.level, record.msg_, record.level_, record.ts_ })
  end)

  it("keeps a message on one line", function()
    log.info("a\nb\r\27[31m", { k = "c\nd" })
    local records = log.release()
    assert.equal(1, #records)
    assert.equal("a\nb\r\27[31m", records[1].msg)
  end)

  it("tells a capturing function of each record, and raises its error at release", function()
    local seen = {}
    log.capture(function(record) seen[#seen + 1] = record.msg end)
    log.info "x"
    log.info "y"
    log.release()
    assert.same({ "x", "y" }, seen)
    log.capture(function() error "from the capture" end)
    log.info "z"
    local ok, message = pcall(log.release)
    assert.is_false(ok)
    assert.matches("from the capture", message)
  end)

  it("captures what the engine logs as well", function()
    local metrics = require "omni.metrics"
    local kept = metrics.counter "spec_log_kind"
    local other = metrics.gauge "spec_log_kind"
    assert.is_truthy(kept and other)
    local record = log.release()[1]
    assert.equal("warn", record.level)
    assert.matches("spec_log_kind", record.msg)
  end)

  it("raises at the caller's line for a level that there is not", function()
    local ok, message = pcall(function() log.level "wran" end)
    assert.is_false(ok)
    assert.matches('log_spec.lua:%d+: log.level: there is no level "wran".*warn', message)
  end)
end)

describe("omni.log's lines on stderr", function()
  local exe = require("omni.native.host").facts().exe
  local script = os.tmpname()

  setup(function()
    local file = assert(io.open(script, "we"))
    file:write [[require("omni").log.info("up and\nrunning", { a = "x y", b = "z", n = {} })]]
    file:close()
  end)

  teardown(function() os.remove(script) end)

  -- What a child process writes; environment first.
  local function output(environment, form)
    local pipe = assert(io.popen((environment .. " " .. form):format(exe, script), "re"))
    local text = pipe:read "*a"
    pipe:close()
    return text
  end

  local PIPED, TERMINAL = "%s %s 2>&1", "script -qec '%s %s' /dev/null 2>&1 </dev/null"

  it("are JSON where it is no terminal", function()
    local text = output("OMNIHOST_LOG=info", PIPED)
    assert.equal(1, select(2, text:gsub("\n", "\n")))
    local record = json.decode(text)
    assert.same({ "info", "up and\nrunning", "x y", "z" }, { record.level, record.msg, record.a, record.b })
  end)

  it("are pairs on a terminal, coloured unless NO_COLOR is set", function()
    local plain = output("NO_COLOR=1", TERMINAL)
    assert.matches('^%d%d:%d%d:%d%d%.%d%d%dZ info  up and running a="x y" b=z n={}\r?\n$', plain)
    local coloured = output("NO_COLOR=", TERMINAL)
    assert.matches("Z \27%[32minfo \27%[0m up and running", coloured)
  end)

  it("begin at the level of OMNIHOST_LOG", function()
    assert.equal("", output("OMNIHOST_LOG=warn", PIPED))
    assert.matches("running", output("OMNIHOST_LOG=debug", PIPED))
  end)
end)
