--- Counters, gauges and histograms of the whole process. Values are whole numbers (a fraction is cut off), so choose
-- the unit to suit: bytes, microseconds. Counting never raises: what is not a number, or a negative one where only
-- growth makes sense, is counted in `omni_metrics_dropped`.

local check = require "omni.check"
local native = require "omni.native.metrics"

---@class omni.metrics
local metrics = {}

---@class omni.metrics.counter
---@field add fun(self, n?: number) adds n, default 1
---@field value fun(self): number

---@class omni.metrics.gauge
---@field add fun(self, n?: number) adds n, default 1; may be negative
---@field set fun(self, n: number)
---@field value fun(self): number

---@class omni.metrics.histogram
---@field observe fun(self, n: number) counts n in the bucket of its power of two
---@field value fun(self): number how many values it has seen

---@class omni.metrics.entry
---@field name string
---@field labels table<string, string>
---@field kind "counter"|"gauge"|"histogram"
---@field value number how many values, for a histogram
---@field sum? number of a histogram's values
---@field p50? number upper edge of the bucket that holds the median; p99 likewise
---@field p99? number
---@field buckets? {le: number, count: number}[] those that are not empty; le: the largest value that belongs there

local ESCAPES = { ["\\"] = "\\\\", ['"'] = '\\"', ["\n"] = "\\n" }
local PLAIN = { string = true, number = true, boolean = true }

local function label_text(where, key, value)
  if type(key) ~= "string" or not key:find "^[%a_][%w_]*$" then
    check.misuse(("%s: label name %s must be letters, digits and _"):format(where, tostring(key)))
  elseif not PLAIN[type(value)] then
    check.misuse(("%s: label %s must be a string, number or boolean, got %s"):format(where, key, type(value)))
  end
  return ('%s="%s"'):format(key, tostring(value):gsub("%z", ""):gsub('[\\"\n]', ESCAPES))
end

-- `a="1",b="x"`, keys sorted: equal tables name the same metric.
local function labels_text(where, labels)
  if labels == nil then return "" end
  if type(labels) ~= "table" then check.misuse(where .. ": labels must be a table, got " .. type(labels)) end
  local list = {}
  for key, value in pairs(labels) do list[#list + 1] = label_text(where, key, value) end
  table.sort(list)
  return table.concat(list, ",")
end

local function new(kind, name, labels)
  local where = "metrics." .. kind
  if type(name) ~= "string" then check.misuse(where .. ": name must be a string, got " .. type(name)) end
  if not name:find "^[%a_:][%w_:]*$" then
    check.misuse(("%s: name %q must be letters, digits, _ and :"):format(where, name))
  end
  return native.new(kind, name, labels_text(where, labels))
end

--- A value that only grows. Equal name and labels give the same metric, in every state; it is listed as long as
-- somebody holds it.
---@param name string
---@param labels? table<string, string|number|boolean>
---@return omni.metrics.counter
function metrics.counter(name, labels) return new("counter", name, labels) end

--- A value that goes up and down.
---@param name string
---@param labels? table<string, string|number|boolean>
---@return omni.metrics.gauge
function metrics.gauge(name, labels) return new("gauge", name, labels) end

--- How values are distributed, by powers of two.
---@param name string
---@param labels? table<string, string|number|boolean>
---@return omni.metrics.histogram
function metrics.histogram(name, labels) return new("histogram", name, labels) end

-- Behind the closing quote of a label's value that starts at pos.
local function value_end(text, pos)
  while true do
    local at = text:find('["\\]', pos)
    if not at or text:sub(at, at) == '"' then return at or #text + 1 end
    pos = at + 2
  end
end

local function parse_labels(text)
  local labels, pos = {}, 1
  while true do
    local _, quote, key = text:find('^,?([%a_][%w_]*)="', pos)
    if not key then return labels end
    local last = value_end(text, quote + 1)
    labels[key] = text:sub(quote + 1, last - 1):gsub("\\(.)", function(c) return c == "n" and "\n" or c end)
    pos = last + 1
  end
end

--- All metrics of the process, in order of name and labels.
---@return omni.metrics.entry[]
function metrics.snapshot()
  local list = native.list()
  for _, entry in ipairs(list) do entry.labels = parse_labels(entry.labels) end
  return list
end

local function line(out, name, labels, value)
  out[#out + 1] = ("%s%s %.0f\n"):format(name, labels ~= "" and "{" .. labels .. "}" or "", value)
end

local function histogram_lines(out, entry)
  local prefix, seen = entry.labels ~= "" and entry.labels .. "," or "", 0
  for _, bucket in ipairs(entry.buckets) do
    seen = seen + bucket.count
    if bucket.le < 2 ^ 63 then line(out, entry.name .. "_bucket", ('%sle="%.0f"'):format(prefix, bucket.le), seen) end
  end
  line(out, entry.name .. "_bucket", prefix .. 'le="+Inf"', entry.value)
  line(out, entry.name .. "_sum", entry.labels, entry.sum)
  line(out, entry.name .. "_count", entry.labels, entry.value)
end

--- All metrics in Prometheus' text format (version 0.0.4).
---@return string
function metrics.text()
  local out, last = {}, nil
  for _, entry in ipairs(native.list()) do
    if entry.name ~= last then out[#out + 1] = ("# TYPE %s %s\n"):format(entry.name, entry.kind) end
    last = entry.name
    if entry.kind == "histogram" then
      histogram_lines(out, entry)
    else
      line(out, entry.name, entry.labels, entry.value)
    end
  end
  return table.concat(out)
end

return metrics
