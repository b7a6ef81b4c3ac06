#include "lib/modules.h"

#include <lauxlib.h>

void omni_preload_modules(lua_State *L) {
  static const luaL_Reg modules[] = {
#define X(name, open) {name, open},
      OMNI_MODULES(X)
#undef X
          {NULL, NULL}};
  lua_getglobal(L, "package");
  lua_getfield(L, -1, "preload");
  for (const luaL_Reg *module = modules; module->name != NULL; module++) {
    lua_pushcfunction(L, module->func);
    lua_setfield(L, -2, module->name);
  }
  lua_pop(L, 2);
}
