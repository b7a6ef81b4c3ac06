--- Where results go: JSON lines, and files for bytes under --out-dir.

local base64 = require "omni.base64"
local json = require "omni.json"
local sched = require "omni.native.sched"
local uv = require "luv"

local output = {}

---@class omni.cli.output
local Output = {}
Output.__index = Output

--- Opens the outputs.
---@param options {output: string|nil, out_dir: string|nil, extension: string|nil}
---@return omni.cli.output|nil
---@return string? error
function output.open(options)
  local fd, failure = 1
  io.stdout:flush() -- what the script printed comes first
  if options.output and options.output ~= "-" then
    fd, failure = uv.fs_open(options.output, "w", tonumber("666", 8))
    if not fd then return nil, failure end
  end
  if options.out_dir then
    local made, why, code = uv.fs_mkdir(options.out_dir, tonumber("755", 8))
    local there = code == "EEXIST" and uv.fs_stat(options.out_dir)
    if not made and not there then return nil, why end
    if there and there.type ~= "directory" then return nil, ("--out-dir: %s is no folder"):format(options.out_dir) end
  end
  return setmetatable({
    fd = fd, dir = options.out_dir, extension = options.extension, used = {}, waiting = {},
  }, Output)
end

local function escaped(c) return ("%%%02X"):format(c:byte()) end

--- A request's label as a file name that cannot leave its folder or hide in it. Different labels of up to 120 bytes
--- have different names.
---@param id string
---@return string name
function output.safe_name(id)
  local name = id:gsub("[%c/\\:*?\"<>|%%]", escaped):gsub("^[%.%- ]", escaped)
  if #name > 120 then name = name:sub(1, 120):gsub("[\192-\255][\128-\191]*$", "") end
  return name == "" and "%" or name
end

-- Labels may repeat; files of one run do not.
local function file_name(self, id)
  local base = output.safe_name(id)
  local suffix = self.extension and "." .. self.extension or ""
  local name, n = base .. suffix, 1
  while self.used[name] do
    n = n + 1
    name = ("%s-%d%s"):format(base, n, suffix)
  end
  self.used[name] = true
  return name
end

-- Suspends until a descriptor that does not block takes more, or has no reader any more. As a write: 0 bytes.
local function await_room(fd)
  local poll, why = uv.new_poll(fd)
  if not poll then return nil, why end
  local ticket = sched.ticket "writing results"
  poll:start("w", function()
    poll:stop()
    sched.unpark(ticket)
  end)
  sched.park "writing results"
  poll:close()
  return 0
end

local function write_all(fd, text)
  local from = 1
  while from <= #text do
    local written, why, code = uv.fs_write(fd, text:sub(from), -1)
    if code == "EAGAIN" then written, why = await_room(fd) end
    if not written then return nil, why end
    from = from + written
  end
  return true
end

--- Writes one JSON line; suspends while the reader is slow.
---@param record table
---@return boolean|nil ok nil when the reader of the output is gone
---@return string? error
---@return string? code EJSON when it is the record that has no form in JSON
function Output:line(record)
  local text, why, code = json.encode(record)
  if not text then return nil, why, code end
  while self.writing do -- one at a time: lines stay whole
    local ticket = sched.ticket "writing results"
    self.waiting[#self.waiting + 1] = ticket
    sched.park "writing results"
  end
  self.writing = true
  local ok, failure = write_all(self.fd, text .. "\n")
  self.writing = false
  local ticket = table.remove(self.waiting, 1)
  if ticket then sched.unpark(ticket) end
  return ok, failure
end

--- Writes how a request failed as a JSON line.
---@param id string|number
---@param why string
---@param code string|nil
---@return boolean|nil ok
---@return string? error
function Output:error(id, why, code)
  if not json.encode(why) then why = why:gsub("[\128-\255]", function(c) return ("\\%d"):format(c:byte()) end) end
  return self:line { id = id, error = why, code = code }
end

---@class omni.cli.output.request
local Request = {}
Request.__index = Request

--- The outputs of one request.
---@param id string|number
---@return omni.cli.output.request
function Output:request(id)
  return setmetatable({ output = self, id = id }, Request)
end

-- A file has its name once it is whole; the name it has before begins with a dot, as no safe name does.
local function to_file(self, bytes)
  if not self.file then
    local dir, name = self.output.dir, file_name(self.output, tostring(self.id))
    self.path, self.part = ("%s/%s"):format(dir, name), ("%s/.%s.part"):format(dir, name)
    local file, why = io.open(self.part, "we")
    if not file then return nil, "EIO: " .. why, "EIO" end
    self.file = file
  end
  local ok, why = self.file:write(bytes)
  if not ok then return nil, ("EIO: %s: %s"):format(self.path, why), "EIO" end
  return self.path
end
-- Compiled, `file:write` may run twice where it fails, and the second time there is nothing left to fail with: the
-- error would be lost.
jit.off(to_file)

--- Writes a chunk as a line, its bytes to the request's file where there is a folder for files.
---@param chunk {stage: string, index: integer, data: any, finished: boolean}
---@return boolean|nil ok
---@return string? error
---@return string? code the request has failed; without a code, the output
function Request:chunk(chunk)
  local record = { id = self.id, stage = chunk.stage, chunk = chunk.index, finished = chunk.finished }
  if type(chunk.data) == "string" and self.output.dir then
    local path, why, code = to_file(self, chunk.data)
    if not path then return nil, why, code end
    record.file, record.bytes = path, #chunk.data
  elseif type(chunk.data) == "string" and not json.encode(chunk.data) then
    record.data_b64 = base64.encode(chunk.data)
  else
    record.data = chunk.data
  end
  return self.output:line(record)
end

--- Ends the request: its file gets its name, or goes away where the request failed.
---@param error string|nil
---@param code string|nil
---@return string|nil error the same, or how the end of the file failed
---@return string|nil code
function Request:close(error, code)
  if not self.file then return error, code end
  local ok, why = self.file:close()
  if ok and not error then ok, why = uv.fs_rename(self.part, self.path) end
  if not ok and not error then error, code = ("EIO: %s: %s"):format(self.path, why), "EIO" end
  if error then os.remove(self.part) end
  return error, code
end
jit.off(Request.close)

return output
