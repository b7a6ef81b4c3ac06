local root = (debug.getinfo(1, "S").source:match "^@(.*)/" or "spec") .. "/../lua/meta/"

-- Names of the modules written in C, as the program offers them.
local function modules()
  local names = {}
  for name in pairs(package.preload) do names[#names + 1] = name:match "^omni%.native%.(.+)$" end
  table.sort(names)
  return names
end

-- What a stub declares: keys of the module, and methods of its classes.
local function declared(name)
  local file = assert(io.open(root .. name .. ".lua", "re"), "there is no stub lua/meta/" .. name .. ".lua")
  local text = file:read "*a"
  file:close()
  local keys, methods = {}, {}
  local head = text:match "\n%-%-%-@class omni%.native%.[%w_]+\n(.-)local " or ""
  for key in head:gmatch "%-%-%-@field ([%w_]+)" do keys[key] = true end
  for key in text:gmatch "\nfunction [%w_]+%.([%w_]+)%(" do keys[key] = true end
  for key in text:gmatch "\nfunction [%w_]+:([%w_]+)%(" do methods[key] = true end
  return keys, methods, text
end

local function sorted(set)
  local list = {}
  for key in pairs(set) do list[#list + 1] = key end
  table.sort(list)
  return list
end

-- Methods that C put into a class table; Lua adds its own to the same one.
local function c_functions(class)
  local names = {}
  for key, value in pairs(class) do
    if type(value) == "function" and debug.getinfo(value, "S").what == "C" then names[key] = true end
  end
  return names
end

describe("stubs of the modules written in C", function()
  for _, name in ipairs(modules()) do
    it("describe all that omni.native." .. name .. " exports, and nothing else", function()
      local exported, classes = {}, {}
      for key, value in pairs(require("omni.native." .. name)) do
        exported[key] = true
        if type(value) == "table" and key:find "methods$" then
          for method in pairs(c_functions(value)) do classes[method] = true end
        end
      end
      local keys, methods = declared(name)
      assert.same(sorted(exported), sorted(keys))
      if exported.methods then assert.same(sorted(classes), sorted(methods)) end
    end)

    it("are valid Lua for omni.native." .. name, function()
      local _, _, text = declared(name)
      assert.is_function(loadstring(text))
      assert.is_truthy(text:find("---@meta omni.native." .. name .. "\n", 1, true))
    end)
  end
end)
