--- Adds up what the counters say, and lists the words by how often they came.

local merge = {}

local BLOCK = 1000 -- lines in a chunk

-- Adds the whole lines of a text; returns what comes after them.
local function add(counts, text)
  local rest = 1
  for n, word, after in text:gmatch " *(%d+) ([^\n]*)\n()" do
    counts[word] = (counts[word] or 0) + tonumber(n)
    rest = after
  end
  return text:sub(rest)
end

local function by_count(counts)
  local words = {}
  for word in pairs(counts) do words[#words + 1] = word end
  table.sort(words, function(a, b)
    if counts[a] ~= counts[b] then return counts[a] > counts[b] end
    return a < b
  end)
  return words
end

function merge.open(config) return { counters = config.counters } end

function merge.run(self, _, input, emit)
  local counts = {}
  for _, counter in ipairs(self.counters) do
    local rest = "" -- a piece may end within a line
    for piece in input[counter] do rest = add(counts, rest .. piece) end
  end
  local lines = {}
  for _, word in ipairs(by_count(counts)) do
    lines[#lines + 1] = ("%7d %s\n"):format(counts[word], word)
    if #lines == BLOCK then
      emit(table.concat(lines))
      lines = {}
    end
  end
  if #lines > 0 then emit(table.concat(lines)) end
end

return merge
