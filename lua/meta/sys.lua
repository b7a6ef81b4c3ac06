---@meta omni.native.sys

--- Rules behind the seam to the system; use `omni.testing.sys`.
---@class omni.native.sys
---@field enabled boolean false in builds without hooks, where every function raises
---@field ops string[] names of the operations
---@field Rule table the methods of rules
local sys = {}

--- Puts a rule in force.
---@param op string
---@param match? string
---@param skip? number
---@param times? number
---@param action? "fail"|"hold"|"kill"
---@param errno? string
---@param after? boolean
---@return omni.sys.rule
function sys.rule(op, match, skip, times, action, errno, after) end

--- Calls of an operation since the start or the last reset.
---@param op string
---@return integer
function sys.count(op) end

--- Removes all rules, lets go everybody held, sets the counts to 0.
function sys.reset() end

--- Moves the engine's clock on.
---@param seconds number
function sys.advance(seconds) end

--- Passes a named point.
---@param name string
function sys.point(name) end

return sys
