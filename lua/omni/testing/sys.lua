--- Forced faults and interleavings for specs: rules on the calls that the engine makes to the system.
--
--     local rule = sys.rule { op = "POINT", match = "sink:drained", action = "hold" }
--     ...                    -- something makes another thread come there
--     assert(rule:wait())    -- it stands there now
--     rule:release()
--
-- Only test builds have the hooks: `sys.enabled` says so, and elsewhere everything but `sys.reset` raises.

local check = require "omni.check"
local native = require "omni.native.sys"
local sched = require "omni.native.sched"

local sys = { enabled = native.enabled, ops = native.ops }

---@class omni.sys.rule
---@field hits fun(self: omni.sys.rule): integer calls that it acted on
---@field reached fun(self: omni.sys.rule): boolean a thread is held by it now
---@field release fun(self: omni.sys.rule) lets go who is held; the rule stays in force
---@field remove fun(self: omni.sys.rule) takes it out of force and lets go who is held
local Rule = native.Rule

---@class omni.sys.rule.options
---@field op string one of `sys.ops`: "UNLINKAT", "POINT" …
---@field match? string substring of the path, or of the point's name
---@field skip? integer matching calls that pass first (0)
---@field times? number calls that it acts on (1); math.huge for no limit
---@field action? "fail"|"hold"|"kill" default "fail"
---@field errno? string what a failing call sets: "ENOSPC" (EIO)
---@field when? "before"|"after" the call (before)

local options = {
  op = { type = "string" },
  match = { type = { "string", "nil" } },
  skip = { type = "number", default = 0 },
  times = { type = "number", default = 1 },
  action = { type = "string", default = "fail" },
  errno = { type = "string", default = "EIO" },
  when = {
    type = "string",
    default = "before",
    check = function(when) return when == "before" or when == "after", 'must be "before" or "after"' end,
  },
}

--- Puts a rule in force. Rules are asked in the order in which they were added; the first that acts decides.
---@param given omni.sys.rule.options
---@return omni.sys.rule
function sys.rule(given)
  local o = check.table(given, options, "omni.testing.sys.rule")
  return native.rule(o.op, o.match, o.skip, o.times, o.action, o.errno, o.when == "after")
end

--- Suspends until a thread is held by the rule.
---@param timeout? number seconds (10)
---@return true|nil reached
---@return string? message
---@return string? code "ETIMEDOUT"
function Rule:wait(timeout)
  local deadline = sched.now() + (timeout or 10)
  while not self:reached() do
    if not self:_wait(math.max(0, deadline - sched.now())) then
      return nil, "ETIMEDOUT: no thread came to the rule", "ETIMEDOUT"
    end
  end
  return true
end

--- Calls of an operation so far, since the start or the last reset.
---@param op string
---@return integer
function sys.count(op) return native.count(op) end

--- Moves the engine's clock on. Deadlines notice when they are next looked at.
---@param seconds number
function sys.advance(seconds) native.advance(seconds) end

--- Passes a named point, as the engine does.
---@param name string
function sys.point(name) native.point(name) end

--- Removes all rules, lets go everybody held and sets the counts to 0. Does nothing in builds without hooks.
function sys.reset()
  if native.enabled then native.reset() end
end

return sys
