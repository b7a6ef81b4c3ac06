---@meta omni.native.chunks

--- Chunk adapters in C; use `omni.chunks`.
---@class omni.native.chunks
---@field methods omni.Chunks
local chunks = {}

--- A new adapter.
---@param connector omni.Shm
---@param stage_id? string
---@param src_stage_id? string
---@param window integer 0 = none
---@param budget integer bytes, 0 = none
---@param put_timeout number seconds, 0 = the default
---@param encoding "buffer"|"json"|"bytes"
---@param build_payload? string module name
---@return omni.Chunks
function chunks.new(connector, stage_id, src_stage_id, window, budget, put_timeout, encoding, build_payload) end

---@class omni.Chunks
local Chunks = {}

--- Enqueues a snapshot of the value as it is now; never waits. Raises for what cannot be carried.
---@param req string
---@param value any
---@param is_final? boolean
---@return true|nil ok
---@return string? error "ECLOSED: …" after stop
---@return string? code
function Chunks:save_async(req, value, is_final) end

--- What is queued and not final is dropped, what comes later too; the final goes out with nil data.
---@param req string
function Chunks:cancel_sender(req) end

--- Forgets a request: drops what is queued, removes what is stored and unread.
---@param req string
---@return integer removed chunks that were stored
function Chunks:cleanup_sender(req) end

--- Receives a request from chunk 0 on. Registering twice is one registration.
---@param req string
---@return true|nil ok
---@return string? error
---@return string? code
function Chunks:load_async(req) end

--- What came since the last call; requests without news do not appear.
---@return table<string, omni.Chunk[]>
function Chunks:poll_ready() end

--- When it returns nothing of this registration is delivered any more.
---@param req string
---@param discard? boolean remove what is stored and unread as well (the sender is silent, or dead)
function Chunks:cleanup_receiver(req, discard) end

--- With a window: so many chunks are waited for, even if that is more than RECV would take ahead. With a window of 1
--- RECV takes only what is wanted.
---@param req string
---@param n? integer 1
function Chunks:want(req, n) end

--- With a window: so many polled chunks were used, and are wanted less.
---@param req string
---@param n? integer 1
function Chunks:consumed(req, n) end

--- Ends both sides at once, whatever the threads do. Stored chunks stay, what was received can still be polled.
function Chunks:stop() end

--- The same as stop.
function Chunks:close() end

---@return omni.ChunksStats
function Chunks:stats() end

--- Whether the request may send a chunk now, without suspending.
---@param req string
---@param bytes? integer
---@return boolean|nil may nil, "ECODE: …", "ECODE" where it never may
---@return string? error
---@return string? code
function Chunks:_credit(req, bytes) end

--- Suspends until that may have changed.
---@param req string
---@param bytes integer 0 = unknown
---@param timeout number seconds, -1 = none
---@return boolean woken
function Chunks:_credit_wait(req, bytes, timeout) end

--- Nobody waits for credit of this request any more.
---@param req string
function Chunks:_credit_giveup(req) end

--- Whether poll_ready would give something.
---@return boolean
function Chunks:_pending() end

--- Suspends until something came, or the adapter stopped.
---@param timeout number seconds, -1 = none
---@return boolean woken
function Chunks:_wait(timeout) end

---@return boolean
function Chunks:_stopped() end
