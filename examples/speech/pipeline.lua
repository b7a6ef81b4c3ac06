-- Text is spoken while it is still being split: three stages, three processes.
--
--   text → thinker: sentences → talker: speech of each, as PCM → vocoder: one Ogg Vorbis stream per request

local omni = require "omni"

local speech = omni.pipeline("speech", { extension = "ogg" })

speech:stage "thinker" { module = "stages.thinker" }

speech:stage "talker" { module = "stages.talker" }

speech:stage "vocoder" {
  module = "omni.stages.filter",
  config = {
    per = "request", -- one encoder for the whole request; what it writes leaves at once
    command = {
      "sox", "-V1", "-t", "raw", "-r", "22050", "-e", "signed", "-b", "16", "-c", "1", "-",
      "-t", "ogg", "-r", "24000", "-",
    },
  },
}

speech:connect("thinker", "talker", { window = 4 })
speech:connect("talker", "vocoder", { window = 4 })

return speech
