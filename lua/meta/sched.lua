---@meta omni.native.sched

--- Tasks of this state, and how one waits. A wait takes two steps: `ticket`, which is left with whoever will wake the
--- task, then `park`. A ticket stands for one wait of one task: used late, it wakes nobody.
---@class omni.native.sched
local sched = {}

--- Starts a task on the next turn of the loop.
---@param fn function
---@param ... any its arguments
function sched.spawn(fn, ...) end

--- Runs a function as a task of its own, at once, until it ends or first suspends. The function must not raise.
---@param fn function
---@param ... any its arguments
---@return boolean ended
function sched.run(fn, ...) end

--- The ticket of the running task's next park. Raises where the code cannot suspend.
---@param what? string name of the function that waits, for the message
---@return number ticket
function sched.ticket(what) end

--- Suspends the running task.
---@param what string what it waits for, shown where tasks wait for ever
---@param timeout? number seconds; default none
---@param hope? any an object whose metatable's `__hope(obj)` tells whether somebody outside this state can end the wait
---@return boolean woken false on timeout
---@return any ... what `unpark` was given
function sched.park(what, timeout, hope) end

--- Wakes a task.
---@param ticket number
---@param ... any what its park returns
---@return boolean woken false when that wait is over, or has not begun
function sched.unpark(ticket, ...) end

--- Seconds on the monotonic clock.
---@return number
function sched.now() end

--- Whether the running code can suspend.
---@return boolean
function sched.can_suspend() end

--- A value as it crosses to other states. Raises where it cannot.
---@param value any
---@return string bytes
function sched.encode(value) end

--- The value of such bytes. Raises where they are none.
---@param bytes string
---@return any value
function sched.decode(bytes) end

--- Boot only: the functions behind encode and decode.
---@param encode fun(value: any): string
---@param decode fun(bytes: string): any
function sched.codec(encode, decode) end

--- Boot only: the function that runs each task's function.
---@param fn fun(task: function, ...)
function sched.guard(fn) end

--- Boot only: what a suspending task yields.
---@return lightuserdata
function sched.sentinel() end

--- For the guard: an error that nobody caught; nil ends the run silently.
---@param text? string with its traceback
function sched.failed(text) end

--- An xpcall handler: message and traceback as users want to read them.
---@param err any
---@return string|nil text nil for a nil error
function sched.traceback(err) end

return sched
