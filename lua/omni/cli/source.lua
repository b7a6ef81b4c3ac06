--- Lines of a file, a pipe or a terminal, read only as fast as they are asked for.

local sched = require "omni.native.sched"
local uv = require "luv"
local wire = require "omni.wire"

local source = {}

---@class omni.cli.source
---@field name string for messages
---@field failure string|nil why reading ended before the end of the input
local Source = {}
Source.__index = Source

local BLOCK = 65536

--- Opens a source of lines.
---@param path string|nil nil or "-": standard input
---@return omni.cli.source|nil
---@return string? error
function source.open(path)
  local fd, why = 0
  if path and path ~= "-" then
    fd, why = uv.fs_open(path, "r", 0)
    if not fd then return nil, why end
  end
  local self = setmetatable({ fd = fd, name = path and path ~= "-" and path or "stdin", lines = {}, first = 1 }, Source)
  local function add(line) self.lines[#self.lines + 1] = line end
  self.feed = wire.lines(add, function() add(false) end)
  local kind = uv.guess_handle(fd)
  if kind == "pipe" or kind == "tty" then
    self.stream = kind == "tty" and uv.new_tty(fd, true) or uv.new_pipe()
    if kind == "pipe" then self.stream:open(fd) end
  end
  return self
end

local function wake(self)
  local ticket = self.ticket
  self.ticket = nil
  if ticket then sched.unpark(ticket) end
end

-- What was read; nil at the end. After an error, a line that has only begun is no request.
local function take(self, bytes, why)
  if why then self.failure = ("%s: %s"):format(self.name, why) else self.feed(bytes) end
  if not bytes then self.ended = true end
end

-- Reads one block; suspends where it may take long.
local function read(self)
  if not self.stream then
    local bytes, why = uv.fs_read(self.fd, BLOCK, -1)
    return take(self, bytes ~= "" and bytes or nil, why)
  end
  self.stream:read_start(function(why, bytes)
    self.stream:read_stop()
    take(self, bytes, why)
    wake(self)
  end)
  self.ticket = sched.ticket "reading requests"
  sched.park "reading requests"
end

--- The next line; suspends.
---@return string|false|nil line false for one that is too long; nil at the end, or after `stop`
function Source:next()
  while not self.stopped do
    local line = self.lines[self.first]
    if line ~= nil then
      self.first = self.first + 1
      return line
    end
    self.lines, self.first = {}, 1
    if self.ended then return nil end
    read(self)
  end
end

--- Ends the source: a `next` that waits returns nil.
function Source:stop()
  self.stopped = true
  if self.stream and not self.stream:is_closing() then self.stream:close() end
  wake(self)
end

return source
