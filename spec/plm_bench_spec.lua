local json = require "omni.json"
local run = require "spec.support.run"

describe("scripts/bench.d", function()
  it("measures guest programs beside themselves and prints its figures", function()
    local bench = run.start({ run.omnihost, "scripts/bench.d/plm.lua" }, { env = { OMNIHOST_BENCH_QUICK = "1" } })
      .wait(100)
    assert.equal("", bench.stderr)
    assert.equal(0, bench.code)
    local count = 0
    for line in bench.stdout:gmatch "[^\n]+" do
      local figure = assert(json.decode(line))
      count = count + 1
      for key, kind in pairs { name = "string", unit = "string", ours = "number" } do
        assert.equal(kind, type(figure[key]), key)
      end
      if figure.goal and not figure.name:find "missing" then assert.equal("boolean", type(figure.met)) end
    end
    assert.equal(17, count)
  end)
end)
