/* omni.native.json: JSON by libjansson (reading) and by json_encode.c (writing, canonically). */
#include "lib/json.h"
#include "lib/modules.h"

#include <lauxlib.h>

/* Pushes the upvalues of one side. */
static void push_upvalues(lua_State *L, lua_CFunction gc) {
  luaL_newmetatable(L, JSON_ARRAY_MT);
  lua_createtable(L, 0, 1);
  lua_pushcfunction(L, gc);
  lua_setfield(L, -2, "__gc");
  lua_getglobal(L, "tostring");
}

void json_push_encode(lua_State *L, const json_bounds *bounds) {
  push_upvalues(L, json_encode_gc);
  if (bounds != NULL) lua_pushlightuserdata(L, (void *)bounds);
  lua_pushcclosure(L, json_encode, bounds != NULL ? 4 : 3);
}

void json_push_decode(lua_State *L) {
  push_upvalues(L, json_decode_gc);
  lua_pushcclosure(L, json_decode, 3);
}

int omni_open_json(lua_State *L) {
  lua_createtable(L, 0, 4);
  json_push_encode(L, NULL);
  lua_setfield(L, -2, "encode");
  json_push_decode(L);
  lua_setfield(L, -2, "decode");
  luaL_newmetatable(L, JSON_ARRAY_MT);
  lua_setfield(L, -2, "array_mt");
  lua_pushlightuserdata(L, NULL); /* the same in every state, and string.buffer carries it */
  lua_setfield(L, -2, "null");
  return 1;
}
