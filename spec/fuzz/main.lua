--- scripts/fuzz: programs with PLM off and on, as many as asked for.

package.path = (arg[0]:match "^(.*)/spec/fuzz/[^/]*$" or ".") .. "/?.lua;" .. package.path

local differ = require "spec.fuzz.differ"
local hosts = require "spec.fuzz.hosts"

local SLICE = 500 -- programs from one report of progress to the next

local count, seed, name = tonumber(arg[1]), tonumber(arg[2]) or os.time() % 1000000, arg[3] or "runner"
if not count or not hosts[name] then
  io.stderr:write "usage: scripts/fuzz N [SEED [runner|reference]]\n"
  os.exit(2)
end
io.stdout:setvbuf "line"
print(("seed %d, %s"):format(seed, name))
for first = 0, count - 1, SLICE do
  local rates, failure = differ.campaign(hosts[name], math.min(SLICE, count - first), seed + first)
  print(("%7d  %s"):format(first, differ.describe(rates)))
  if failure then
    print(("seed %d differs in %s\n%s"):format(failure.seed, failure.difference, failure.text))
    os.exit(1)
  end
end
