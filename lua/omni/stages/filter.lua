--- A stage that runs a Unix program: chunks go to its stdin, its stdout becomes chunks.
---
---   config = { command = { "sort", "-u" }, per = "chunk" | "request", chunk_bytes = 65536, env = {…}, cwd = "…" }
---
--- per = "chunk" (the default): one run of the program for each chunk; its whole output is one chunk, or pieces of
--- chunk_bytes where that is given. per = "request": one run for the whole request; what it writes is sent on at once,
--- in pieces of at most chunk_bytes. A program that fails, fails the request with the end of its stderr.

local check = require "omni.check"
local omni = require "omni"
local program = require "omni.program"

local filter = {}

local CONFIG = {
  command = { type = "strings", check = function(v) return #v > 0, "must name a program" end },
  per = {
    type = "string", default = "chunk",
    check = function(v) return v == "chunk" or v == "request", 'must be "chunk" or "request"' end,
  },
  env = { type = { "map", "nil" } },
  cwd = { type = { "string", "nil" } },
  chunk_bytes = { type = { "integer", "nil" }, check = function(v) return v >= 1, "must be 1 or more" end },
}

--- What is wrong with a configuration; asked before any process starts.
---@param config table
---@return string[] problems
function filter.problems(config)
  local problems, checked = check.problems(config, CONFIG, "config")
  if #problems == 0 and not program.find(checked.command[1], checked.cwd) then
    problems[1] = ('program "%s" is not found'):format(checked.command[1])
  end
  return problems
end

function filter.open(config)
  return check.table(config, CONFIG, "config")
end

local function bytes_of(chunk)
  if type(chunk) == "string" then return chunk end
  if type(chunk) == "number" then return tostring(chunk) end
  error(("EINVAL: a filter reads bytes, but a chunk is a %s"):format(type(chunk)), 0)
end

local function emit_pieces(bytes, limit, emit)
  for at = 1, #bytes, limit do emit(bytes:sub(at, at + limit - 1)) end
end

local function started(config, request)
  local running, why = program.start {
    command = config.command, env = config.env, cwd = config.cwd, request = request,
  }
  return running or error(why, 0)
end

local function per_chunk(config, request, input, emit)
  for chunk in input do
    local output = program.run {
      command = config.command, env = config.env, cwd = config.cwd, request = request, input = bytes_of(chunk),
    }
    if #output > 0 then emit_pieces(output, config.chunk_bytes or #output, emit) end
  end
end

-- The input goes in from a task of its own, while this one sends the output on.
local function feed(running, input)
  local ok, why = pcall(function()
    for chunk in input do
      if not running:write(bytes_of(chunk)) then break end -- it reads no more, as `head` does
    end
  end)
  if not ok then
    running.feed_error = why
    running:kill()
  end
  running:close_input()
end

local function per_request(config, request, input, emit)
  local running = started(config, request)
  omni.spawn(feed, running, input)
  local ok, why = pcall(function()
    for bytes in function() return running:read() end do emit_pieces(bytes, config.chunk_bytes or 65536, emit) end
  end)
  if not ok then running:kill() end
  local ended, failure = running:wait()
  local root = not ok and why or running.feed_error or not ended and failure
  if root then error(root, 0) end
end

function filter.run(config, request, input, emit)
  local run = config.per == "request" and per_request or per_chunk
  return run(config, request, input, emit)
end

return filter
