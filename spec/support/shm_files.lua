--- What the specs of the connector share: files as other writers would leave them, locks as others would hold them.
local ffi = require "ffi"
local uv = require "luv"

ffi.cdef [[ int open(const char *, int, ...); int flock(int, int); int close(int); ]]
local LOCK_EX, LOCK_UN = 2, 8
local O_RDWR, O_CREAT, O_CLOEXEC = 2, 0x40, 0x80000

local M = {}

local made = 0

--- A namespace of this process's own, so that runs side by side do not meet.
---@return string
function M.namespace()
  made = made + 1
  return ("t%x%d"):format(uv.os_getpid() % 0xffff, made % 100)
end

function M.exists(path) return uv.fs_lstat(path) ~= nil end

function M.read_file(path)
  local file = assert(io.open(path, "rbe"))
  local text = file:read "*a"
  file:close()
  return text
end

function M.write_file(path, text)
  local file = assert(io.open(path, "wbe"))
  file:write(text)
  file:close()
end

--- The length header as any writer makes it.
---@param length integer
---@return string
function M.header(length)
  local bytes = {}
  for i = 1, 8 do
    bytes[i] = string.char(length % 256)
    length = math.floor(length / 256)
  end
  return table.concat(bytes)
end

--- Somebody else's lock: flock belongs to the open file description, so another open in this process will do.
---@param path string
---@return fun() unlock
function M.lock_file(path)
  local fd = ffi.C.open(path, 2)
  assert(fd >= 0 and ffi.C.flock(fd, LOCK_EX) == 0)
  return function()
    ffi.C.flock(fd, LOCK_UN)
    ffi.C.close(fd)
  end
end

--- The same in two steps: the unlock alone makes no event for those who watch the file.
---@param path string
---@param create? boolean make the file where it is missing
---@return fun() unlock
---@return fun() close
function M.hold_lock(path, create)
  local fd = ffi.C.open(path, O_RDWR + O_CLOEXEC + (create and O_CREAT or 0), ffi.cast("int", 384)) -- 0600
  assert(fd >= 0 and ffi.C.flock(fd, LOCK_EX) == 0)
  return function() ffi.C.flock(fd, LOCK_UN) end, function() ffi.C.close(fd) end
end

return M
