-- The main task of a tool worker's state: takes one job after the other and runs its tool. Started by the host.
local exec = require "omni.plm.exec"
local native = require "omni.native.plm"

-- A tool of a module, or nil and why there is none in this state.
local function load_tool(module, name)
  local ok, tools = pcall(require, module)
  if not ok then return nil, ("ERUN: tool module %s cannot be loaded: %s"):format(module, tostring(tools)) end
  local given = type(tools) == "table" and tools[name]
  if type(given) ~= "table" or type(given.call) ~= "function" then
    return nil, ("ENOENT: tool module %s has no tool %s on a worker"):format(module, name)
  end
  return { name = name, call = given.call, params = given.params }
end

return function()
  local modules, tools = native.setup(), {}
  while true do
    local job, stop = native.take()
    if job then
      local name, why = job:_tool(), nil
      local tool = tools[name]
      if not tool then
        tool, why = load_tool(modules[name], name)
        tools[name] = tool
      end
      exec.run(job, tool, why)
    elseif stop then
      return
    else
      native.rest()
    end
  end
end
