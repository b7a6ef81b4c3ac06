---@meta omni.native.log

--- The log of the process; use `omni.log`.
---@class omni.native.log
---@field names string[] names of the levels; names[1] is level 0
local log = {}

--- Writes a line, if its level is wanted.
---@param level integer
---@param msg string
---@param fields string[] key, value as JSON text, key, …
function log.write(level, msg, fields) end

--- The level so far; sets it for the whole process where one is given.
---@param level? integer
---@return integer before
function log.level(level) end

--- Keeps lines as JSON instead of writing them, or ends that and drops what was not taken.
---@param on boolean
function log.capture(on) end

--- The lines kept since the last call.
---@return string lines
function log.take() end

return log
