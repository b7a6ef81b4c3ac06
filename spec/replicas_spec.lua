local omni = require "omni"
local support = require "spec.support.pipeline"
local uv = require "luv"

local data_of = support.data_of
local failure_of = support.failure_of
local inline = support.inline
local next_data = support.next_data
local with_pipeline = support.with_pipeline

-- Tells its process for each chunk; "hold" is kept until its request is ended from outside.
local WHO = [[
  for x in input do
    emit(require("luv").os_getpid())
    if x == "hold" then
      repeat require("omni").sleep(0.002) until request.ended
    end
  end]]

local function who(extra)
  return function(p) p:stage "a" (inline(WHO, extra)) end
end

describe("replicas", function()
  it("are processes of their own, and the one with the least to do is chosen", function()
    with_pipeline(who { replicas = 3 }, function(app)
      local held, pids, different = {}, {}, {}
      for i = 1, 3 do
        held[i] = app:submit { data = "hold" }
        pids[i] = next_data(held[i])
        different[pids[i]] = true
      end
      local workers = app:stats().workers
      assert.same({ [workers.a] = true, [workers["a.1"]] = true, [workers["a.2"]] = true }, different)
      held[2]:abort()
      assert.equal(pids[2], data_of(app:submit { data = "x" })[1])
      assert.equal(pids[2], next_data(app:submit { data = "hold" }))
      held[3]:abort()
      assert.equal(pids[3], next_data(app:submit { data = "hold" }))
    end)
  end)

  it("keep all chunks of a request, through stages with different numbers of them", function()
    with_pipeline(function(p)
      p:stage "split" { module = "spec.fixtures.words", replicas = 2 }
      p:stage "who" (inline("for x in input do emit(x .. ' ' .. require('luv').os_getpid()) end", { replicas = 3 }))
      p:stage "last" { module = "spec.fixtures.pass", replicas = 2 }
      p:connect("split", "who", { window = 2 }):connect("who", "last", { window = 2 })
    end, function(app)
      local requests, used = {}, {}
      for i = 1, 30 do requests[i] = app:submit { data = ("%d-a %d-b %d-c %d-d"):format(i, i, i, i) } end
      for i = 1, 30 do
        local words, pid = {}, nil
        for _, text in ipairs(data_of(requests[i])) do
          local word, by = text:match "^(%S+) (%d+)$"
          words[#words + 1] = word
          assert.equal(pid or by, by)
          pid = by
        end
        assert.equal(("%d-a %d-b %d-c %d-d"):format(i, i, i, i), table.concat(words, " "))
        used[pid] = true
      end
      local n = 0
      for _ in pairs(used) do n = n + 1 end
      assert.equal(3, n)
    end)
  end)

  it("help each other out: what one held when it died fails, the rest goes on without a pause", function()
    with_pipeline(who { replicas = 2, max_restarts = 0 }, function(app)
      local first, second = app:submit { data = "hold" }, app:submit { data = "hold" }
      local dead, alive = next_data(first), next_data(second)
      uv.kill(dead, "sigkill")
      assert.equal("EWORKER", (select(2, failure_of(first))))
      for _ = 1, 5 do assert.equal(alive, data_of(app:submit { data = "x" })[1]) end
      assert.equal("running", second.state)
      local deadline = omni.now() + 10
      while next(app:stats().down) and omni.now() < deadline do omni.sleep(0.005) end
      local pid = data_of(app:submit { data = "x" })[1]
      assert.is_true(pid ~= alive and pid ~= dead)
      assert.equal("aborted", second:abort().outcome)
    end)
  end)

  it("join the branches of one request, whatever their order of reading", function()
    with_pipeline(function(p)
      p:stage "split" (inline "for n in input do for i = 1, n do emit(i) end end")
      p:stage "left" { module = "spec.fixtures.pass", replicas = 2 }
      p:stage "right" { module = "spec.fixtures.pass", replicas = 2 }
      p:stage "join" (inline([[
        local sum = 0
        for x in input.right do sum = sum + x end
        for x in input.left do sum = sum - x end
        emit(sum)]], { replicas = 3 }))
      p:connect("split", "left", { window = 2 }):connect("split", "right", { window = 2 })
      p:connect("left", "join", { window = 2 }):connect("right", "join", { window = 2 })
    end, function(app)
      local requests = {}
      for i = 1, 6 do requests[i] = app:submit { data = 30 + i, deadline = 20 } end
      for i = 1, 6 do assert.same({ 0 }, data_of(requests[i])) end
    end)
  end)

  it("leave nothing of aborted requests", function()
    with_pipeline(function(p)
      p:stage "flood" { module = "spec.fixtures.flood", replicas = 2 }
      p:stage "last" { module = "spec.fixtures.pass", replicas = 2 }
      p:connect("flood", "last", { window = 4 })
    end, function(app)
      local requests = {}
      for i = 1, 4 do
        requests[i] = app:submit { data = "flood" }
        assert.equal(1, next_data(requests[i]))
      end
      for i = 1, 4 do assert.same({ "running", "running" }, {
        requests[i]:abort().stages.flood, requests[i].answer.stages.last,
      }) end
      for _, name in ipairs(support.shared_names(app:stats().namespace)) do
        assert.falsy(name:find("_", 1, true), name)
      end
    end)
  end)
end)

describe("a stage's pick", function()
  it("chooses by what it is told", function()
    local function pick(candidates, request)
      local by_replica = {}
      for i, candidate in ipairs(candidates) do by_replica[candidate.replica] = i end
      return by_replica[tonumber(request.id)]
    end
    with_pipeline(who { replicas = 3, pick = pick }, function(app)
      local workers = app:stats().workers
      for _ = 1, 3 do
        assert.same({ workers["a.2"] }, data_of(app:submit { id = 2, data = "x" }))
        assert.same({ workers.a }, data_of(app:submit { id = 0, data = "x" }))
      end
      local err, code = failure_of(app:submit { id = 7, data = "x" })
      assert.equal("ESTAGE", code)
      assert.equal('ESTAGE: the pick of stage "a" returned nil, not 1 to 3', err)
      assert.same({ workers["a.1"] }, data_of(app:submit { id = 1, data = "x" }))
    end)
  end)

  it("fails its request where it raises", function()
    with_pipeline(who { replicas = 2, pick = function() error "no choice" end }, function(app)
      assert.truthy(failure_of(app:submit { data = "x" }):find('the pick of stage "a" failed: .*no choice'))
    end)
  end)

  it("can use nothing from around it", function()
    local p, outside = omni.pipeline "p", 1
    p:stage "a" { module = "spec.fixtures.pass", replicas = 2, pick = function() return outside end }
    local _, problems = p:topology()
    assert.truthy(problems[1]:find 'replicas_spec.lua:%d+: stage "a": pick uses "outside" from outside it', problems[1])
  end)
end)

describe("a declaration with replicas", function()
  it("is refused for numbers that make no sense", function()
    local p = omni.pipeline "p"
    p:stage "a" { module = "spec.fixtures.pass" }
    p:stage "c" { module = "spec.fixtures.pass", replicas = 0 }
    p:connect("a", "c")
    local text = table.concat((select(2, p:topology())), "\n")
    assert.truthy(text:find('stage "c": key "replicas" must be 1 to 64', 1, true), text)
  end)
end)
