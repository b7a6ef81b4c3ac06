-- Counts the words of large logs, each log in four parts at once.
--
--                    ┌► count1 ┐
--   path ► read ► deal ►  …    ► merge ► words, most frequent first
--                    └► count4 ┘

local omni = require "omni"

local logs = omni.pipeline "logs"
local PARTS = 4

-- The request's data is a path; the text leaves as it is unpacked.
logs:stage "read" {
  module = "omni.stages.filter",
  config = { per = "request", command = { "sh", "-c", 'exec zcat -f -- "$(cat)"' } },
}

logs:stage "deal" { module = "stages.deal", config = { parts = PARTS } }
logs:connect("read", "deal")

local counters = {}
for part = 1, PARTS do
  local count = "count" .. part
  counters[part] = count
  logs:stage(count) {
    module = "omni.stages.filter",
    env = { LC_ALL = "C" },
    config = {
      per = "request",
      command = { "sh", "-c", [[tr '[:upper:]' '[:lower:]' | tr -cs '[:alpha:]' '\n' | grep . | sort | uniq -c]] },
    },
  }
  logs:edge(("deal.part%d -> %s"):format(part, count))
  logs:connect(count, "merge")
end

logs:stage "merge" { module = "stages.merge", config = { counters = counters } }

return logs
