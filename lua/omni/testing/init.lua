--- For specs, ours and users': that nothing is left behind, and errors of callbacks go to the spec that runs.
--- `omnihost test` does both for every `it`; elsewhere: `local before = testing.snapshot()` … `testing.check(before)`.
local host = require "omni.native.host"
local omni = require "omni"
local owner = require "omni.native.owner"
local uv = require "luv"

local M = {}

-- What omnihost itself leaves in shared memory if it leaks: segments, locks, owner files, lock directories.
local FORMS = { "^%l[%l%d]*_%x+$", "^%d[%l%d]*_%x+$", "_%x+%.lock$", "^o[a-z2-7]+%.owner", "^o[a-z2-7]+%.d$" }

local function entries(dir)
  local names, request = {}, uv.fs_scandir(dir)
  while request do
    local name = uv.fs_scandir_next(request)
    if not name then break end
    names[#names + 1] = name
  end
  return names
end

local function read(path)
  local file = io.open(path, "re")
  if not file then return "" end
  local text = file:read "*a" or ""
  file:close()
  return text
end

local function descriptors()
  local fds = {}
  for _, fd in ipairs(entries "/proc/self/fd") do
    -- The descriptor that this listing itself used is gone by now.
    local target = uv.fs_readlink("/proc/self/fd/" .. fd)
    if target then fds["descriptor " .. fd .. " -> " .. target] = true end
  end
  return fds
end

-- Threads whose life is the process's: libuv's pool for file system calls, the signal thread.
local function threads()
  local found = {}
  for _, tid in ipairs(entries "/proc/self/task") do
    local name = read("/proc/self/task/" .. tid .. "/comm"):gsub("%s+$", "")
    found[("thread %s (%s)"):format(tid, name)] = name ~= "libuv-worker" or nil
  end
  return found
end

local function children()
  local found = {}
  for _, tid in ipairs(entries "/proc/self/task") do
    for pid in read("/proc/self/task/" .. tid .. "/children"):gmatch "%d+" do
      local command = read("/proc/" .. pid .. "/cmdline"):gsub("%z", " ")
      found[("process %s: %s"):format(pid, command)] = true
    end
  end
  return found
end

-- A pipeline that lives is somebody else's, or its processes are reported as children anyway.
local function is_ours(name)
  local namespace = name:match "^(o[a-z2-7]+)[_.]"
  return not (namespace and owner.is_owned_name(namespace) and owner.alive(namespace))
end

local function shared_memory()
  local found = {}
  for _, name in ipairs(entries "/dev/shm") do
    for _, form in ipairs(FORMS) do
      if name:find(form) and is_ours(name) then found["/dev/shm/" .. name] = true end
    end
  end
  return found
end

-- A loop opens /dev/null with its first stream and keeps it: that is no leak, so let it happen before any snapshot.
uv.new_pipe():close()

---@class omni.testing.Snapshot what there is at one moment; opaque

--- What there is now: descriptors, threads, child processes, shared memory, handles and tasks of this state.
---@return omni.testing.Snapshot
function M.snapshot()
  return {
    descriptors = descriptors(), threads = threads(), children = children(), shared_memory = shared_memory(),
    handles = host.active_handles(), tasks = host.tasks(),
  }
end

--- What is there now and was not at the snapshot, in words.
---@param before omni.testing.Snapshot
---@return string[] leaks empty when nothing is left
function M.leaks(before)
  local now, leaks = M.snapshot(), {}
  for _, kind in ipairs { "descriptors", "threads", "children", "shared_memory" } do
    for what in pairs(now[kind]) do
      if not before[kind][what] then leaks[#leaks + 1] = what end
    end
  end
  for _, kind in ipairs { "handles", "tasks" } do
    local more = now[kind] - before[kind]
    if more > 0 then leaks[#leaks + 1] = ("%d more %s in this state"):format(more, kind) end
  end
  table.sort(leaks)
  return leaks
end

--- Collects garbage and turns the loop until nothing is left, or until the patience is over.
---@param before omni.testing.Snapshot
---@param patience? number seconds (2)
---@return string[] leaks
function M.settle(before, patience)
  local deadline = omni.now() + (patience or 2)
  while true do
    collectgarbage()
    local leaks = M.leaks(before)
    if #leaks == 0 or omni.now() > deadline then return leaks end
    omni.sleep(0.001)
  end
end

--- Raises if something is left behind.
---@param before omni.testing.Snapshot
---@param patience? number seconds (2)
function M.check(before, patience)
  local leaks = M.settle(before, patience)
  if #leaks > 0 then error("left behind:\n  " .. table.concat(leaks, "\n  "), 2) end
end

return M
