-- Notes about customers: text files in a folder.
local json = require "omni.json"
local uv = require "luv"

local folder = debug.getinfo(1, "S").source:match "^@(.*)/tools/[^/]*$" or "."
local DATA, VAR = folder .. "/data/", folder .. "/var/"

-- A name that leads nowhere else.
local function checked(name)
  if not name:find "^[%w_-]+$" then error(("EINVAL: %s is no name of a note"):format(name), 0) end
  return name
end

local function read(path)
  local file = io.open(path, "re")
  if not file then return nil end
  local text = file:read "*a"
  file:close()
  return text
end

return {
  ["notes.list"] = {
    description = "names of the notes",
    allow_early_read = true,
    call = function()
      local names, request = {}, assert(uv.fs_scandir(DATA))
      for file in function() return uv.fs_scandir_next(request) end do names[#names + 1] = file:match "^(.*)%.txt$" end
      table.sort(names)
      return json.array(names)
    end,
  },

  ["notes.read"] = {
    description = "the text of a note, the latest version",
    params = { { type = "string" } },
    allow_early_read = true,
    call = function(_, name)
      checked(name)
      return read(VAR .. name .. ".txt") or read(DATA .. name .. ".txt")
        or error(("ENOENT: there is no note %s"):format(name), 0)
    end,
  },

  ["notes.write"] = {
    description = "a new version of a note; a write",
    params = { { type = "string" }, { type = "string" } },
    call = function(_, name, text)
      local file = assert(io.open(VAR .. checked(name) .. ".txt", "we"))
      file:write(text)
      file:close()
      return #text
    end,
  },
}
