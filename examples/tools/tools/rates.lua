-- Exchange rates from an HTTP service on loopback. Whoever loads this module first in a process starts the service, on
-- its own loop; that is the state that reads the manifest. The workers, which load it later, are its clients.
local json = require "omni.json"
local omni = require "omni"
local uv = require "luv"

local PORT = "OMNI_EXAMPLE_RATES_PORT"
local ANSWERS_AFTER = 15 -- ms, as a service far away would

-- ---- the service ----

local RATES = { EUR = 1, USD = 0.92, JPY = 0.0061 }

local function response(request)
  local currency = request:match "^GET /rate/(%a+) "
  local rate = RATES[currency]
  local body = json.encode(rate and { currency = currency, rate = rate } or { error = "no such currency" })
  return ("HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s"):format(
    rate and "200 OK" or "404 Not Found", #body, body)
end

local function answer(client, request)
  local timer = uv.new_timer()
  timer:start(ANSWERS_AFTER, 0, function()
    timer:close()
    if client:is_closing() then return end
    client:write(response(request))
    client:shutdown(function() client:close() end)
  end)
end

local function serve()
  local server = uv.new_tcp()
  assert(server:bind("127.0.0.1", 0))
  assert(server:listen(64, function()
    local client, request = uv.new_tcp(), ""
    server:accept(client)
    client:read_start(function(_, bytes)
      if not bytes then return client:is_closing() or client:close() end
      request = request .. bytes
      if request:find("\r\n\r\n", 1, true) then
        client:read_stop()
        answer(client, request)
      end
    end)
  end))
  server:unref() -- it serves as long as there is something else to do
  uv.os_setenv(PORT, tostring(server:getsockname().port))
end

if not uv.os_getenv(PORT) then serve() end

-- ---- the client ----

-- GET over a connection of its own; suspends until the answer is whole.
local function get(path)
  local events = omni.sink.new()
  local socket = uv.new_tcp()
  socket:connect("127.0.0.1", tonumber(uv.os_getenv(PORT)), function(why)
    if why then return events:put { error = why } end
    socket:write(("GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"):format(path))
    socket:read_start(function(err, bytes) events:put { error = err, bytes = bytes } end)
  end)
  local text = ""
  local ok, why = pcall(function() -- a cancel ends the wait by an error
    while true do
      for _, event in ipairs(events:get_batch()) do
        if event.error then error("EIO: " .. event.error, 0) end
        if not event.bytes then return end
        text = text .. event.bytes
      end
    end
  end)
  socket:close()
  if not ok then error(why, 0) end
  return tonumber(text:match "^HTTP/1.1 (%d+)"), text:match "\r\n\r\n(.*)$"
end

return {
  ["rates.to_eur"] = {
    description = "what one unit of a currency is in euros",
    params = { { type = "string" } },
    allow_early_read = true,
    timeout = 2,
    call = function(_, currency)
      local status, body = get("/rate/" .. currency)
      if status ~= 200 then error(("ENOENT: no rate for %s"):format(currency), 0) end
      return assert(json.decode(body)).rate
    end,
  },
}
