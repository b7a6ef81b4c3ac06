local admission = require "omni.admission"
local support = require "spec.support.pipeline"

local data_of = support.data_of
local failure_of = support.failure_of
local inline = support.inline
local next_data = support.next_data
local with_fifo = support.with_fifo
local with_pipeline = support.with_pipeline

describe("admission", function()
  it("lets in, queues and refuses by its two limits", function()
    local gate = admission.new(2, 1)
    local records = {}
    for i = 1, 4 do records[i] = { state = "queued", n = i } end
    assert.equal("in", gate:enter(records[1]))
    assert.equal("in", gate:enter(records[2]))
    assert.equal("queued", gate:enter(records[3]))
    local outcome, why = gate:enter(records[4])
    assert.is_nil(outcome)
    assert.equal("EFULL: the pipeline has 2 requests and 1 waiting, all it takes (max_requests = 2, queue = 1)", why)
    assert.is_nil(gate:next())
    records[1].state = "running"
    gate:leave(records[1])
    assert.equal(3, gate:next().n)
    assert.is_nil(gate:next())
    assert.equal(0, gate.waiting)
  end)

  it("skips who left the queue, and lets nobody overtake", function()
    local gate = admission.new(1, 5)
    local first, second, third = { state = "running" }, { state = "queued" }, { state = "queued", n = 3 }
    gate:enter(first)
    gate:enter(second)
    gate:enter(third)
    gate:leave(second)
    second.state = "ended"
    gate:leave(first)
    assert.equal("queued", gate:enter { state = "queued" })
    assert.equal(3, gate:next().n)
    assert.is_nil(gate:next())
    assert.equal(1, gate.waiting)
  end)
end)

-- A stage in which requests with the text "gate" wait until the fifo is opened.
local function gated(fifo)
  return function(p) p:stage "gate" (support.gate_stage(fifo)) end
end

describe("a pipeline's front door", function()
  it("runs max_requests, keeps the queue in order and refuses the rest with the reason", function()
    with_fifo(function(fifo, open)
      with_pipeline(gated(fifo), function(app)
        local held = app:submit { data = "gate" }
        assert.equal("waiting", next_data(held))
        local waiting = { app:submit { data = "one" }, app:submit { data = "two" } }
        local err, code = failure_of(app:submit { data = "three" })
        assert.equal("EFULL", code)
        assert.truthy(err:find("(max_requests = 1, queue = 2)", 1, true), err)
        assert.equal("running", waiting[1].state)
        open()
        assert.same({ "gate" }, data_of(held))
        assert.same({ "two" }, data_of(waiting[2]))
        assert.equal("done", waiting[1].state)
        assert.same({ "one" }, data_of(waiting[1]))
        assert.same({ "four" }, data_of(app:submit { data = "four" }))
      end, { max_requests = 1, queue = 2 })
    end)
  end)

  it("counts the wait against the deadline, and gives places of aborted requests to others", function()
    with_fifo(function(fifo)
      with_pipeline(gated(fifo), function(app)
        local held = app:submit { data = "gate" }
        assert.equal("waiting", next_data(held))
        local err, code = failure_of(app:submit { data = "late", deadline = 0.02 })
        assert.equal("ETIMEDOUT", code)
        assert.truthy(err:find("while the request waited to be admitted", 1, true), err)
        local left = app:submit { data = "left" }
        assert.same({ outcome = "aborted", stages = {} }, left:abort())
        local last = app:submit { data = "last" }
        held:abort()
        assert.same({ "last" }, data_of(last))
        assert.same({ "next" }, data_of(app:submit { data = "next" }))
      end, { max_requests = 1, queue = 1 })
    end)
  end)

  it("drains what it had taken in when it is closed", function()
    local waiting = {}
    with_pipeline(function(p) p:stage "a" { module = "spec.fixtures.words" } end, function(app)
      for i = 1, 20 do waiting[i] = app:submit { data = "w" .. i } end
      app:stop()
      for i = 1, 20 do assert.same({ "w" .. i }, data_of(waiting[i])) end
    end, { max_requests = 2, queue = 18 })
  end)
end)

describe("a request's stats", function()
  it("tell its times, what each stage did with it, and its way through the pipeline", function()
    with_pipeline(function(p)
      p:stage "split" { module = "spec.fixtures.words" }
      p:stage "upper" { module = "spec.fixtures.upper" }
      p:connect("split", "upper")
    end, function(app)
      local request = app:submit { data = "one three" }
      assert.equal("running", request:stats().state)
      data_of(request)
      local stats = request:stats()
      assert.same({ "done", 3, 8 }, { stats.state, stats.chunks, stats.bytes })
      assert.is_true(stats.first_chunk > 0 and stats.first_chunk <= stats.seconds)
      assert.same({ 1, 2 }, { stats.work.split.chunks_in, stats.work.split.chunks_out })
      assert.same({ 2, 2 }, { stats.work.upper.chunks_in, stats.work.upper.chunks_out })
      assert.is_true(stats.work.upper.seconds >= 0 and stats.work.upper.seconds <= stats.seconds)
      local events, at = {}, 0
      for _, entry in ipairs(stats.timeline) do
        assert.is_true(entry.at >= at)
        at = entry.at
        events[entry.event .. (entry.stage or "")] = true
      end
      assert.same({
        admitted = true, ["first chunkupper"] = true, donesplit = true, doneupper = true, done = true,
      }, events)
      assert.equal(stats.seconds, request:stats().seconds)
    end)
  end)

  it("show how long it waited and that it failed", function()
    with_fifo(function(fifo)
      with_pipeline(gated(fifo), function(app)
        local held = app:submit { data = "gate" }
        assert.equal("waiting", next_data(held))
        local last = app:submit { data = "last" }
        held:abort()
        data_of(last)
        assert.is_true(last:stats().timeline[1].at > 0)
        local timeline = held:stats().timeline
        assert.equal("failed", timeline[#timeline].event)
        assert.same({}, held:stats().work)
      end, { max_requests = 1 })
    end)
  end)
end)

describe("messages for a request that has ended", function()
  it("change nothing, whatever they are", function()
    with_pipeline(function(p)
      p:stage "a" (inline [[
        local data = input()
        if data == "late" then
          for _, req in ipairs { "r1", "r2", "r99" } do
            for _, message in ipairs {
              '"done"', '"failed","code":"ESTAGE","error":"late"', '"ended","was":"running"', '"stalled"',
              '"waits","inquiry":1,"waits":[],"sent":[],"got":[]', '"done"',
            } do
              require("luv").fs_write(3, ('{"type":%s,"req":"%s"}\n'):format(message, req))
            end
          end
        end
        emit(data)]])
      p:stage "b" { module = "spec.fixtures.pass" }
      p:connect("a", "b")
    end, function(app)
      local done = app:submit { data = 1 } -- r1
      assert.same({ 1 }, data_of(done))
      local aborted = app:submit { data = 2 } -- r2
      aborted:abort()
      assert.same({ "late" }, data_of(app:submit { data = "late" }))
      assert.same({ 3 }, data_of(app:submit { data = 3 }))
      assert.same({ "done", 2 }, { done.state, done:stats().chunks })
      assert.same({ 4, 0, 0 }, { app:stats().submitted, app:stats().failed, app:stats().running })
    end)
  end)
end)
