/*
 * next and pairs that the JIT compiler does not see. On x64, LuaJIT before 2022-04-05 (Debian 12's 2.1.0-beta3 among
 * them) can compile a loop over a table so that it cuts the upper half off a pointer: rarely, by chance of register
 * allocation, such a loop crashes the process. A plain C function is called, not compiled, and the compiler knows
 * neither of its own two any more once these stand in their place before any Lua is loaded. Loops over ipairs and
 * numbers are compiled as ever.
 */
#include "vm/state.h"

#include <luajit.h>
#include <string.h>

static int plain_next(lua_State *L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  lua_settop(L, 2);
  if (lua_next(L, 1) != 0) return 2;
  lua_pushnil(L);
  return 1;
}

static int plain_pairs(lua_State *L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  lua_settop(L, 1);
  lua_pushvalue(L, lua_upvalueindex(1));
  lua_insert(L, 1);
  lua_pushnil(L);
  return 3;
}

void vm_next_open(lua_State *L) {
#ifdef __x86_64__
  if (strcmp(LUAJIT_VERSION, "LuaJIT 2.1.0-beta3") != 0) return;
  lua_pushcfunction(L, plain_next);
  lua_pushvalue(L, -1);
  lua_setglobal(L, "next");
  lua_pushcclosure(L, plain_pairs, 1);
  lua_setglobal(L, "pairs");
#else
  (void)L;
#endif
}
