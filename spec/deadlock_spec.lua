local deadlock = require "omni.deadlock"
local support = require "spec.support.pipeline"

local data_of = support.data_of
local failure_of = support.failure_of
local inline = support.inline
local with_pipeline = support.with_pipeline

-- Numbers 1..n go both ways; the join reads one port to its end before it looks at the other.
local function diamond(options, item)
  return function(p)
    p:stage "split" (inline(("for n in input do for i = 1, n do emit(%s) end end"):format(item or "i")))
    p:stage "left" { module = "spec.fixtures.pass" }
    p:stage "right" { module = "spec.fixtures.pass" }
    p:stage "join" (inline [[
      local left, right = 0, 0
      for x in input.right do right = right + 1 end
      for x in input.left do left = left + 1 end
      emit { left, right }]])
    p:edge("split -> left", options):edge("split -> right", options)
    p:edge("left -> join.left", options):edge("right -> join.right", options)
  end
end

describe("a join that reads one port to its end first", function()
  for _, window in ipairs { 1, 2, 16 } do
    it(("goes on beyond a window of %d"):format(window), function()
      with_pipeline(diamond { window = window }, function(app)
        assert.same({ { 500, 500 } }, data_of(app:submit { data = 500, deadline = 20 }))
        local requests = {}
        for i = 1, 5 do requests[i] = app:submit { data = 100 + i, deadline = 20 } end
        for i = 1, 5 do assert.same({ { 100 + i, 100 + i } }, data_of(requests[i])) end
      end)
    end)
  end

  it("goes on beyond a budget", function()
    with_pipeline(diamond({ budget = 2000 }, "('x'):rep(900)"), function(app)
      assert.same({ { 60, 60 } }, data_of(app:submit { data = 60, deadline = 20 }))
    end)
  end)

  it("fails at the request's limit of bytes and names the circle; others go on", function()
    with_pipeline(diamond({ window = 4 }, "('x'):rep(1000)"), function(app)
      local err, code = failure_of(app:submit { data = 1000, deadline = 20 })
      assert.equal("EDEADLOCK", code, err)
      for _, part in ipairs {
        "the stages wait for each other: ", "join waits for input (right -> join.right)",
        "right waits for input (split -> right)", "split waits for room (split -> left)",
        "left waits for room (left -> join.left)", "the request's limit is 30000",
      } do
        assert.truthy(err:find(part, 1, true), err)
      end
      local held = tonumber(err:match "(%d+) bytes are held")
      assert.is_true(held <= 30000 and held >= 28000, err)
      assert.same({ { 8, 8 } }, data_of(app:submit { data = 8, deadline = 20 }))
    end, { request_bytes = 30000 })
  end)

  it("is not taken for one while its user is slow", function()
    with_pipeline(function(p)
      diamond { window = 2 }(p)
      p:stage "many" (inline "for x in input do for i = 1, 100 do emit(i) end end")
      p:connect("join", "many", { window = 2 })
    end, function(app)
      local request = app:submit { data = 3, deadline = 20 }
      local n = 0
      for _ in request:chunks() do
        if n < 3 then require("omni").sleep(0.2) end
        n = n + 1
      end
      assert.equal(100, n)
    end, { request_bytes = 1 })
  end)
end)

describe("a circle of waits", function()
  local EDGES = {
    { id = 1, from = "split", to = "left", window = 2 }, { id = 2, from = "split", to = "join", window = 2 },
    { id = 3, from = "left", to = "join", window = 2 }, { id = 4, from = "host", to = "split", window = 2 },
  }

  local function answer(on, edge, sent, got)
    local function counts(map)
      local list = {}
      for id, n in pairs(map or {}) do list[#list + 1] = { edge = id, n = n, held = 0, bytes = 0 } end
      return list
    end
    return { waits = on and { { on = on, edge = edge } } or {}, sent = counts(sent), got = counts(got) }
  end

  it("is none while one of its stages works, or has ended", function()
    local split, join = answer("credit", 2, { [1] = 1, [2] = 3 }), answer("input", 3, {}, { [3] = 1 })
    assert.is_nil(deadlock.find(EDGES, { split = split, left = answer(nil), join = join }))
    assert.is_nil(deadlock.find(EDGES, { split = split, join = join }))
    local left = answer("input", 1, { [3] = 1 }, { [1] = 1 })
    assert.same({
      { stage = "join", on = "input", edge = 3 }, { stage = "left", on = "input", edge = 1 },
      { stage = "split", on = "credit", edge = 2 },
    }, deadlock.find(EDGES, { split = split, left = left, join = join }))
  end)

  it("is none while a chunk is on its way, or the host may send or take", function()
    local join = answer("input", 3, {}, { [3] = 1 })
    local left = answer("input", 1, { [3] = 1 }, { [1] = 0 })
    assert.is_nil(deadlock.find(EDGES, { split = answer("credit", 2, { [1] = 1 }), left = left, join = join }))
    left = answer("input", 1, { [3] = 1 }, { [1] = 1 })
    assert.is_nil(deadlock.find(EDGES, { split = answer("input", 4, { [1] = 1 }), left = left, join = join }))
  end)

  it("gets no more room than the request's limit leaves", function()
    local circle = { { stage = "split", on = "credit", edge = 2 }, { stage = "join", on = "input", edge = 3 } }
    local function relief(held, bytes, limit)
      local join = { got = { { edge = 2, held = held, bytes = bytes } } }
      local edge, n = deadlock.relief(EDGES, { join = join }, circle, limit)
      return { edge or "none", n }
    end
    assert.same({ 2, 2 }, relief(0, 0, 100))
    assert.same({ 2, 10 }, relief(10, 100, 1000))
    assert.same({ 2, 5 }, relief(10, 100, 150))
    assert.same({ "none", 100 }, relief(10, 100, 105))
    assert.same({ "none", 100 }, relief(10, 100, 100))
  end)
end)
