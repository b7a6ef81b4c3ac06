/* omni.native.log: the process's log for Lua; lua/omni/log.lua turns fields into text. */
#include "core/log.h"
#include "lib/modules.h"

#include <lauxlib.h>
#include <stdlib.h>

/* write(level, message, {key, json, key, json, …}): the strings live in the table. */
static int log_write(lua_State *L) {
  int level = (int)luaL_checkinteger(L, 1);
  size_t len, count = 0;
  const char *msg = luaL_checklstring(L, 2, &len);
  luaL_checktype(L, 3, LUA_TTABLE);
  size_t n = lua_objlen(L, 3) / 2;
  omni_log_field *fields = lua_newuserdata(L, (n + 1) * sizeof *fields);
  for (int i = 1; i < (int)(2 * n); i += 2) {
    lua_rawgeti(L, 3, i);
    lua_rawgeti(L, 3, i + 1);
    if (lua_type(L, -2) == LUA_TSTRING && lua_type(L, -1) == LUA_TSTRING)
      fields[count++] = (omni_log_field){lua_tostring(L, -2), lua_tostring(L, -1)};
    lua_pop(L, 2);
  }
  omni_log_write(level, msg, len, fields, count);
  return 0;
}

/* level([level]) -> the level so far */
static int log_level(lua_State *L) {
  int before = omni_log_level_get();
  if (!lua_isnoneornil(L, 1)) omni_log_level_set((int)luaL_checkinteger(L, 1));
  lua_pushinteger(L, before);
  return 1;
}

/* capture(on) */
static int log_capture(lua_State *L) {
  luaL_checktype(L, 1, LUA_TBOOLEAN);
  omni_log_capture(lua_toboolean(L, 1));
  return 0;
}

/* The block waits in a userdata, so that a Lua error (out of memory) does not lose it. */
static int lines_gc(lua_State *L) {
  char **lines = lua_touserdata(L, 1);
  free(*lines);
  *lines = NULL;
  return 0;
}

/* take() -> lines kept since the last call */
static int log_take(lua_State *L) {
  char **lines = lua_newuserdata(L, sizeof *lines);
  *lines = NULL;
  lua_createtable(L, 0, 1);
  lua_pushcfunction(L, lines_gc);
  lua_setfield(L, -2, "__gc");
  lua_setmetatable(L, -2);
  size_t len;
  *lines = omni_log_take(&len);
  lua_pushlstring(L, *lines != NULL ? *lines : "", len);
  free(*lines);
  *lines = NULL;
  return 1;
}

int omni_open_log(lua_State *L) {
  static const luaL_Reg functions[] = {
      {"write", log_write}, {"level", log_level}, {"capture", log_capture}, {"take", log_take}, {NULL, NULL}};
  lua_createtable(L, 0, 5);
  luaL_register(L, NULL, functions);
  lua_createtable(L, OMNI_LOG_LEVELS, 0); /* names[1] is level 0 */
  for (int i = 0; i < OMNI_LOG_LEVELS; i++) {
    lua_pushstring(L, omni_log_level_name(i));
    lua_rawseti(L, -2, i + 1);
  }
  lua_setfield(L, -2, "names");
  return 1;
}
