--- Runs programs with PLM off and on, compares what may not differ, and shrinks the first program where it does.

local generate = require "spec.fuzz.generate"

local differ = {}

local COMPARED = { "ok", "results", "error", "logical", "printed", "syntax" }

---@class spec.fuzz.host
---@field off fun(program: table, text: string): table report
---@field on fun(program: table, text: string): table report, table info
---@field finish? fun(program: table)
---@field lanes? fun(lane: fun()) runs a function in several tasks at once

--- Why the two runs of a program are not the same; nil when they are.
---@param host spec.fuzz.host
---@param program table
---@param text? string default: the program's own
---@return string|nil difference
---@return table off report
---@return table on report
---@return table info of the pass
function differ.difference(host, program, text)
  local off = host.off(program, text or program.text)
  local on, info = host.on(program, text or program.text)
  if off.endless or on.endless then return nil, off, on, info end
  if off.defect or on.defect then return off.defect or on.defect, off, on, info end
  if info and info.reason and info.reason:find "gave up" then return info.reason, off, on, info end
  for _, key in ipairs(COMPARED) do
    if off[key] ~= on[key] then
      return ("%s: off %s\n      on  %s"):format(key, tostring(off[key]), tostring(on[key])), off, on, info
    end
  end
  return nil, off, on, info
end

local function lines_of(text)
  local lines = {}
  for line in (text .. "\n"):gmatch "(.-)\n" do lines[#lines + 1] = line end
  return lines
end

local function without(lines, first, last)
  local left = {}
  for index, line in ipairs(lines) do
    if index < first or index > last then left[#left + 1] = line end
  end
  return left
end

-- Edits within a line that make it smaller.
local function smaller(line)
  local found = {}
  for from, to in line:gmatch "()%b()()" do
    found[#found + 1] = line:sub(1, from) .. line:sub(to - 1)
    found[#found + 1] = line:sub(1, from - 1) .. line:sub(to)
  end
  for from, to in line:gmatch "(),[^,]*()" do found[#found + 1] = line:sub(1, from - 1) .. line:sub(to) end
  for from, to in line:gmatch "()%S+%s*()" do found[#found + 1] = line:sub(1, from - 1) .. line:sub(to) end
  return found
end

--- A smaller program with a difference.
---@param host spec.fuzz.host
---@param program table
---@return string text
function differ.shrink(host, program)
  local lines, tries = lines_of(program.text), 3000
  local function fails(candidate)
    tries = tries - 1
    local text = table.concat(candidate, "\n")
    return tries > 0 and load(text, "=guest", "t") and (differ.difference(host, program, text)) ~= nil
  end
  local again = true
  while again and tries > 0 do
    again = false
    for size = math.max(1, math.floor(#lines / 2)), 1, -1 do
      for first = #lines - size + 1, 1, -1 do
        local candidate = without(lines, first, first + size - 1)
        if first + size - 1 <= #lines and fails(candidate) then lines, again = candidate, true end
      end
    end
    for index = 1, #lines do
      for _, line in ipairs(smaller(lines[index])) do
        local candidate = { unpack(lines) }
        candidate[index] = line
        if fails(candidate) then
          lines, again = candidate, true
          break
        end
      end
    end
  end
  return table.concat(lines, "\n")
end

local function count_program(rates, program, off, on, info)
  rates.programs = rates.programs + 1
  if info and info.changed then rates.hoist = rates.hoist + 1 end
  if not off.ok then rates.raise = rates.raise + 1 end
  for name in pairs(program.features) do
    if name ~= "raise" then rates[name] = rates[name] + 1 end
  end
  rates.prepared = rates.prepared + (on.stats.prepared or 0)
  rates.adopted = rates.adopted + (on.stats.adopted or 0)
end

--- Runs programs until one differs.
---@param host spec.fuzz.host
---@param count integer
---@param seed integer of the first; the others follow
---@return table rates of programs that hoist, write, iterate, shadow, raise; calls prepared and adopted
---@return table|nil failure seed, difference, text (shrunk)
function differ.campaign(host, count, seed)
  local rates = { programs = 0, hoist = 0, write = 0, pairs = 0, shadow = 0, raise = 0, prepared = 0, adopted = 0 }
  local index, failed = 0, nil
  local function lane()
    while index < count and not failed do
      local program = generate.program(seed + index)
      index = index + 1
      local difference, off, on, info = differ.difference(host, program)
      if difference then failed = failed or { program = program, difference = difference }
      else count_program(rates, program, off, on, info) end
      if host.finish then host.finish(program) end
    end
  end
  if host.lanes then host.lanes(lane) else lane() end
  if not failed then return rates end
  local program = failed.program
  local text = differ.shrink(host, program)
  local difference = differ.difference(host, program, text) or failed.difference
  if host.finish then host.finish(program) end
  return rates, { seed = program.seed, difference = difference, text = text }
end

--- The rates as one line.
---@param rates table
---@return string
function differ.describe(rates)
  local parts = { ("%d programs"):format(rates.programs) }
  for _, name in ipairs { "hoist", "write", "pairs", "shadow", "raise" } do
    parts[#parts + 1] = ("%s %.0f %%"):format(name, 100 * rates[name] / math.max(1, rates.programs))
  end
  return table.concat(parts, ", ") .. (", %d prepared, %d adopted"):format(rates.prepared, rates.adopted)
end

return differ
