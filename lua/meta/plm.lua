---@meta omni.native.plm

--- Pools of tools, runs and calls, step by step; use `omni.plm`.
---@class omni.native.plm
---@field methods table class table of runs
---@field pool_methods table class table of pools
---@field call_methods table class table of calls
---@field job_methods table class table of jobs
local plm = {}

--- Runs jobs of inline tools on this state's loop from now on.
---@param fn fun(job: omni.native.plm.Job)
function plm.home(fn) end

--- A pool of tools, numbered from 0 in their order. Inline ones run at home, on this loop.
---@param tools { name: string, early?: boolean, home?: boolean, timeout?: number, max_in_flight?: integer }[]
---@param workers integer threads at most
---@param setup any what its workers get
---@return omni.native.plm.Pool
function plm.pool(tools, workers, setup) end

--- Opens a run.
---@param pool omni.native.plm.Pool
---@param enabled boolean
---@param pending integer 0 = 64
---@param calls integer 0 = no limit
---@param timeout number seconds, -1 = none
---@return omni.native.plm.Run
function plm.run(pool, enabled, pending, calls, timeout) end

--- On a worker: the job that was assigned, which starts now.
---@return omni.native.plm.Job|nil job
---@return boolean? stop true: the pool is closed, this state ends
function plm.take() end

--- On a worker: until there may be a job; blocks the thread where its loop has nothing to do, else suspends.
function plm.rest() end

--- On a worker, in its job: blocks the thread for a while.
---@param seconds number
---@return boolean|nil slept false: cancelled; nil: suspend instead
function plm.nap(seconds) end

--- On a worker: what plm.pool was given for it.
---@return any
function plm.setup() end

---@class omni.native.plm.Pool
local Pool = {}

--- Its workers end after its last run. Idempotent.
function Pool:close() end

--- Whether it was closed.
---@return boolean
function Pool:closed() end

--- workers, idle, queued, started, died, jobs.
---@return table<string, integer>
function Pool:stats() end

--- Stands for it in the jobs of its tools.
---@return lightuserdata
function Pool:_id() end

---@class omni.native.plm.Run
local Run = {}

--- Starts a read early.
---@param tool integer
---@param args string JSON array
---@param line integer
---@return integer handle 0: not prepared
function Run:_prepare(tool, args, line) end

--- Claims a future or starts an ordinary call.
---@param handle integer 0 = ordinary
---@param tool integer
---@param args string JSON array
---@param line integer
---@return omni.native.plm.Call
function Run:_begin(handle, tool, args, line) end

--- Nobody will claim this future.
---@param handle integer
function Run:cancel_handle(handle) end

--- Cancels everything.
function Run:cancel() end

--- The same, and the run is over.
function Run:_shut() end

--- Gives the manifest's workers back; for a run that is closed and quiet.
function Run:_let_go() end

--- Whether no worker has a job of it.
---@return boolean
function Run:_quiet() end

--- Suspends until then.
---@param timeout number seconds
---@return boolean woken false on timeout
function Run:_wait(timeout) end

--- Names of the tools that still run.
---@return string
function Run:_names() end

--- What it counted so far.
---@return table<string, integer>
function Run:stats() end

--- What it did, step by step.
---@return table[]
function Run:_events() end

---@class omni.native.plm.Call
local Call = {}

--- Its response, once, if it is settled.
---@return string|nil state "OK", or the code of what ended the run
---@return string? response JSON
function Call:_take() end

--- Suspends until it may be settled.
function Call:_wait() end

---@class omni.native.plm.Job
local Job = {}

--- The running task runs the tool from now on.
---@return boolean wanted false: cancelled already
function Job:_begin() end

--- The tool has ended; the handle is released.
---@param response string JSON
function Job:_finish(response) end

--- Its tool's name.
---@return string
function Job:_tool() end

--- Its pool's id.
---@return lightuserdata
function Job:_pool() end

--- Its arguments.
---@return string json
function Job:_args() end

--- Whether nobody wants it any more.
---@return boolean
function Job:_cancelled() end

--- When it has to be done.
---@return number|nil seconds
function Job:_deadline() end
