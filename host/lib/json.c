/* omni.native.json: JSON by libjansson (reading) and by json_encode.c (writing, canonically). */
#include "lib/json.h"
#include "lib/modules.h"

#include <lauxlib.h>

/* Pushes a function of one side with its upvalues. */
static void push_function(lua_State *L, lua_CFunction fn, lua_CFunction gc) {
  luaL_newmetatable(L, JSON_ARRAY_MT);
  lua_createtable(L, 0, 1);
  lua_pushcfunction(L, gc);
  lua_setfield(L, -2, "__gc");
  lua_getglobal(L, "tostring");
  lua_pushcclosure(L, fn, 3);
}

int omni_open_json(lua_State *L) {
  lua_createtable(L, 0, 4);
  push_function(L, json_encode, json_encode_gc);
  lua_setfield(L, -2, "encode");
  push_function(L, json_decode, json_decode_gc);
  lua_setfield(L, -2, "decode");
  luaL_newmetatable(L, JSON_ARRAY_MT);
  lua_setfield(L, -2, "array_mt");
  lua_pushlightuserdata(L, NULL); /* the same in every state, and string.buffer carries it */
  lua_setfield(L, -2, "null");
  return 1;
}
