-- Random abuse: all that a guest can reach, called with all that it can make, metamethods and coroutines included. The
-- process must live, each program must end in time, and nothing may be left. OMNI_SANDBOX_FUZZ=N runs N programs.

local native = require "omni.native.guest"
local omni = require "omni"

local PROGRAMS = tonumber(os.getenv "OMNI_SANDBOX_FUZZ" or nil) or 60
local SEED = tonumber(os.getenv "OMNI_SANDBOX_SEED" or nil) or os.time()

-- Runs in the guest: builds a pool of values and throws them at each other.
local ABUSE = [==[
math.randomseed(SEED)
local random = math.random
local functions, names = {}, {}
for name, value in pairs(_G) do
  if type(value) == "function" then functions[#functions + 1] = value end
  if type(value) == "table" and value ~= _G then
    for key, inner in pairs(value) do
      if type(inner) == "function" then functions[#functions + 1] = inner names[inner] = name .. "." .. key end
    end
  end
end
local EVENTS = { "__index", "__newindex", "__call", "__tostring", "__lt", "__le", "__eq", "__concat", "__add", "__sub",
  "__unm", "__len", "__gc", "__mode", "__metatable", "__div", "__pow" }
local value
local function call(f, n)
  local args = {}
  for i = 1, n do args[i] = value(1) end
  return pcall(f, unpack(args, 1, n))
end
local makers = {
  function() return nil end,
  function() return random() < 0.5 end,
  function() return random(-3, 12) end,
  function() return ({ 0 / 0, 1 / 0, -1 / 0, 2 ^ 31, 2 ^ 53, -2 ^ 63, 1e308, 0.5, 65536, 1e6 })[random(10)] end,
  function() return ({ "", "a", "%", "%b", "[", "(", "%f[a]", ".-", "a*b", "%s %s %d", "(a)(b)%1", "\0", "[^a-z]+",
    "%d+" })[random(14)] end,
  function() return ("ab"):rep(random(0, 2000)) end,
  function() return functions[random(#functions)] end,
  function() return {} end,
  function() local t = {} for i = 1, random(30) do t[i] = random(100) end return t end,
  function() local t = {} for i = 1, random(10) do t["k" .. i] = i end return t end,
  function() return array { 1, 2, 3 } end,
  function() return null end,
  function() return function(...) return value(1), ... end end,
  function() return function() return call(functions[random(#functions)], random(0, 4)) end end,
  function() return function() error(value(1), random(0, 3)) end end,
  function() return coroutine.create(function(...) while true do coroutine.yield(value(1), ...) end end) end,
  function() return coroutine.wrap(function() call(functions[random(#functions)], 3) coroutine.yield(value(1)) end) end,
  function()
    local mt = {}
    for _ = 1, random(4) do mt[EVENTS[random(#EVENTS)]] = value(1) end
    local ok, t = pcall(setmetatable, { random(9), "x", k = 1 }, mt)
    return ok and t or nil
  end,
}
local kept, depth = {}, 0
function value(weight)
  if #kept > 0 and random() < 0.3 then return kept[random(#kept)] end
  if depth > 4 then return random(9) end
  depth = depth + weight
  local made = makers[random(#makers)]()
  depth = depth - weight
  if made ~= nil then kept[random(40)] = made end
  return made
end
local operations = {
  function(a, b) return a + b end, function(a, b) return a .. b end, function(a, b) return a < b end,
  function(a, b) return a == b end, function(a, b) return a[b] end, function(a, b) a[b] = value(1) end,
  function(a, b) return a(b) end, function(a) return #a end, function(a) return -a end,
  function(a, b) for k, v in pairs(a) do if k == b then return v end end end,
  function(a) for k in next, a do return k end end,
  function(a) for _ in a do break end end,
}
for _ = 1, 3000 do
  depth = 0
  local pick = random()
  if pick < 0.6 then
    local got = { call(functions[random(#functions)], random(0, 5)) }
    kept[random(40)] = got[random(3)]
  else
    pcall(operations[random(#operations)], value(1), value(1))
  end
end
]==]

describe("random abuse of the sandbox", function()
  it(("ends in order (seed %d)"):format(SEED), function()
    local codes = {}
    for i = 1, PROGRAMS do
      local seconds = 0.5
      local guest = native.start {
        source = ABUSE:gsub("SEED", tostring(SEED + i)), chunk = "@abuse.lua", memory = 8 * 2 ^ 20, output = 1000,
        seconds = seconds, deadline = omni.now() + seconds,
      }
      local began = omni.now()
      while not guest:_ended() do guest:_wait() end
      local outcome = guest:_result()
      local code = outcome.ok and "OK" or outcome.code
      codes[code] = (codes[code] or 0) + 1
      assert.equal(0, outcome.memory_left)
      assert.is_true(omni.now() - began < 5, ("seed %d took %.1f s"):format(SEED + i, omni.now() - began))
    end
    assert.is_truthy(codes.OK or codes.ERUN or codes.EMEMORY or codes.EDEADLINE)
    if os.getenv "OMNI_SANDBOX_FUZZ" then
      for code, n in pairs(codes) do io.write(code, " ", n, "  ") end
    end
  end)
end)
