-- What the measurements share: ours and the peer's in turn, pair by pair, and one JSON line per figure.

local json = require "omni.json"

local measure = {}

-- What a command prints; raises when that is nothing.
function measure.output(command)
  local pipe = assert(io.popen(command, "re"))
  local text = pipe:read "*a"
  pipe:close()
  assert(text ~= "", command .. " printed nothing")
  return text
end

local function median(values)
  table.sort(values)
  return values[math.ceil(#values / 2)]
end

local function rounded(value) return tonumber(("%.4g"):format(value)) end

--- Runs both sides in turn and prints the medians. `ratio` is peer / ours, taken within each pair, where smaller is
--- better for both: above 1 we are ahead.
---@param case { name: string, unit: string, ours: function, peer: function, more?: function, pairs?: integer }
function measure.compare(case)
  local ours, peer, ratios = {}, {}, {}
  for i = 1, case.pairs or 5 do
    ours[i], peer[i] = case.ours(), case.peer()
    ratios[i] = peer[i] / ours[i]
  end
  local line = case.more and case.more() or {}
  line.name, line.unit, line.pairs = case.name, case.unit, #ours
  line.ours, line.peer, line.ratio = rounded(median(ours)), rounded(median(peer)), rounded(median(ratios))
  io.stdout:write(json.encode(line), "\n")
  io.stdout:flush()
end

return measure
