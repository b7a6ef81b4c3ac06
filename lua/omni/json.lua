--- JSON, strictly read and canonically written: equal values give equal text, and what was read as JSON is written as
-- the same JSON. Objects are plain tables; arrays carry a mark, so that an empty one stays `[]` (a table with an item 1
-- needs none); `null` is `json.null`. Numbers are doubles: integers beyond 2^53 are refused both ways.
-- Mark and null survive the way to another state or worker.

local check = require "omni.check"
local native = require "omni.native.json"

---@class omni.json
local json = {}

--- Stands for JSON's null, in every state. It is true in a condition: compare with it.
---@type lightuserdata
json.null = native.null

--- The text of a value. Strings must be UTF-8, keys strings; NaN, infinities, functions, arrays with holes or other
-- keys, cycles and more than 100 levels are errors that name the place: `$.items[3]`. int64 is written as an integer.
---@type fun(value: any): string|nil, string?, "EJSON"?
json.encode = native.encode

--- The value of a text (RFC 8259; any value at top level, at most 100 levels; of equal keys the last one wins; no NUL
-- character in a key).
-- Errors name the byte (from 1) up to which the text was read: `EJSON: … at byte 17`.
---@type fun(text: string): any, string?, "EJSON"?
json.decode = native.decode

--- Marks a table as an array and returns it.
---@generic T
---@param items? T[] default: a new table
---@return T[] items
function json.array(items)
  if items == nil then items = {} end
  if type(items) ~= "table" then check.misuse("json.array: a table expected, got " .. type(items)) end
  local mark = getmetatable(items)
  if mark ~= nil and mark ~= native.array_mt then
    check.misuse "json.array: the table has a metatable of its own; pass a copy of its items"
  end
  return setmetatable(items, native.array_mt)
end

--- Whether a table carries the mark of an array.
---@param value any
---@return boolean
function json.is_array(value) return type(value) == "table" and getmetatable(value) == native.array_mt end

return json
