std = "luajit"
max_line_length = 120
cache = false
exclude_files = { "build/**", "lua/meta/**" }
files["spec/"] = { std = "+busted" }
-- The host wraps coroutine.resume and coroutine.wrap, so that a suspension passes through a user's coroutines.
files["lua/omni/boot.lua"] = { globals = { "coroutine", "os", "package", "require" } }
-- Guest programs find their tools as globals.
files["examples/tools/*.lua"] = { read_globals = { "array", "inputs", "notes", "null", "rates", "shop" } }
