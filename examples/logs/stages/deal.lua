--- Deals a text out to its ports part1, part2, … in turn, cut between lines.

local deal = {}

function deal.open(config) return { parts = config.parts } end

function deal.run(self, _, input, emit)
  local rest, turn = "", 0
  local function pass(text)
    turn = turn % self.parts + 1
    emit("part" .. turn, text)
  end
  for piece in input do
    local text = rest .. piece
    local lines = text:match "^.*\n" or ""
    rest = text:sub(#lines + 1)
    if lines ~= "" then pass(lines) end
  end
  if rest ~= "" then pass(rest) end
end

return deal
