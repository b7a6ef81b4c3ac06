--- A host for guest programs in plain Lua, on one thread and without sandbox: what P and R mean, in a page. It gives a
-- second opinion on the pass, independent of the runner, and runs some thousand programs in a second.

local world = require "spec.fuzz.world"

local reference = {}

-- Raw evaluation of postfix code; nil where it declines.
local function decline() error("declined", 0) end

local function operand(value)
  if type(value) ~= "string" and type(value) ~= "number" then decline() end
  return value
end

local function numeric(value) return tonumber(operand(value)) or decline() end

local function pop(stack)
  local value = stack[stack.n]
  stack[stack.n] = nil
  stack.n = stack.n - 1
  return value
end

local function push(stack, value)
  stack.n = stack.n + 1
  stack[stack.n] = value
end

local function two(stack, combine)
  local b, a = pop(stack), pop(stack)
  push(stack, combine(a, b))
end

local function raw_index(base, key)
  if type(base) ~= "table" or debug.getmetatable(base) then decline() end
  return rawget(base, key)
end

local simple = {
  z = function(stack) push(stack, nil) end,
  t = function(stack) push(stack, true) end,
  f = function(stack) push(stack, false) end,
  i = function(stack) two(stack, raw_index) end,
  ["."] = function(stack) two(stack, function(a, b) return operand(a) .. operand(b) end) end,
  ["+"] = function(stack) two(stack, function(a, b) return numeric(a) + numeric(b) end) end,
  ["-"] = function(stack) two(stack, function(a, b) return numeric(a) - numeric(b) end) end,
  ["*"] = function(stack) two(stack, function(a, b) return numeric(a) * numeric(b) end) end,
  ["{"] = function(stack) push(stack, {}) end,
  ["="] = function(stack)
    local value, key = pop(stack), pop(stack)
    rawset(stack[stack.n], key, value)
  end,
}

local function execute(code, env, values)
  local stack, at = { n = 0 }, 1
  while at <= #code do
    local letter = code:sub(at, at)
    local number, text = code:match("^(%d+):()", at + 1)
    if simple[letter] then
      simple[letter](stack)
      at = at + 1
    elseif letter == "v" then
      push(stack, values[tonumber(number)])
      at = text
    else
      local bytes = code:sub(text, text + number - 1)
      push(stack, letter == "s" and bytes or letter == "n" and tonumber(bytes) or letter == "g" and rawget(env, bytes))
      if letter == "g" then stack[stack.n] = rawget(env, bytes) end
      at = text + number
    end
  end
  return stack
end

local Run = {}
Run.__index = Run

local MAX_PENDING = 64

function Run:cancel(site)
  if self.slots[site] then self.slots[site], self.pending = nil, self.pending - 1 end
end

function Run:own_tool(site)
  local value = self.env
  for _, part in ipairs(site.path) do
    if type(value) ~= "table" or (value ~= self.env and debug.getmetatable(value)) then return nil end
    value = rawget(value, part)
  end
  return value ~= nil and value == self.closures[site.tool] and value or nil
end

function Run:prepare_site(index, count, code, values)
  self:cancel(index)
  local site = self.info.sites[index]
  local ok, stack = pcall(execute, code, self.env, values)
  if not ok and stack ~= "declined" then self.defect = "P raised: " .. tostring(stack) end
  if not ok or not self:own_tool(site) or self.pending >= MAX_PENDING then return end
  if stack.n ~= count then self.defect = "P left another number of values" end
  local encoded, args = pcall(world.encode_all, count, unpack(stack, 1, count))
  if not encoded then return end
  self.dice = (self.dice * 31 + index) % 101
  if self.dice < 10 then return end -- no worker is idle
  self.pending = self.pending + 1
  self.stats.prepared = self.stats.prepared + 1
  self.slots[index] = {
    tool = site.tool, args = args, epoch = self.version, result = { world.read(site.tool, args, self.version) },
  }
  self.slots[index].n = select("#", world.read(site.tool, args, self.version))
end

function Run:helpers()
  local function P(number, ...)
    local plan, at, values = self.info.plan[number], 1, { ... }
    while at <= #plan do
      local site, count, bytes, from = plan:match("^S(%d+),(%d+),(%d+):()", at)
      self:prepare_site(tonumber(site), tonumber(count), plan:sub(from, from + bytes - 1), values)
      at = from + bytes
    end
  end
  local function R(site, ...)
    self.armed = site
    return ...
  end
  return P, R
end

-- The early work of the site that R noted, if it is this very request.
function Run:adopt(name, args)
  local index = self.armed
  self.armed = nil
  local slot = index and self.slots[index]
  if not slot then return nil, index end
  self:cancel(index)
  if slot.tool == name and slot.args == args and (slot.epoch == self.version or not self.epochs) then
    self.stats.adopted = self.stats.adopted + 1
    return slot, index
  end
  self.stats.mismatch = self.stats.mismatch + 1
  return nil, index
end

local function deliver(self, index, message, ...)
  if not message then return ... end
  if index then
    for later = index + 1, self.info.sites[index].last do self:cancel(later) end
  end
  error(message, 2) -- the tool's frame is gone: a tail call
end

function Run:read_tool(name, early)
  return function(...)
    local ok, args = pcall(world.encode_all, select("#", ...), ...)
    if not ok then
      self.armed = nil
      error(args, 2)
    end
    local slot, index = self:adopt(name, args)
    local frame = debug.getinfo(2, "l")
    self.logical[#self.logical + 1] = ("%s%s line %s"):format(name, args, frame and frame.currentline)
    if not early then self.version = self.version + 1 end -- an unknown effect, for all the host knows
    if slot then return deliver(self, index, unpack(slot.result, 1, slot.n)) end
    return deliver(self, index, world.read(name, args, self.version))
  end
end

local function sorted_pairs(t)
  local keys = {}
  for key in next, t do keys[#keys + 1] = key end
  table.sort(keys, function(a, b)
    if type(a) == type(b) and (type(a) == "number" or type(a) == "string") then return a < b end
    return type(a) < type(b)
  end)
  local at = 0
  return function()
    at = at + 1
    if keys[at] ~= nil then return keys[at], t[keys[at]] end
  end
end

local function plain(value)
  local kind = type(value)
  return (kind == "table" or kind == "function" or kind == "thread") and kind or tostring(value)
end

-- The lines of whoever called us are none of the guest's.
local function raise(message, level)
  level = math.min(tonumber(level) or 1, 2)
  error(message, level > 0 and level + 1 or 0)
end

function Run:environment(program)
  local env = {
    inputs = world.inputs(), pairs = sorted_pairs, tostring = plain, assert = assert, error = raise, ipairs = ipairs,
    pcall = pcall, rawget = rawget, rawset = rawset, select = select, setmetatable = setmetatable, type = type,
    coroutine = { wrap = coroutine.wrap, yield = coroutine.yield }, string = string, table = table, math = math,
  }
  env._G = env
  function env.print(...)
    local parts = { n = select("#", ...), ... }
    for index = 1, parts.n do parts[index] = plain(parts[index]) end
    self.printed[#self.printed + 1] = table.concat(parts, " ")
  end
  self.closures = {}
  for _, tool in ipairs(program.manifest) do
    local parent, last = env, tool.name:match "[^.]+$"
    for part in tool.name:gmatch "([^.]+)%." do
      parent[part] = parent[part] or {}
      parent = parent[part]
    end
    self.closures[tool.name] = self:read_tool(tool.name, tool.early)
    parent[last] = self.closures[tool.name]
  end
  return env
end

-- Shrinking makes loops endless: once over, over at every instruction of the guest's.
local MAX_INSTRUCTIONS = 3000000

local function call_limited(run, chunk, ...)
  local function over()
    if not run.over then debug.sethook(run.hook, "", 1) end
    run.over = true
    if debug.getinfo(2, "S").source == "=guest" then error("too many instructions", 0) end
  end
  run.hook = over
  jit.off(chunk, true)
  debug.sethook(over, "", MAX_INSTRUCTIONS)
  local results = { pcall(chunk, ...) }
  debug.sethook()
  return results
end

--- Runs a text.
---@param program table of the generator
---@param text string the program's text or the rewritten one
---@param info? omni.plm.rewrite_info of the rewritten one
---@param options? { epochs: boolean } false: a host that forgets write epochs
---@return table report ok, results, error, logical, printed (texts to compare); stats; defect
function reference.run(program, text, info, options)
  local run = setmetatable({
    info = info or { sites = {}, plan = {} }, slots = {}, pending = 0, version = 0, logical = {}, printed = {},
    epochs = not (options and options.epochs == false), stats = { prepared = 0, adopted = 0, mismatch = 0 },
    dice = program.seed % 101,
  }, Run)
  run.env = run:environment(program)
  local chunk, why = load(text, "=guest", "t", run.env)
  if not chunk then return { ok = false, syntax = true, error = why, stats = run.stats } end
  local helpers = info and info.changed and { run:helpers() } or {}
  local results = call_limited(run, chunk, unpack(helpers))
  if run.over then return { ok = false, endless = true, stats = run.stats } end
  local shown = {}
  for index = 2, table.maxn(results) do
    local ok, text_of = pcall(world.encode, results[index])
    shown[index - 1] = ok and text_of or plain(results[index])
  end
  if run.pending > #run.info.sites then run.defect = "more handles than sites" end
  return {
    ok = results[1], results = table.concat(shown, " "), logical = table.concat(run.logical, "\n"),
    printed = table.concat(run.printed, "\n"), stats = run.stats, defect = run.defect,
  }
end

return reference
