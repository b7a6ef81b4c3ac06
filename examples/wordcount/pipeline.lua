-- Counts words with coreutils alone: two stages, two processes, no Lua in either.
--
--   text → tr: one word a line, in lower case → sort | uniq -c → counts, most frequent first

local omni = require "omni"

local wordcount = omni.pipeline "wordcount"

wordcount:stage "words" {
  module = "omni.stages.filter",
  config = { command = { "sh", "-c", [[tr '[:upper:]' '[:lower:]' | tr -cs '[:alpha:]' '\n']] } },
}

wordcount:stage "count" {
  module = "omni.stages.filter",
  -- One run for the whole request: it can only answer when it has seen every word.
  config = { per = "request", command = { "sh", "-c", "grep . | sort | uniq -c | sort -k1,1nr -k2,2" } },
}

wordcount:connect("words", "count")

return wordcount
