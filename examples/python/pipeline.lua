-- How easy each sentence of a text is to read: a Python stage between two Lua stages.

local omni = require "omni"

local reading = omni.pipeline "reading"

reading:stage "sentences" { module = "stages.sentences" }
reading:stage "judge" { exec = { "python3", "judge.py" }, config = { digits = 1 } }
reading:stage "report" { module = "stages.report" }

reading:connect("sentences", "judge")
reading:connect("judge", "report")

return reading
