-- Makes a C file with the bytecode of Lua modules: luajit embed.lua OUT.c ROOT FILE…
-- ROOT/omni/cli/run.lua is the module "omni.cli.run", ROOT/omni/init.lua is "omni".

local out_path, root = arg[1], arg[2]

local function read(path)
  local file = assert(io.open(path, "rb"))
  local text = file:read("*a")
  file:close()
  return text
end

local function module_name(relative)
  return (relative:gsub("%.lua$", ""):gsub("/init$", ""):gsub("/", "."))
end

-- The chunk's name is part of the bytecode and, as nothing is stripped, what tracebacks show.
local function compile(relative)
  local chunk, message = loadstring(read(root .. "/" .. relative), "@builtin/" .. relative)
  if not chunk then
    io.stderr:write(message, "\n")
    os.exit(1)
  end
  return string.dump(chunk)
end

local function bytes_of(code)
  local lines = {}
  for at = 1, #code, 64 do
    lines[#lines + 1] = table.concat({ code:byte(at, at + 63) }, ",")
  end
  return table.concat(lines, ",\n")
end

local files = {}
for i = 3, #arg do
  files[#files + 1] = arg[i]:sub(#root + 2)
end
table.sort(files)

local parts, rows = { '#include "vm/builtin.h"\n' }, {}
for i, relative in ipairs(files) do
  local code = compile(relative)
  parts[#parts + 1] = ("\nstatic const unsigned char code_%d[] = {\n%s};\n"):format(i, bytes_of(code))
  rows[#rows + 1] = ('  {"%s", code_%d, %d},\n'):format(module_name(relative), i, #code)
end
parts[#parts + 1] = "\nconst struct omni_builtin omni_builtins[] = {\n" .. table.concat(rows) .. "  {0}};\n"

local file = assert(io.open(out_path, "wb"))
assert(file:write(table.concat(parts)))
assert(file:close())
