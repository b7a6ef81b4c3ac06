-- Speaks one sentence after the other with espeak-ng: a chunk of PCM (22,050 Hz, 16 bits, one channel) for each.

local program = require "omni.program"

local talker = {}

-- What espeak-ng calls the languages that our requests name otherwise.
local VOICES = { zh = "cmn" }

-- espeak-ng writes a WAV file whose header does not know the length: everything behind "data" and its size is sound.
local function pcm_of(wav)
  local _, at = wav:find("data", 1, true)
  if not at or wav:sub(1, 4) ~= "RIFF" then error("espeak-ng wrote no WAV file", 0) end
  return wav:sub(at + 5)
end

function talker.run(_, request, input, emit)
  for sentence in input do
    local wav = program.run {
      command = { "espeak-ng", "--stdout", "--stdin", "-v", VOICES[sentence.lang] or sentence.lang },
      input = sentence.text,
      request = request,
    }
    emit(pcm_of(wav))
  end
end

return talker
