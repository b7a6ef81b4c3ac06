local ffi = require "ffi"
local json = require "omni.json"

local here = debug.getinfo(1, "S").source:match "^@(.*)/" or "spec"

local function refused(value)
  local text, message, code = json.encode(value)
  assert.is_nil(text)
  assert.equal("EJSON", code)
  return message
end

-- The message of an error with its position, which assert.error_matches would strip.
local function raised(fn)
  local ok, message = pcall(fn)
  assert.is_false(ok)
  return message
end

describe("omni.json reading and writing", function()
  it("writes what it read as the same JSON", function()
    local n = 0
    for line in io.lines(here .. "/json/accepted.jsonl") do
      local text, expected = line:match "^(.-)\t(.*)$"
      local value, message = json.decode(text)
      assert.is_nil(message, text)
      assert.equal(expected ~= "" and expected or text, json.encode(value), text)
      n = n + 1
    end
    assert.is_true(n > 50)
  end)

  it("writes its own text again unchanged", function()
    for line in io.lines(here .. "/json/accepted.jsonl") do
      local once = json.encode((json.decode(line:match "^(.-)\t")))
      assert.equal(once, json.encode((json.decode(once))))
    end
  end)

  it("refuses what is not JSON and says at which byte", function()
    for _, case in ipairs(dofile(here .. "/json/refused.lua")) do
      local text, byte, reason = unpack(case)
      local value, message, code = json.decode(text)
      assert.is_nil(value, text)
      assert.equal("EJSON", code)
      assert.matches("^EJSON: ", message)
      assert.equal(tostring(byte), message:match " at byte (%d+)$", message)
      assert.is_truthy(message:find(reason, 1, true), message)
    end
  end)

  it("refuses every proper prefix of an object or array", function()
    local text = '{"a":[1,-2.5e3,"x\\u00e9\\n",null,true,false,{"b":[]}]}'
    for i = 0, #text - 1 do assert.is_nil((json.decode(text:sub(1, i))), text:sub(1, i)) end
  end)

  it("reads the deepest value that it allows", function()
    local text = ("["):rep(100) .. ("]"):rep(100)
    assert.equal(text, json.encode((json.decode(text))))
  end)

  it("does not care for the locale's decimal point", function()
    local before = os.setlocale(nil, "numeric")
    if not os.setlocale("de_DE.UTF-8", "numeric") then return end
    local text, value = json.encode { 1.5 }, json.decode "2.5"
    os.setlocale(before, "numeric")
    assert.equal("[1.5]", text)
    assert.equal(2.5, value)
  end)
end)

describe("omni.json arrays and null", function()
  it("tells an empty array from an empty object", function()
    assert.equal("{}", json.encode {})
    assert.equal("[]", json.encode(json.array()))
    assert.equal("[]", json.encode((json.decode "[]")))
    assert.is_true(json.is_array(json.decode "[]"))
    assert.is_false(json.is_array(json.decode "{}"))
  end)

  it("marks the table that it is given", function()
    local items = { 1, 2 }
    assert.equal(items, json.array(items))
    assert.is_true(json.is_array(items))
    items[3] = "x"
    assert.equal('[1,2,"x"]', json.encode(items))
  end)

  it("keeps null as a value of its own", function()
    local value = json.decode '{"a":null,"b":[null]}'
    assert.equal(json.null, value.a)
    assert.equal(json.null, value.b[1])
    assert.equal(1, #value.b)
  end)

  it("keeps both on the way to another state and back", function()
    local text = '{"a":[],"b":{"c":[[],null]},"n":null}'
    local thread = require("omni.thread").start(function(value)
      local codec = require "omni.json"
      return value, codec.encode(value)
    end, json.decode(text))
    local value, seen_there = thread:join()
    assert.equal(text, seen_there)
    assert.equal(text, json.encode(value))
  end)

  it("refuses to take over a table with a metatable", function()
    local own = setmetatable({}, {})
    assert.matches("json_spec.lua:%d+: json.array: .*metatable", raised(function() json.array(own) end))
    assert.matches("json_spec.lua:%d+: .*table expected, got number", raised(function() json.array(5) end))
  end)
end)

describe("omni.json refuses to write", function()
  it("numbers that are none in JSON", function()
    assert.equal("EJSON: $.a: NaN is not a number in JSON", refused { a = 0 / 0 })
    assert.matches("infinity", refused(math.huge))
    assert.matches("infinity", refused { -math.huge })
  end)

  it("tables that are neither array nor object, naming the place", function()
    assert.matches("^EJSON: %$%.a: array with holes", refused { a = { 1, 2, nil, 4 } })
    assert.matches('^EJSON: %$%[1%]: array with the key "x"', refused { { 1, x = 2 } })
    assert.matches('^EJSON: %$: array with the key "x"', refused(json.array { x = 2 }))
    assert.matches("^EJSON: %$%.a%[2%]%.b: object with the number key 3", refused { a = { 1, { b = { [3] = 1 } } } })
    assert.matches("key of type boolean", refused { [true] = 1 })
    assert.matches("no item number", refused { 1, [{}] = 2 })
    assert.matches("array with", refused { 1, [1.5] = 2 })
  end)

  it("complains of the same key in every state, whatever the order of the table", function()
    assert.matches('array with the key "a"', refused { 1, z = 1, k = 2, a = 3, [true] = 4 })
    assert.matches("no item number %(number%)", refused { 1, a = 3, [-1] = 4 })
    assert.matches("the number key 5 ", refused { [9] = 1, a = 2, [5] = 3, [true] = 4 })
    assert.matches("a key of type boolean", refused { a = 2, [{}] = 3, [true] = 4 })
  end)

  it("strings and keys that are not UTF-8", function()
    local bad_string = { ["a b"] = { 1, { c = "ab\255" } } }
    assert.equal('EJSON: $["a b"][2].c: the string is not UTF-8 at its byte 3', refused(bad_string))
    assert.matches("not UTF%-8 at its byte 1", refused { ["\128"] = 1 })
    for _, bad in ipairs { "\192\175", "\237\160\128", "\244\144\128\128", "\226\130", "\245\128\128\128" } do
      assert.matches("not UTF%-8", refused(bad))
    end
  end)

  it("functions, userdata and foreign cdata", function()
    assert.matches("%$%.f: a function", refused { f = print })
    assert.matches("a userdata", refused(io.stdout))
    assert.matches("a thread", refused(coroutine.create(print)))
    assert.matches("cdata", refused(ffi.new "int[2]"))
  end)

  it("cycles and what is nested too deep", function()
    local loop = { name = "x" }
    loop.inner = { loop }
    assert.equal("EJSON: $.inner[1]: the table contains itself", refused(loop))
    local deep = {}
    for _ = 1, 100 do deep = { deep } end
    assert.matches("nested deeper than 100$", refused(deep))
  end)

  it("a table twice is no cycle", function()
    local shared = { 1 }
    assert.equal("[[1],[1]]", json.encode { shared, shared })
  end)
end)

describe("omni.json numbers", function()
  it("are written exactly", function()
    assert.equal("9007199254740992", json.encode(2 ^ 53))
    assert.equal("-9007199254740992", json.encode(-2 ^ 53))
    assert.equal("1723456789012345", json.encode(1723456789012345))
    assert.equal("-0.0", json.encode(-0.0))
    assert.equal("0.1", json.encode(0.1))
  end)

  it("beyond 2^53 keep the form of a real, so that they can be read", function()
    for _, value in ipairs { 2 ^ 53 + 2, 1e17, 12345678901234568, -2 ^ 63, 1e300 } do
      local text = json.encode(value)
      assert.is_truthy(text:find "[.e]", text)
      assert.equal(value, json.decode(text))
    end
  end)

  it("may be 64-bit cdata up to 2^53", function()
    assert.equal("[5,-7,9007199254740992]", json.encode { 5LL, -7LL, 2ULL ^ 53 })
    assert.matches("beyond 2%^53", refused(2LL ^ 53 + 1))
    assert.matches("beyond 2%^53", refused(-1ULL))
  end)
end)

describe("omni.json misuse", function()
  it("raises at the caller's line", function()
    assert.matches("json_spec.lua:%d+: .*string expected, got number", raised(function() return (json.decode(12)) end))
    assert.matches("json_spec.lua:%d+: .*value expected", raised(function() return (json.encode()) end))
  end)
end)

-- Random values of all kinds; what is read back must be equal, bit by bit, and its text the same.
describe("omni.json property", function()
  local seed = tonumber(os.getenv "OMNI_SEED") or os.time()
  local state = seed
  local EXPONENT = 0x7ff0000000000000ULL

  local function random(n) -- our own generator: the same seed gives the same run everywhere
    state = (state * 1103515245 + 12345) % 2 ^ 31
    return math.floor(state / 2 ^ 16) % n + 1
  end

  local function number()
    local bits = ffi.new "union { uint64_t u; double d; }"
    for _ = 1, 5 do bits.u = bits.u * 32768ULL + random(32768) - 1 end
    local special = bit.band(bits.u, EXPONENT) == EXPONENT -- a NaN from foreign bits is no value that Lua may see
    local kind = random(4)
    if kind == 1 then return random(1000) - 500 end
    if kind == 2 then return (random(32768) * 2 ^ 38 + random(32768)) * (random(2) * 2 - 3) end
    if kind == 3 then return (random(32768) - 16384) / random(1000) end
    return special and 0.5 or bits.d
  end

  local samples = { "", "a", "key", "é", "日本", "😀", "\0", "\n\r\t\b\f", '"\\/', "\127", "a b", "\226\128\168" }
  local function text()
    local parts = {}
    for i = 1, random(4) - 1 do parts[i] = samples[random(#samples)] end
    return table.concat(parts)
  end

  local function key() return (text():gsub("%z", "0")) end

  local make
  local function container(depth)
    local value, n = {}, random(5) - 1
    if random(2) == 1 then
      for i = 1, n do value[i] = make(depth + 1) end
      return json.array(value)
    end
    for _ = 1, n do value[key()] = make(depth + 1) end
    return value
  end

  function make(depth)
    local kind = random(depth < 6 and 7 or 4)
    if kind == 1 then return number() end
    if kind == 2 then return text() end
    if kind == 3 then return random(2) == 1 end
    if kind == 4 then return json.null end
    return container(depth)
  end

  it("reads back what it wrote (seed " .. seed .. ")", function()
    for _ = 1, 3000 do
      local value = make(0)
      local written = assert(json.encode(value))
      local read = json.decode(written)
      assert.same(value, read, "seed " .. seed)
      assert.equal(written, json.encode(read), "seed " .. seed)
    end
  end)

  it("never accepts a damaged text and writes another one from it unnoticed (seed " .. seed .. ")", function()
    for _ = 1, 3000 do
      local written = json.encode(container(0))
      local at, byte = random(#written), string.char(random(256) - 1)
      local damaged = written:sub(1, at - 1) .. byte .. written:sub(at + 1)
      local value, message = json.decode(damaged)
      if value == nil then
        assert.matches("^EJSON: .* at byte %d+$", message)
      else
        local again = assert(json.encode(value))
        assert.equal(again, json.encode((json.decode(again))), "seed " .. seed)
      end
    end
  end)
end)
