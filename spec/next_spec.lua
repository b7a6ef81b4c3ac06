local util = require "jit.util"
local native = require "omni.native.json"

-- What the compiler thinks of a function: C functions that it does not know share one number.
local function id(fn) return util.funcinfo(fn).ffid end

describe("next and pairs", function()
  it("are unknown to the compiler where it would miscompile them", function()
    if jit.arch ~= "x64" or jit.version ~= "LuaJIT 2.1.0-beta3" then return end
    assert.equal(id(native.encode), id(next))
    assert.equal(id(native.encode), id(pairs))
    assert.equal(next, (pairs {}))
  end)

  it("behave as LuaJIT's own", function()
    local seen, t = {}, { 10, 20, x = 30, [2.5] = false }
    for key, value in pairs(t) do seen[key] = value end
    assert.same(t, seen)
    for key in next, t do seen[key] = nil end
    assert.is_nil((next(seen)))
    assert.same({ nil, "fallback" }, { next({}), "fallback" })
    assert.is_false(pcall(next, t, "no such key"))
    assert.is_false(pcall(pairs, nil))
    assert.matches("table expected, got no value", (select(2, pcall(pairs))))
  end)

  it("let an entry be removed or changed on the way", function()
    local t = {}
    for i = 1, 100 do t["k" .. i] = i end
    for key, value in pairs(t) do t[key] = value % 2 == 0 and value * 2 or nil end
    local n, sum = 0, 0
    for _, value in pairs(t) do n, sum = n + 1, sum + value end
    assert.same({ 50, 5100 }, { n, sum })
  end)
end)
