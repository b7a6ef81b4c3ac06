std = "luajit"
max_line_length = 120
cache = false
exclude_files = { "build/**", "lua/meta/**" }
files["spec/"] = { std = "+busted" }
-- The host wraps coroutine.resume and coroutine.wrap, so that a suspension passes through a user's coroutines.
files["lua/omni/boot.lua"] = { globals = { "coroutine", "os", "package", "require" } }
