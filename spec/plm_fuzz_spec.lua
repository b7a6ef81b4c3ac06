local differ = require "spec.fuzz.differ"
local hosts = require "spec.fuzz.hosts"

-- Another seed in every run; a failure prints it, and OMNI_FUZZ_SEED repeats it.
local SEED = tonumber(os.getenv "OMNI_FUZZ_SEED") or os.time() % 1000000
local SANITIZED = require("omni.native.host").facts().exe:find "/[at]san/[^/]*$" ~= nil

local function campaign(name, count)
  local rates, failure = differ.campaign(hosts[name], count, SEED)
  print(("fuzz: %s, seed %d: %s"):format(name, SEED, differ.describe(rates)))
  if failure then
    error(("seed %d differs in %s\n%s"):format(failure.seed, failure.difference, failure.text), 0)
  end
  return rates
end

describe("random programs with PLM off and on", function()
  it("give the same results, errors, lines and logical trace", function()
    local count = SANITIZED and 60 or 2000
    local rates = campaign("runner", count)
    assert.equal(count, rates.programs)
    assert.is_true(rates.hoist >= count / 2)
    for _, kind in ipairs { "write", "pairs", "shadow", "raise" } do assert.is_true(rates[kind] >= count / 10) end
    assert.is_true(rates.adopted > count)
  end)

  it("do so in a host that is written to be read, too", function()
    campaign("reference", SANITIZED and 20 or 1000)
  end)
end)

describe("the fuzzer", function()
  it("makes the same program of a seed again", function()
    local generate = require "spec.fuzz.generate"
    assert.same(generate.program(7), generate.program(7))
    assert.not_equal(generate.program(7).text, generate.program(8).text)
  end)

  it("finds a pass that delivers what was read before a write, and shrinks the program", function()
    local reference = require "spec.fuzz.reference"
    local broken = { off = hosts.reference.off }
    -- Compares requests alone: the epoch is forgotten.
    function broken.on(program, text)
      local rewrite = require "omni.plm.rewrite"
      local names, early = {}, {}
      for index, tool in ipairs(program.manifest) do names[index], early[tool.name] = tool.name, true end
      local manifest = { names = function() return names end, early = function(_, name) return early[name] end }
      local rewritten, info = rewrite(text, manifest)
      return reference.run(program, rewritten, info, { epochs = false }), info
    end
    local _, failure = differ.campaign(broken, 200, 1)
    assert.is_table(failure)
    assert.is_true(#failure.text < 600)
    assert.is_string((differ.difference(broken, { text = failure.text, seed = failure.seed,
      manifest = require("spec.fuzz.generate").program(failure.seed).manifest })))
  end)
end)
