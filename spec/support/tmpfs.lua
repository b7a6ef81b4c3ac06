--- Runs omnihost where a directory is a small file system of its own: what is full there is really full.
local run = require "spec.support.run"

local M = {}

local MOUNT = 'mount -t tmpfs -o "$1" tmpfs "$2" && shift 2 && exec "$@"'

local function start(options, dir, ...)
  return run.run { "unshare", "-m", "sh", "-c", MOUNT, "sh", options, dir, ... }
end

local available

--- Whether this process may mount; else specs that need it are pending.
---@return boolean
function M.available()
  if available == nil then available = start("size=4k", "/dev/shm", "true").code == 0 end
  return available
end

--- Runs code as a script in which everything must succeed; a traceback fails the spec.
---@param options string of mount: "size=64k,nr_inodes=8"
---@param dir string where the small file system is, for this script alone
---@param code string
---@param ... string its arguments
---@return string stdout
function M.code(options, dir, code, ...)
  local p = start(options, dir, run.omnihost, "-e", code, ...)
  assert(p.code == 0, p.stderr .. p.stdout)
  return p.stdout
end

return M
