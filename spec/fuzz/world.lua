--- The world behind the fuzzer's tools. What a read gives depends on how many writes came before it, so that a result
-- delivered too late shows; a few reads fail, and some give no value, or two.

local world = {}

--- Arguments as text: keys sorted, types distinct.
---@param value any
---@return string text raises where the value cannot be an argument
function world.encode(value, depth)
  local kind = type(value)
  if kind == "string" then return ("%q"):format(value) end
  if kind == "number" or kind == "boolean" or kind == "nil" then return tostring(value) end
  if kind ~= "table" then error("cannot encode a " .. kind, 0) end
  if (depth or 0) > 20 then error("nested too deeply", 0) end
  local parts = {}
  for key, item in next, value do
    parts[#parts + 1] = world.encode(key, 20) .. "=" .. world.encode(item, (depth or 0) + 1)
  end
  table.sort(parts)
  return "{" .. table.concat(parts, ",") .. "}"
end

--- The text of an array of arguments.
---@param n integer
---@param ... any
---@return string
function world.encode_all(n, ...)
  local parts = {}
  for index = 1, n do parts[index] = world.encode((select(index, ...))) end
  return "[" .. table.concat(parts, ",") .. "]"
end

local function hash(text)
  local h = 7
  for index = 1, #text do h = (h * 31 + text:byte(index)) % 1000003 end
  return h
end

--- A number from 0 to 99 for each read of each version, for delays.
---@param name string
---@param args string
---@param version integer
---@return integer
function world.dice(name, args, version) return hash(name .. args .. version .. "dice") % 100 end

--- What a read gives.
---@param name string the tool
---@param args string the arguments' text
---@param version integer writes so far
---@return string|nil message of the error it ends with
---@return ... the values
function world.read(name, args, version)
  local h = hash(name .. args .. version)
  local kind = h % 100
  if args:find("fail", 1, true) then return ("%s fails at %d"):format(name, version) end
  if h % 997 < 6 then return ("%s broke %d"):format(name, h) end
  if kind < 5 then return nil, { id = "k" .. h % 5, x = h % 7, y = "t" } end
  if kind < 30 then return nil, h % 50 end
  if kind < 34 then return nil, "two" .. h % 9, h % 9 end
  if kind < 35 then return nil, nil end
  if kind < 36 then return nil end
  if kind < 38 then return nil, h % 2 == 0 end
  return nil, ("k%d"):format(h % 6)
end

--- The inputs of every program, made anew for each run.
---@return table inputs
function world.inputs()
  return {
    a = "k1", n = 3, user = { id = "u7", name = "Zoë" }, list = { "k4", 5 },
    map = { one = 1, two = "k2", three = "k3" },
  }
end

return world
