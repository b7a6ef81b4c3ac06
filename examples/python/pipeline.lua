-- How easy each sentence of a text is to read: four stages in three languages.
--
--   sentences (Lua) → judge (Python, chunks through shared memory) → label (sh, chunks on fd 3) → report (Lua)

local omni = require "omni"

local reading = omni.pipeline "reading"

reading:stage "sentences" { module = "stages.sentences" }
reading:stage "judge" { exec = { "python3", "judge.py" }, config = { digits = 1 } }
reading:stage "label" { exec = { "sh", "label.sh" }, inline = true, config = { easy = 60 } }
reading:stage "report" { module = "stages.report" }

reading:connect("sentences", "judge")
reading:connect("judge", "label")
reading:connect("label", "report")

return reading
