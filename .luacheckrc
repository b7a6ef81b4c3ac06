std = "luajit"
max_line_length = 120
cache = false
exclude_files = { "build/**", "lua/meta/**" }
files["spec/"] = { std = "+busted" }
