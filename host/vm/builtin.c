/* What every state starts with: built-in modules, the search path, the wrapped coroutine library. */
#include "vm/builtin.h"

#include "lib/modules.h"
#include "vm/state.h"

#include <stdio.h>
#include <string.h>

static const struct omni_builtin *find_builtin(const char *name) {
  for (const struct omni_builtin *b = omni_builtins; b->name != NULL; b++)
    if (strcmp(b->name, name) == 0) return b;
  return NULL;
}

static int load_builtin(lua_State *L, const struct omni_builtin *b) {
  char chunk[128];
  snprintf(chunk, sizeof chunk, "@builtin/%s", b->name); /* bytecode keeps its own name; this one is for errors */
  return luaL_loadbuffer(L, (const char *)b->code, b->len, chunk);
}

/* OMNIHOST_LUA: the module's file in the source tree, named as the built-in one. */
static bool load_source(lua_State *L, const char *name) {
  char relative[256], path[4096], chunk[300];
  snprintf(relative, sizeof relative, "%s", name);
  for (char *c = relative; *c != '\0'; c++)
    if (*c == '.') *c = '/';
  static const char *const forms[] = {"%s/%s.lua", "%s/%s/init.lua"};
  for (size_t i = 0; i < 2; i++) {
    snprintf(path, sizeof path, forms[i], vm_conf.lua_root, relative);
    FILE *file = fopen(path, "re");
    if (file == NULL) continue;
    luaL_Buffer text;
    luaL_buffinit(L, &text);
    size_t n;
    do {
      n = fread(luaL_prepbuffer(&text), 1, LUAL_BUFFERSIZE, file);
      luaL_addsize(&text, n);
    } while (n > 0);
    fclose(file);
    luaL_pushresult(&text);
    size_t len;
    const char *bytes = lua_tolstring(L, -1, &len);
    snprintf(chunk, sizeof chunk, "@builtin/%s%s", relative, i == 0 ? ".lua" : "/init.lua");
    if (luaL_loadbuffer(L, bytes, len, chunk) != 0) lua_error(L);
    lua_remove(L, -2);
    return true;
  }
  return false;
}

/* package.loaders entry. Ours come first, so that a file named omni.lua beside a script cannot hide them. */
static int searcher(lua_State *L) {
  const char *name = luaL_checkstring(L, 1);
  if (strncmp(name, "omni", 4) != 0 || (name[4] != '.' && name[4] != '\0')) return 0;
  if (vm_conf.lua_root != NULL && load_source(L, name)) return 1;
  const struct omni_builtin *b = find_builtin(name);
  if (b == NULL) {
    lua_pushfstring(L, "\n\tno built-in module '%s'", name);
    return 1;
  }
  if (load_builtin(L, b) != 0) lua_error(L);
  return 1;
}

/* table.insert(package.loaders, 2, searcher): behind package.preload. */
static void add_searcher(lua_State *L) {
  lua_getglobal(L, "table");
  lua_getfield(L, -1, "insert");
  lua_getglobal(L, "package");
  lua_getfield(L, -1, "loaders");
  lua_remove(L, -2);
  lua_pushinteger(L, 2);
  lua_pushcfunction(L, searcher);
  lua_call(L, 3, 0);
  lua_pop(L, 1);
}

void vm_builtin_path(lua_State *L) {
  const char *dir = vm_conf.script_dir;
  if (dir[0] == '\0') return;
  lua_getglobal(L, "package");
  lua_getfield(L, -1, "path");
  lua_pushfstring(L, "%s/?.lua;%s/?/init.lua;%s/lua/?.lua;%s/lua/?/init.lua;%s", dir, dir, dir, dir,
                  lua_tostring(L, -1));
  lua_setfield(L, -3, "path");
  lua_pop(L, 2);
}

void vm_builtin_open(lua_State *L) {
  omni_preload_modules(L);
  add_searcher(L);
  vm_builtin_path(L);
  lua_getglobal(L, "require");
  lua_pushliteral(L, "omni.boot");
  lua_call(L, 1, 0);
}
