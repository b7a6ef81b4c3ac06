---@meta omni.native.host

--- The process and this state's run, for the Lua that is compiled in.
---@class omni.native.host
local host = {}

--- os.exit: ends the run in order and does not return.
---@param code? integer|boolean true or nil = 0, false = 1
function host.exit(code) end

--- A test run takes the errors of callbacks and spawned tasks; no function ends that.
---@param fn? fun(text: string): boolean true if it took it
function host.on_error(fn) end

--- Raises an error in the main task where it waits.
---@param text string
---@return boolean raised false when it does not wait
function host.raise_main(text) end

--- Called for SIGINT and SIGTERM instead of ending the run; no function ends that.
---@param fn? fun(name: string, count: integer)
function host.on_signal(fn) end

--- Sets the folder in which the script's modules are found. Before any other state exists.
---@param dir string
function host.script_dir(dir) end

--- Lines of a descriptor go to a sink, which closes at the stream's end. Once a process.
---@param fd integer
---@param sink omni.Sink
---@return true|nil
---@return string? message
---@return string? code
function host.control(fd, sink) end

--- Children do not get this descriptor.
---@param fd integer
---@return true|nil
---@return string? message
---@return string? code
function host.cloexec(fd) end

---@param fd integer
---@return boolean
function host.isatty(fd) end

--- Space of the file system that holds a folder.
---@param dir string
---@return number|nil free bytes
---@return number|string total bytes in all, or the message
---@return string? code
function host.free_space(dir) end

--- Sends a signal to a process group.
---@param pgid integer
---@param signal integer
---@return true|nil
---@return string? message
---@return string? code
function host.kill_group(pgid, signal) end

--- Active, referenced handles of this state's loop.
---@return integer
function host.active_handles() end

--- Tasks of this state, the main one included.
---@return integer
function host.tasks() end

--- Doorbells rung for this state so far.
---@return number
function host.bells() end

--- Versions and places: exe, script_dir, lua_root, version, luajit, libuv, os, kernel, machine, build.
---@return table<string, string>
function host.facts() end

return host
