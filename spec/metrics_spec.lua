local json = require "omni.json"
local metrics = require "omni.metrics"

-- The entry of a metric in the listing, or nil.
local function entry(name, label, value)
  for _, e in ipairs(metrics.snapshot()) do
    if e.name == name and (label == nil or e.labels[label] == value) then return e end
  end
end

local function raised(fn, ...)
  local ok, message = pcall(fn, ...)
  assert.is_false(ok)
  return message
end

local function dropped() return (entry "omni_metrics_dropped" or { value = 0 }).value end

describe("omni.metrics", function()
  after_each(function() collectgarbage() collectgarbage() end)

  it("counts, sets and lists", function()
    local counter = metrics.counter("spec_total", { stage = "talker", replica = 0 })
    local gauge = metrics.gauge "spec_depth"
    counter:add()
    counter:add(4)
    gauge:set(10)
    gauge:add(-12)
    assert.equal(5, counter:value())
    assert.equal(-2, gauge:value())
    local e = entry("spec_total", "stage", "talker")
    assert.same({ name = "spec_total", kind = "counter", value = 5, labels = { stage = "talker", replica = "0" } }, e)
    assert.equal(-2, entry("spec_depth").value)
  end)

  it("gives the same metric for equal name and labels, in any order of the labels", function()
    local one = metrics.counter("spec_same", { a = 1, b = 2 })
    local two = metrics.counter("spec_same", { b = "2", a = "1" })
    local other = metrics.counter("spec_same", { a = 1 })
    one:add(1)
    two:add(1)
    assert.equal(2, one:value())
    assert.equal(one, two)
    assert.equal(0, other:value())
  end)

  it("lists a metric as long as somebody holds it", function()
    local counter = metrics.counter "spec_brief"
    assert.is_table(entry "spec_brief")
    assert.is_truthy(counter)
    counter = nil -- luacheck: ignore
    collectgarbage()
    collectgarbage()
    assert.is_nil(entry "spec_brief")
  end)

  it("sorts observations into powers of two", function()
    local histogram = metrics.histogram "spec_us"
    for _, v in ipairs { 0, 1, 2, 3, 4, 7, 8, 1000, 1000.9 } do histogram:observe(v) end
    local e = entry "spec_us"
    assert.equal(9, histogram:value())
    assert.equal(9, e.value)
    assert.equal(2025, e.sum)
    assert.same({
      { le = 0, count = 1 },
      { le = 1, count = 1 },
      { le = 3, count = 2 },
      { le = 7, count = 2 },
      { le = 15, count = 1 },
      { le = 1023, count = 2 },
    }, e.buckets)
    assert.equal(7, e.p50)
    assert.equal(1023, e.p99)
  end)

  it("never raises when it counts, and counts what it dropped", function()
    local counter, gauge = metrics.counter "spec_c", metrics.gauge "spec_g"
    local histogram, before = metrics.histogram "spec_h", dropped()
    counter:add "five"
    counter:add(-1)
    counter:add(0 / 0)
    counter.add(5)
    gauge:set(nil)
    gauge:set {}
    gauge:add(math.huge)
    histogram:observe(-1)
    histogram:observe()
    assert.equal(before + 9, dropped())
    assert.equal(0, counter:value() + gauge:value() + histogram:value())
  end)

  it("lists in order of name and labels", function()
    local kept = {}
    for _, label in ipairs { "b", "c", "a" } do kept[#kept + 1] = metrics.gauge("spec_order", { l = label }) end
    kept[#kept + 1] = metrics.gauge "spec_a"
    local seen = {}
    for _, e in ipairs(metrics.snapshot()) do
      if e.name:find "^spec_" then seen[#seen + 1] = e.name .. (e.labels.l or "") end
    end
    assert.same({ "spec_a", "spec_ordera", "spec_orderb", "spec_orderc" }, seen)
  end)

  it("keeps every character of a label's value", function()
    local odd = 'a"b\\c\nd,e="f"'
    local gauge = metrics.gauge("spec_odd", { v = odd, w = "next" })
    local e = entry("spec_odd", "v", odd)
    assert.is_truthy(gauge)
    assert.same({ v = odd, w = "next" }, e.labels)
  end)

  it("writes Prometheus' format", function()
    local counter = metrics.counter("spec_text_total", { q = 'x"y' })
    local histogram = metrics.histogram("spec_text_us", { s = "t" })
    counter:add(3)
    histogram:observe(1)
    histogram:observe(5)
    local text = metrics.text()
    local function has(line) assert.is_truthy(("\n" .. text):find("\n" .. line .. "\n", 1, true), line) end
    has "# TYPE spec_text_total counter"
    has 'spec_text_total{q="x\\"y"} 3'
    has "# TYPE spec_text_us histogram"
    has 'spec_text_us_bucket{s="t",le="1"} 1'
    has 'spec_text_us_bucket{s="t",le="7"} 2'
    has 'spec_text_us_bucket{s="t",le="+Inf"} 2'
    has 'spec_text_us_sum{s="t"} 6'
    has 'spec_text_us_count{s="t"} 2'
  end)

  it("lists what JSON can carry", function()
    local histogram = metrics.histogram "spec_json"
    histogram:observe(2 ^ 62)
    assert.is_string(json.encode(metrics.snapshot()))
  end)

  it("raises at the caller's line when a metric is asked for wrongly", function()
    assert.matches("metrics_spec.lua:%d+: metrics.counter: name must be a string, got nil",
      raised(function() metrics.counter() end))
    assert.matches('metrics_spec.lua:%d+: metrics.gauge: name "a b"', raised(function() metrics.gauge "a b" end))
    assert.matches("metrics_spec.lua:%d+: metrics.gauge: label x must be a string, number or boolean, got table",
      raised(function() metrics.gauge("a", { x = {} }) end))
    assert.matches("label name 1 ", raised(function() metrics.histogram("a", { "x" }) end))
    assert.matches("labels must be a table, got string", raised(function() metrics.histogram("a", "x") end))
  end)
end)
