local json = require "omni.json"
local run = require "spec.support.run"

local FIELDS = { name = "string", unit = "string", ours = "number", goal = "number", met = "boolean" }

describe("scripts/bench.d", function()
  for name, figures in pairs { sink = 8, router = 3, shm = 5, chunks = 4 } do
    it(("measures %s beside its peer and prints its figures"):format(name), function()
      local bench = run.start({ run.omnihost, ("scripts/bench.d/%s.lua"):format(name) },
        { env = { OMNIHOST_BENCH_QUICK = "1" } }).wait(120)
      assert.equal("", bench.stderr)
      assert.equal(0, bench.code)
      local count = 0
      for line in bench.stdout:gmatch "[^\n]+" do
        local figure = assert(json.decode(line))
        count = count + 1
        for key, kind in pairs(FIELDS) do assert.equal(kind, type(figure[key]), key) end
        assert.is_true(figure.cpus == "pinned" or figure.cpus == "unpinned")
        if figure.peer then assert.is_true(figure.ratio > 0) end
      end
      assert.equal(figures, count)
    end)
  end
end)
