local base64 = require "omni.base64"
local json = require "omni.json"
local omni = require "omni"
local program = require "omni.program"
local run = require "spec.support.run"
local uv = require "luv"

local function with_dir(fn)
  local dir = assert(uv.fs_mkdtemp "/tmp/omnihost-spec-XXXXXX")
  local ok, err = xpcall(fn, debug.traceback, dir)
  os.execute("rm -rf " .. dir)
  assert(ok, err)
end

local function records_of(path)
  local all = {}
  for line in io.lines(path) do all[#all + 1] = assert(json.decode(line)) end
  return all
end

-- Seconds and loudness (root mean square, 0..1) of a sound; what sox must be told to read it.
local function sound(bytes, ...)
  local command = { "sox", "-V1", ... }
  for word in ("- -t raw -r 8000 -e signed -b 16 -c 1 -"):gmatch "%S+" do command[#command + 1] = word end
  local raw = program.run { command = command, input = bytes }
  local sum, samples = 0, math.floor(#raw / 2)
  for i = 1, samples do
    local low, high = raw:byte(2 * i - 1, 2 * i)
    local value = (low + 256 * high + 32768) % 65536 - 32768
    sum = sum + value * value
  end
  return samples / 8000, math.sqrt(sum / samples) / 32768
end

local function spoken_alone(text, voice)
  local wav = program.run { command = { "espeak-ng", "--stdout", "--stdin", "-v", voice }, input = text }
  return (sound(wav:sub(45), "-t", "raw", "-r", "22050", "-e", "signed", "-b", "16", "-c", "1"))
end

describe("examples/wordcount", function()
  it("counts as coreutils alone do", function()
    local p = run.host("examples/wordcount/pipeline.lua", "--input", "examples/wordcount/requests.jsonl")
    assert.equal(0, p.code)
    local counted = {}
    for line in p.stdout:gmatch "[^\n]+" do
      local record = json.decode(line)
      counted[record.id] = (counted[record.id] or "") .. (record.data or "")
    end
    for _, request in ipairs(records_of "examples/wordcount/requests.jsonl") do
      local expected = program.run {
        command = { "sh", "-c", [[tr '[:upper:]' '[:lower:]' | tr -cs '[:alpha:]' '\n' | grep . | sort | uniq -c |
          sort -k1,1nr -k2,2]] },
        input = request.data,
      }
      assert.equal(expected, counted[request.id])
      assert.truthy(expected:find "%d the\n")
    end
  end)
end)

describe("examples/speech", function()
  it("leaves a playable file per request: as long as espeak-ng alone, and not silent", function()
    with_dir(function(dir)
      local p = run.host("examples/speech/pipeline.lua", "--input", "examples/speech/requests.jsonl",
        "--out-dir", dir .. "/out")
      assert.equal(0, p.code, p.stderr)
      local languages = {}
      for _, request in ipairs(records_of "examples/speech/requests.jsonl") do
        local file = assert(io.open(("%s/out/%s.ogg"):format(dir, request.id), "rb"))
        local seconds, loudness = sound(file:read "*a", "-t", "ogg")
        file:close()
        local lang = request.data.lang
        local alone = spoken_alone(request.data.text, lang == "zh" and "cmn" or lang)
        local text = ("%s: %.2f s, espeak-ng alone %.2f s"):format(request.id, seconds, alone)
        assert.is_true(math.abs(seconds - alone) <= 0.2 * alone, text)
        assert.is_true(loudness > 0.01, request.id .. " is silent")
        languages[lang] = true
      end
      local n = 0
      for _ in pairs(languages) do n = n + 1 end
      assert.is_true(n >= 4)
    end)
  end)

  it("sends first audio before the last sentence is spoken", function()
    with_dir(function(dir)
      os.execute(("mkfifo %s/gate"):format(dir))
      local example = uv.fs_realpath "examples/speech"
      local file = assert(io.open(dir .. "/in", "w"))
      file:write(assert(io.open("examples/speech/requests.jsonl")):read "*l", "\n")
      file:close()
      local p = run.start({ run.omnihost, "spec/fixtures/speech_gated/pipeline.lua", "--input", dir .. "/in" },
        { env = { GATE = dir .. "/gate", EXAMPLE = example, LUA_PATH = example .. "/?.lua;;" } })
      -- The last sentence is held back: what comes now was spoken before it.
      local deadline = omni.now() + 30
      local function chunks() return select(2, p.stdout:gsub("data_b64", "")) end
      while chunks() < 3 and not p.code and omni.now() < deadline do omni.sleep(0.005) end
      assert.is_true(chunks() >= 3, p.stderr)
      assert.falsy(p.stdout:find '"finished":true')
      local heard = {}
      for data in p.stdout:gmatch '"data_b64":"([^"]*)"' do heard[#heard + 1] = base64.decode(data) end
      assert.is_true(sound(table.concat(heard), "-t", "ogg") > 0.5)
      os.execute(("timeout 20 sh -c ': > %s/gate'"):format(dir))
      assert.equal(0, p.wait(30).code)
      assert.truthy(p.stdout:find '"finished":true')
    end)
  end)

  it("splits sentences in several scripts, and not at abbreviations", function()
    local thinker = assert(loadfile "examples/speech/stages/thinker.lua")()
    local function split(text, lang)
      local all = {}
      thinker.split(text, lang, function(sentence) all[#all + 1] = sentence end)
      return all
    end
    assert.same({ "Dr. Meyer paid 4.50 for it.", "J. S. Bach did not!", "Why?" },
      split("Dr. Meyer paid 4.50 for it.  J. S. Bach did not! Why?", "en"))
    assert.same({ "Am 3. Oktober, z.B. morgens.", "Gut." }, split("Am 3. Oktober, z.B. morgens. Gut.", "de"))
    assert.same({ "« Oui ! »", "Bien." }, split("« Oui ! » Bien.", "fr"))
    assert.same({ "¿Lo oyes?", "No." }, split("¿Lo oyes? No.", "es"))
    assert.same({ "他说：“好！”", "走吧。" }, split("他说：“好！”走吧。", "zh"))
    assert.same({ "ええ。", "そう" }, split("ええ。そう", "ja"))
    assert.same({ "Heading", "Text." }, split("Heading\n\nText.", "en"))
    assert.same({}, split(" \n ", "en"))
  end)

  it("tells which request has no text", function()
    local p = run.run({ run.omnihost, "examples/speech/pipeline.lua" }, { stdin = '{"id":"x","data":{"lang":"en"}}\n' })
    assert.equal(1, p.code)
    assert.truthy(p.stdout:find("the request's data must be a text", 1, true))
  end)
end)

describe("examples/python", function()
  it("tells of each sentence what the formula says, through Lua, Python and sh", function()
    with_dir(function(dir)
      local p = run.run({ run.omnihost, "examples/python/pipeline.lua", "--input", "examples/python/requests.jsonl" },
        { env = { PYTHONPYCACHEPREFIX = dir } })
      assert.equal(0, p.code, p.stderr)
      local said = {}
      for line in p.stdout:gmatch "[^\n]+" do
        local record = json.decode(line)
        said[record.id] = (said[record.id] or "") .. (record.data and record.data .. "\n" or "")
      end
      -- Flesch by hand: 6 words of one syllable give 206.835 - 1.015 * 6 - 84.6 = 116.145.
      assert.truthy(said.cat:find("easy  116.1  The cat sat on the mat.\n", 1, true))
      assert.truthy(said.cat:find "easiest: It saw a dog!\n$")
      assert.truthy(said.law:find "^hard %-%d+%.%d  Notwithstanding")
    end)
  end)
end)

describe("examples/logs", function()
  it("counts a text of megabytes in four parts as coreutils do in one", function()
    local request = records_of("examples/logs/requests.jsonl")[1]
    if not uv.fs_stat(request.data) then return pending(request.data .. " is not installed") end
    local p = run.host("examples/logs/pipeline.lua", "--input", "examples/logs/requests.jsonl")
    assert.equal(0, p.code, p.stderr)
    local counted = {}
    for line in p.stdout:gmatch "[^\n]+" do counted[#counted + 1] = json.decode(line).data end
    local expected = program.run {
      command = { "sh", "-c", [[zcat -- "$0" | tr '[:upper:]' '[:lower:]' | tr -cs '[:alpha:]' '\n' | grep . | sort |
        uniq -c | sort -k1,1nr -k2,2]], request.data },
      env = { LC_ALL = "C" },
    }
    assert.is_true(#expected > 1e5)
    assert.is_true(table.concat(counted) == expected)
  end)
end)
