---@meta omni.native.guest

--- Guest programs on threads of their own; use `omni.plm.runner`.
---@class omni.native.guest
---@field methods table class table of all guests
local guest = {}

---@class omni.native.guest.Start
---@field source string Lua text
---@field chunk? string name of the chunk, with its @ or = ("=guest")
---@field inputs? string JSON of the global `inputs`
---@field run? userdata of a run, whose tools they are
---@field tools? { name: string, id: integer }[] what the program finds, with their numbers in the manifest
---@field sites? { tool: integer, line: integer, last: integer }[] of a rewritten program; tool: index in `tools`
---@field plans? string[] of a rewritten program
---@field memory? number bytes (64 MiB)
---@field output? number bytes of print that are kept (1 MiB)
---@field instructions? number (1e9)
---@field deadline? number on `omni.now`'s clock; none if absent
---@field seconds? number how long that is, for the message

--- Starts a program. Raises where the table is wrong.
---@param options omni.native.guest.Start
---@return omni.Guest|nil guest
---@return string? message
---@return string? code
function guest.start(options) end

---@class omni.Guest
local Guest = {}

--- Makes the program end soon, with ECANCELED; so does losing the handle.
function Guest:cancel() end

---@return boolean
function Guest:_ended() end

--- Suspends until it has ended.
function Guest:_wait() end

--- Of a program that has ended: ok, code, message, line, traceback, tool, results (JSON), printed, printed_lost,
--- memory_peak, memory_left, instructions, started, ended.
---@return table
function Guest:_result() end

return guest
