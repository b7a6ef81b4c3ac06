-- The manual page, the help text and the program say the same.

local uv = require "luv"

local function output(command)
  local pipe = assert(io.popen(command, "re"))
  local text = pipe:read "*a"
  pipe:close()
  return text
end

local function manual()
  local file = assert(io.open("host/omnihost.1", "re"))
  local text = file:read("*a"):gsub("\\%-", "-")
  file:close()
  return text
end

describe("the manual page", function()
  local help = output(uv.exepath() .. " --help")

  it("names every verb of the help text", function()
    local verbs = assert(help:match "\nVerbs:\n(.-)\n\n")
    local text, n = manual(), 0
    for verb in ("\n" .. verbs):gmatch "\n  (%l+)" do
      n = n + 1
      assert.matches("\n.BI " .. verb .. " ", text, 1, true)
    end
    assert.is_true(n > 0)
  end)

  it("names every option of the help text", function()
    local options = assert(help:match "\nOptions:\n(.-)\n\n")
    local text, n = manual(), 0
    for option in ("\n" .. options):gmatch "[\n,] +(%-%-?%w+)" do
      n = n + 1
      assert.matches("[ \n]" .. option:gsub("%-", "%%-") .. "[ \n]", text)
    end
    assert.is_true(n > 0)
  end)

  it("carries the version of the program", function()
    local version = assert(output(uv.exepath() .. " -v"):match "^omnihost (%S+)\n$")
    assert.matches('"omnihost ' .. version .. '"', manual(), 1, true)
  end)
end)
