-- The builder of the chunk specs, loaded by name on the SAVE thread. What it does is written in the value.
local builds = 0

---@param value any a table { gate=, raise=, suspend=, data= }, or anything else, which goes through as it is
---@param req string
---@param is_final boolean
---@return any payload
return function(value, req, is_final)
  builds = builds + 1
  if type(value) ~= "table" then return value end
  if value.gate then -- blocks like a program that computes
    local gate = assert(io.open(value.gate, "re"))
    gate:read "*l"
    gate:close()
  end
  if value.raise then error(value.raise, 0) end
  if value.suspend then require("omni").sleep(0) end
  if value.tell then return { req = req, is_final = is_final, builds = builds } end
  return value.data
end
