/* Values that cross between a guest and its tools: canonical JSON, bounded in size and time. */
#include "lib/guest.h"
#include "lib/json.h"

#include <stdio.h>
#include <string.h>

static char encode_key, decode_key; /* registry keys of the guest's codec */

static const json_bounds bounds = {.bytes = (size_t)8 << 20, .keys = 131072, .expired = vm_guest_expired};

static void keep(lua_State *L, char *key) {
  lua_pushlightuserdata(L, key);
  lua_insert(L, -2);
  lua_rawset(L, LUA_REGISTRYINDEX);
}

static void push_kept(lua_State *L, char *key) {
  lua_pushlightuserdata(L, key);
  lua_rawget(L, LUA_REGISTRYINDEX);
}

static bool has_mark(lua_State *L, int idx) {
  if (!lua_getmetatable(L, idx)) return false;
  luaL_getmetatable(L, JSON_ARRAY_MT);
  bool same = lua_rawequal(L, -1, -2);
  lua_pop(L, 2);
  return same;
}

/* array([items]): marks a table, so that it is an array in JSON even if it is empty. */
static int mark_array(lua_State *L) {
  if (lua_isnoneornil(L, 1)) lua_newtable(L);
  luaL_checktype(L, -1, LUA_TTABLE);
  if (has_mark(L, -1)) return 1;
  if (lua_getmetatable(L, -1)) return luaL_error(L, "array: the table has a metatable of its own");
  luaL_getmetatable(L, JSON_ARRAY_MT);
  lua_setmetatable(L, -2);
  return 1;
}

void guest_values_open(lua_State *L) {
  json_push_encode(L, &bounds);
  keep(L, &encode_key);
  json_push_decode(L);
  keep(L, &decode_key);
  luaL_newmetatable(L, JSON_ARRAY_MT);
  lua_pushliteral(L, "array"); /* the mark is shared by all arrays: out of the guest's reach */
  lua_setfield(L, -2, "__metatable");
  lua_pop(L, 1);
  lua_pushlightuserdata(L, NULL);
  lua_setfield(L, -2, "null");
  lua_pushcfunction(L, mark_array);
  lua_setfield(L, -2, "array");
}

/* Moves the n values on top into a marked array; nil becomes null. */
static void gather(lua_State *L, int n) {
  lua_createtable(L, n, 0);
  luaL_getmetatable(L, JSON_ARRAY_MT);
  lua_setmetatable(L, -2);
  lua_insert(L, -(n + 1));
  for (int i = n; i >= 1; i--) {
    if (lua_isnil(L, -1)) {
      lua_pop(L, 1);
      lua_pushlightuserdata(L, NULL);
    }
    lua_rawseti(L, -(i + 1), i);
  }
}

omni_blob *guest_encode_values(lua_State *L, int n) {
  luaL_checkstack(L, 8, "too many values");
  gather(L, n);
  push_kept(L, &encode_key);
  lua_insert(L, -2);
  lua_call(L, 1, 2);
  if (lua_isnil(L, -2)) {
    lua_remove(L, -2);
    return NULL;
  }
  size_t len;
  const char *text = lua_tolstring(L, -2, &len);
  omni_blob *blob = omni_blob_new(text, len);
  vm_guest_charge(L, len / 8);
  lua_pop(L, 2);
  if (blob == NULL) lua_pushliteral(L, "out of memory");
  return blob;
}

void guest_decode(lua_State *L, const omni_blob *json) {
  push_kept(L, &decode_key);
  lua_pushlstring(L, (const char *)json->data, json->len);
  lua_call(L, 1, 2);
  if (lua_isnil(L, -2)) lua_error(L);
  lua_pop(L, 1);
}

/* Pushes field `name` of the table at idx, a string in every response. */
static const char *push_text(lua_State *L, int idx, const char *name) {
  lua_getfield(L, idx, name);
  if (lua_type(L, -1) == LUA_TSTRING) return lua_tostring(L, -1);
  lua_pop(L, 1);
  lua_pushliteral(L, "");
  return "";
}

bool guest_decode_response(lua_State *L, const omni_blob *response, int *n, char *code, size_t size) {
  guest_decode(L, response);
  int at = lua_gettop(L);
  lua_getfield(L, at, "ok");
  if (lua_isnil(L, -1)) {
    lua_pop(L, 1);
    snprintf(code, size, "%s", push_text(L, at, "code"));
    lua_pop(L, 1);
    push_text(L, at, "error");
    lua_remove(L, at);
    return false;
  }
  lua_getfield(L, at, "n");
  *n = (int)lua_tointeger(L, -1);
  lua_pop(L, 1);
  luaL_checkstack(L, *n + 4, "too many results");
  for (int i = 1; i <= *n; i++) {
    lua_rawgeti(L, at + 1, i);
    if (lua_touserdata(L, -1) == NULL && lua_islightuserdata(L, -1)) {
      lua_pop(L, 1);
      lua_pushnil(L);
    }
  }
  lua_remove(L, at);
  lua_remove(L, at);
  return true;
}
