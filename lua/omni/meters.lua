--- What a running pipeline counts for its user.

local metrics = require "omni.metrics"

local meters = {}

--- The meters of one running pipeline.
---@param name string of the pipeline
---@param namespace string
---@return table<string, omni.metrics.counter|omni.metrics.histogram>
function meters.new(name, namespace)
  local labels = { pipeline = name, instance = namespace }
  local function ended(outcome)
    return metrics.counter("omni_requests_total", { pipeline = name, instance = namespace, outcome = outcome })
  end
  return {
    submitted = metrics.counter("omni_requests_submitted_total", labels),
    done = ended "done", failed = ended "failed", aborted = ended "aborted",
    chunks = metrics.counter("omni_output_chunks_total", labels),
    first_chunk = metrics.histogram("omni_first_chunk_microseconds", labels),
  }
end

return meters
