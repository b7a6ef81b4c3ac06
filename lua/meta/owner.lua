---@meta omni.native.owner

--- Namespaces that hosts make for their pipelines, and what becomes of them when nobody is left.
---@class omni.native.owner
local owner = {}

--- Makes a namespace with its owner file, locked, and its directory of lock files.
---@param shm_dir? string default /dev/shm
---@return string|nil namespace
---@return integer|string fd descriptor that holds the lock, or the message
---@return string? code
function owner.create(shm_dir) end

--- Whether a namespace has the host-made form.
---@param namespace string
---@return boolean
function owner.is_owned_name(namespace) end

--- Whether some process of a host-made namespace lives.
---@param namespace string
---@param shm_dir? string
---@return boolean
function owner.alive(namespace, shm_dir) end

--- Removes everything of one host-made namespace.
---@param namespace string
---@param shm_dir? string
---@return integer segments removed
function owner.sweep(namespace, shm_dir) end

--- Removes the namespaces of this user whose processes are all dead.
---@param shm_dir? string
---@return integer namespaces
---@return integer segments
function owner.sweep_dead(shm_dir) end

--- Tells which process groups must be killed if this process ends without unwinding.
---@param pgid integer
---@param alive boolean
function owner.note_group(pgid, alive) end

--- Tells which namespaces must be swept then.
---@param namespace string
---@param alive boolean
---@param shm_dir? string
function owner.note_namespace(namespace, alive, shm_dir) end

return owner
