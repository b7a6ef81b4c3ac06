---@meta omni.native.json

--- JSON; use `omni.json`.
---@class omni.native.json
---@field array_mt table the metatable that marks arrays, one per state
---@field null lightuserdata JSON's null
local json = {}

--- The canonical text of a value.
---@param value any
---@return string|nil text
---@return string? message "EJSON: $.path: reason"
---@return "EJSON"? code
function json.encode(value) end

--- The value of a text.
---@param text string
---@return any value
---@return string? message "EJSON: reason at byte N"
---@return "EJSON"? code
function json.decode(text) end

return json
