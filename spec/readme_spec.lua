local run = require "spec.support.run"
local uv = require "luv"

local function read(path)
  local file = assert(io.open(path, "re"))
  local text = file:read "*a"
  file:close()
  return text
end

-- The first code block of this kind behind the words.
local function block(text, words, kind)
  local _, from = text:find(words, 1, true)
  assert(from, words)
  return assert(text:match(("```%s\n(.-)```"):format(kind), from), words)
end

describe("README.md", function()
  local text = read "README.md"
  local dir

  before_each(function()
    dir = assert(uv.fs_mkdtemp "/tmp/omnihost-spec-XXXXXX")
    for name, code in pairs {
      ["hello.lua"] = block(text, "`hello.lua`:", "lua"), ["split.lua"] = block(text, "`split.lua`", "lua"),
      ["drive.lua"] = 'local hello = require "hello"\n' .. block(text, "drive its pipeline itself", "lua"),
    } do
      local file = assert(io.open(dir .. "/" .. name, "we"))
      file:write(code)
      file:close()
    end
  end)

  after_each(function() os.execute("rm -rf " .. dir) end)

  it("shows a first pipeline that works, with its real output", function()
    local command, output = text:match "```\n%$ echo '([^\n]+)' | build/omnihost hello.lua\n(.-)```"
    local p = run.run({ run.omnihost, "hello.lua" }, { stdin = command .. "\n", cwd = dir })
    assert.equal(0, p.code)
    local function timeless(s) return (s:gsub("%d+ ms", "N ms"):gsub("[%d.]+ s;", "N s;")) end
    assert.equal(timeless(output), timeless(p.stdout .. p.stderr))
  end)

  it("shows how a script drives its pipeline", function()
    local p = run.run({ run.omnihost, "drive.lua" }, { cwd = dir })
    assert.same({ 0, "ONE\nTWO\nTHREE\n", "" }, { p.code, p.stdout, p.stderr })
  end)

  it("leads to what is there", function()
    local links = 0
    for target in text:gmatch "%]%(([%w_./-]+)%)" do
      assert.is_not_nil(uv.fs_stat(target), target)
      links = links + 1
    end
    assert.is_true(links > 5)
    for module in text:gmatch "\n| `(omni%.[%w]+)`" do
      assert.is_not_nil(require("omni")[module:match "%.(.+)"], module)
    end
  end)
end)
