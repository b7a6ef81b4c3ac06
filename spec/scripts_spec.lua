local root = io.popen("pwd", "re"):read "*l"
local dir

local function write(name, text, mode)
  local file = assert(io.open(dir .. "/" .. name, "we"))
  file:write(text)
  file:close()
  if mode then assert(os.execute(("chmod %s %s/%s"):format(mode, dir, name)) == 0) end
end

local function read(name)
  local file = io.open(dir .. "/" .. name, "re")
  if not file then return nil end
  local text = file:read "*a"
  file:close()
  return text
end

-- Exit code, stdout and stderr of a shell command.
local function run(command)
  local status = os.execute(("{ %s\n} >%s/out 2>%s/err </dev/null"):format(command, dir, dir))
  return status / 256, read "out", read "err"
end

before_each(function()
  dir = os.tmpname()
  os.remove(dir)
  assert(os.execute("mkdir " .. dir) == 0)
end)

after_each(function() os.execute("rm -rf " .. dir) end)

describe("scripts/setup", function()
  -- A PATH with nothing but what the script needs, where no package is installed and everything is only told.
  local function bare_machine(user)
    for _, tool in ipairs { "bash", "comm", "env", "sed", "sort" } do
      assert(os.execute(("ln -s $(command -v %s) %s/%s"):format(tool, dir, tool)) == 0)
    end
    write("dpkg-query", "#!/bin/sh\nexit 1\n", "+x")
    write("id", ("#!/bin/sh\necho %d\n"):format(user), "+x")
    write("apt-get", ('#!/bin/sh\necho "$DEBIAN_FRONTEND $*" >>%s/told\necho noise\n'):format(dir), "+x")
    return ("PATH=%s %s/scripts/setup"):format(dir, root)
  end

  it("does nothing and says nothing where all is there", function()
    assert.same({ 0, "", "" }, { run "scripts/setup" })
  end)

  it("prints the exact apt-get line and stops where it may not install", function()
    local code, out, err = run(bare_machine(1000))
    assert.equal(1, code)
    assert.equal("", out)
    local packages = err:match "apt%-get update && apt%-get install %-y %-%-no%-install%-recommends ([^\n]+)\n"
    assert.is_string(packages)
    local _, listed = run "scripts/setup --list | sort"
    assert.equal(listed, packages:gsub(" ", "\n") .. "\n")
    assert.is_nil(read "told")
  end)

  it("installs what is missing as root and keeps stdout clean", function()
    local code, out, err = run(bare_machine(0))
    assert.equal(0, code)
    assert.equal("", out)
    assert.matches("installing .*cmake", err)
    local told = read "told"
    assert.matches("^[^\n]* update\n", told)
    assert.matches("\nnoninteractive [^\n]*install %-y %-%-no%-install%-recommends [^\n]*cmake[^\n]*\n$", told)
  end)

  it("installs through sudo where it is not root", function()
    local command = bare_machine(1000)
    write("sudo", '#!/bin/sh\n[ "$1" = -n ] && exit 0\nexec "$@"\n', "+x")
    assert.equal(0, (run(command)))
    assert.matches("install", read "told")
  end)
end)

describe("scripts/run", function()
  it("runs in the caller's folder, and stdout is the script's alone", function()
    write("hello.lua", 'io.write(arg[1], "\\n", io.open("beside") and "beside" or "elsewhere") os.exit(7)\n')
    write("beside", "")
    assert.same({ 7, "a b\nbeside", "" }, { run(("cd %s && %s/scripts/run hello.lua 'a b'"):format(dir, root)) })
  end)
end)

describe("scripts/test", function()
  local specs = [[
    it("passes", function() end)
    it("fails", function() error "boom" end)
    it("waits", function() pending "for the moon" end)
  ]]

  it("counts what passed, failed and was skipped in its last line", function()
    write("x_spec.lua", specs)
    local code, out = run(("CI= scripts/test %s/x_spec.lua"):format(dir))
    assert.equal(1, code)
    assert.matches("\n1 passed, 1 failed, 1 skipped\n$", out)
    assert.matches("%-%-%- failed\nnot ok [^\n]*fails\n[^\n]*boom", out)
    assert.matches("%-%-%- skipped\n[^\n]*waits: [^\n]*for the moon\n", out)
  end)

  it("counts a skip as a failure under CI", function()
    write("x_spec.lua", specs)
    local _, out = run(("CI=true scripts/test %s/x_spec.lua"):format(dir))
    assert.matches("\n1 passed, 2 failed, 1 skipped\n$", out)
  end)

  it("succeeds where all passed, and only then", function()
    write("x_spec.lua", 'it("passes", function() end)')
    local code, out = run(("scripts/test %s/x_spec.lua"):format(dir))
    assert.equal(0, code)
    assert.matches("\n1 passed, 0 failed\n$", out)
    assert.equal(1, (run(("scripts/test %s/none_spec.lua"):format(dir))))
  end)

  it("reports a spec that takes the process with it", function()
    write("x_spec.lua", 'local uv = require "luv"\nit("dies", function() uv.kill(uv.os_getpid(), 9) end)')
    local code, out = run(("scripts/test %s/x_spec.lua"):format(dir))
    assert.equal(1, code)
    assert.matches("last spec: [^\n]*dies", out)
    assert.matches("\n0 passed, 1 failed\n$", out)
  end)
end)

describe("an installed omnihost", function()
  it("has program, manual page and stubs in their places, and needs nothing else of the tree", function()
    local build = require("luv").exepath():match "^(.*)/"
    assert.equal(0, (run(("cmake --install %s --prefix %s/usr"):format(build, dir))))
    local _, placed = run(("cd %s/usr && find . -type f | grep -v meta/ | sort"):format(dir))
    assert.equal("./bin/omnihost\n./share/man/man1/omnihost.1\n", placed)
    assert.same({ 0, "", "" }, { run(("diff host/omnihost.1 %s/usr/share/man/man1/omnihost.1"):format(dir)) })
    assert.same({ 0, "", "" }, { run(("diff -r -x README.md lua/meta %s/usr/share/omnihost/meta"):format(dir)) })
    write("own.lua", [[
      local omni = require "omni"
      local p = omni.pipeline "own"
      p:stage "loud" { module = "loud" }
      for chunk in p:start():submit { data = "installed" }:chunks() do print(chunk.data) end
    ]])
    write("loud.lua", "return { run = function(_, _, input, emit) for s in input do emit(s:upper()) end end }\n")
    assert.same({ 0, "INSTALLED\n", "" }, { run(("cd %s && PATH=usr/bin:$PATH omnihost own.lua"):format(dir)) })
  end)
end)

describe("OMNIHOST_LUA", function()
  local program = require("luv").exepath()

  it("takes the place of the Lua that is compiled in, in every state and process; either folder will do", function()
    assert.equal(0, os.execute(("mkdir -p %s/tree/lua && cp -r lua/omni %s/tree/lua"):format(dir, dir)))
    write("tree/lua/omni/extra.lua", 'return function() return "changed" end\n')
    write("stage.lua", 'return { run = function(_, _, _, emit) emit(require("omni.extra")()) end }\n')
    write("s.lua", [[
      local omni = require "omni"
      print(require "omni.extra"(), (omni.thread "omni.extra":join()))
      local p = omni.pipeline "p"
      p:stage "a" { module = "stage" }
      for chunk in p:start():submit { data = 1 }:chunks() do print(chunk.data) end
    ]])
    for _, tree in ipairs { dir .. "/tree", dir .. "/tree/lua" } do
      local code, out, err = run(("OMNIHOST_LUA=%s %s %s/s.lua"):format(tree, program, dir))
      assert.same({ 0, "changed\tchanged\nchanged\n", "" }, { code, out, err })
    end
    assert.matches("module 'omni.extra' not found", (select(3, run(("%s %s/s.lua"):format(program, dir)))))
  end)

  it("says so where there is nothing of the kind", function()
    local code, _, err = run(("OMNIHOST_LUA=%s %s -v"):format(dir, program))
    assert.equal(2, code)
    assert.matches("OMNIHOST_LUA: there is no omni/init.lua in " .. dir, err, 1, true)
    assert.equal(0, (run(("OMNIHOST_LUA= %s -v"):format(program))))
  end)
end)

describe("the embedding of Lua", function()
  local function embed(text)
    assert(os.execute(("mkdir -p %s/lua/omni/cli"):format(dir)) == 0)
    write("lua/omni/init.lua", text)
    write("lua/omni/cli/run.lua", "return 1")
    return run(("luajit scripts/embed.lua %s/x.c %s/lua %s/lua/omni/init.lua %s/lua/omni/cli/run.lua")
      :format(dir, dir, dir, dir))
  end

  it("names modules as require does and keeps lines for tracebacks", function()
    assert.same({ 0, "", "" }, { embed "return 2" })
    local text = read "x.c"
    assert.matches('{"omni", ', text, 1, true)
    assert.matches('{"omni.cli.run", ', text, 1, true)
    local name = { ("@builtin/omni/init.lua"):byte(1, -1) }
    assert.matches(table.concat(name, ","), text:gsub("\n", ""), 1, true)
  end)

  it("stops at a syntax error and says where it is", function()
    local code, _, err = embed "return ("
    assert.equal(1, code)
    assert.matches("^builtin/omni/init.lua:1: ", err)
  end)
end)
