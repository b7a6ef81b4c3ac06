--- `omnihost --platform`: what the host stands on, for reports of bugs.

local host = require "omni.native.host"
local uv = require "luv"

local platform = {}

local SHM = "/dev/shm"

local function version_of(module)
  local ok, found = pcall(require, module)
  return ok and tostring(found._VERSION or "?") or "not installed"
end

local function jit_state()
  local state = { jit.status() }
  return (state[1] and "on" or "off") .. " (" .. table.concat(state, " ", 2) .. ")"
end

local function shared_memory()
  local free, total = host.free_space(SHM)
  if not free then return SHM .. ": " .. total end
  return ("%s, %.0f MiB free of %.0f MiB"):format(SHM, free / 2 ^ 20, total / 2 ^ 20)
end

--- Prints it.
function platform.print()
  local facts = host.facts()
  local cpus = uv.cpu_info() or {}
  local rows = {
    { "omnihost", facts.version },
    { "luajit", facts.luajit .. (require("ffi").abi("gc64") and ", GC64" or "") },
    { "jit", jit_state() },
    { "libuv", facts.libuv },
    { "luv", uv.version and uv.version_string() or "?" },
    { "cjson", (version_of("cjson"):gsub("^%?$", "installed")) },
    { "system", ("%s %s %s"):format(facts.os, facts.kernel, facts.machine) },
    { "cpu", ("%d x %s"):format(#cpus, cpus[1] and cpus[1].model or "?") },
    { "shm", shared_memory() },
  }
  for _, row in ipairs(rows) do print(("%-9s %s"):format(row[1], row[2])) end
end

return platform
