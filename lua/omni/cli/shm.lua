--- `omnihost shm`: what lies in shared memory, and whose it is; removes what nobody will read.

local check = require "omni.check"
local cli = require "omni.cli"
local owner = require "omni.native.owner"
local shm = require "omni.native.shm"
local uv = require "luv"

local verb = {}

local HELP = [[
Usage: omnihost shm ls [--shm-dir DIR] [NAMESPACE...]
       omnihost shm gc [--shm-dir DIR] [--lock-dir DIR] [NAMESPACE...]

ls  lists the namespaces in shared memory: whose they are, how many values wait and how much they take.
gc  removes the namespaces of pipelines whose processes are all dead. A namespace that a script chose itself is removed
    only when it is named here, for its values are meant to outlive who wrote them.

Options:
  --shm-dir DIR   where the segments are (default: /dev/shm)
  --lock-dir DIR  where the lock files of the named namespaces are (default: the same)
  -h, --help      this text
]]

local function entries(dir)
  local scan, why = uv.fs_scandir(dir)
  if not scan then
    io.stderr:write(("omnihost: cannot list %s: %s\n"):format(dir, why))
    os.exit(1)
  end
  return function() return uv.fs_scandir_next(scan) end
end

-- The namespaces of a folder: by name, { namespace=, segments = { names }, bytes=, locks=, oldest=, owned= }.
local function survey(dir)
  local found = {}
  local function of(ns)
    found[ns] = found[ns] or { namespace = ns, segments = {}, bytes = 0, locks = 0, owned = owner.is_owned_name(ns) }
    return found[ns]
  end
  for name in entries(dir) do
    local ns, digits, rest = name:match "^([a-z0-9]+)_(%x+)(.*)$"
    if ns and #ns <= 9 and #digits == 20 and rest == "" then
      local stat = uv.fs_lstat(dir .. "/" .. name)
      if stat then
        local entry = of(ns)
        entry.segments[#entry.segments + 1] = name
        entry.bytes = entry.bytes + stat.blocks * 512
        entry.oldest = math.min(entry.oldest or math.huge, stat.mtime.sec)
      end
    elseif ns and #ns <= 9 and #digits == 20 and rest == ".lock" then
      local entry = of(ns)
      entry.locks = entry.locks + 1
    else
      local owned = name:match "^(o%w+)%.owner$" or name:match "^(o%w+)%.d$"
      if owned and owner.is_owned_name(owned) then of(owned) end
    end
  end
  return found
end

local function chosen(found, names)
  if #names == 0 then return check.sorted_keys(found) end
  for _, name in ipairs(names) do
    if not found[name] then
      io.stderr:write(("omnihost: nothing of namespace %s is there%s\n"):format(
        name, check.hint(name, check.sorted_keys(found))))
      os.exit(1)
    end
  end
  return names
end

local function whose(entry, dir)
  if not entry.owned then return "a script" end
  return owner.alive(entry.namespace, dir) and "alive" or "dead"
end

local function size(bytes)
  for _, unit in ipairs { "B", "KiB", "MiB" } do
    if bytes < 1024 then return ("%.4g %s"):format(bytes, unit) end
    bytes = bytes / 1024
  end
  return ("%.4g GiB"):format(bytes)
end

local function ls(options, names)
  local found = survey(options.shm_dir)
  local row = "%-10s %-9s %8s %10s %s"
  print(row:format("NAMESPACE", "OWNER", "SEGMENTS", "SIZE", "OLDEST"))
  for _, name in ipairs(chosen(found, names)) do
    local entry = found[name]
    local oldest = entry.oldest and os.date("%Y-%m-%d %H:%M:%S", entry.oldest) or "-"
    print(row:format(name, whose(entry, options.shm_dir), #entry.segments, size(entry.bytes), oldest))
  end
end

-- A namespace of a script: each key under its lock. Returns how many went, and how many somebody holds.
local function discard(entry, options)
  local connector = assert(shm.open {
    namespace = entry.namespace, shm_dir = options.shm_dir, lock_dir = options.lock_dir or options.shm_dir,
  })
  local removed, kept = 0, 0
  for _, name in ipairs(entry.segments) do
    local ok, _, code = connector:_discard_name(name)
    if ok then removed = removed + 1 elseif code ~= "ENOENT" then kept = kept + 1 end
  end
  connector:close()
  return removed, kept
end

local function gc_named(options, names)
  local found = survey(options.shm_dir)
  for _, name in ipairs(chosen(found, names)) do
    local entry = found[name]
    if entry.owned and owner.alive(name, options.shm_dir) then
      io.stderr:write(("omnihost: namespace %s belongs to a pipeline that runs; stop it instead\n"):format(name))
      os.exit(1)
    end
    local clean = entry.owned and function() return owner.sweep(name, options.shm_dir), 0 end or discard
    local removed, kept = clean(entry, options)
    print(("%s: %d segments removed%s"):format(name, removed, kept > 0 and (", %d in use left"):format(kept) or ""))
  end
end

local function gc(options, names)
  if #names > 0 then return gc_named(options, names) end
  local namespaces, segments = owner.sweep_dead(options.shm_dir)
  print(("%d namespaces of dead pipelines removed, %d segments"):format(namespaces, segments))
end

local OPTIONS = { ["--shm-dir"] = "shm_dir", ["--lock-dir"] = "lock_dir" }

local function parse(...)
  local options, names, words = { shm_dir = "/dev/shm" }, {}, { ... }
  local i = 1
  while words[i] do
    local word = words[i]
    if OPTIONS[word] then
      i = i + 1
      options[OPTIONS[word]] = words[i] or cli.usage(word .. " needs a folder")
    elseif word:sub(1, 1) == "-" then
      cli.usage(("shm: unknown option %s%s"):format(word, check.hint(word, check.sorted_keys(OPTIONS))))
    else
      names[#names + 1] = word
    end
    i = i + 1
  end
  return options, names
end

local ACTIONS = { ls = ls, gc = gc }

--- Lists or collects.
---@param action? string "ls" or "gc"
---@param ... string options and namespaces
function verb.main(action, ...)
  if action == nil or action == "-h" or action == "--help" then
    io.stdout:write(HELP)
    return os.exit(action == nil and 2 or 0)
  end
  local run = ACTIONS[action]
  if not run then
    return cli.usage(("shm: unknown action %s%s"):format(action, check.hint(action, check.sorted_keys(ACTIONS))))
  end
  run(parse(...))
end

return verb
