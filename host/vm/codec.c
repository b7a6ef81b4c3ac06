/* Values that cross to another state: plain ones as they are, tables and cdata by LuaJIT's string.buffer. */
#include "vm/vm.h"

#include <string.h>

/* blob.tag. The first three are those of chunk envelopes. */
enum { TAG_NIL = 0, TAG_STRING = 1, TAG_BUFFER = 2, TAG_NUMBER = 16, TAG_TRUE = 17, TAG_FALSE = 18 };

static char encode_key, decode_key; /* registry keys of string.buffer's functions */

/* Pushes the function kept under key; made by vm.boot (see vm_codec_set). */
static void push_function(lua_State *L, char *key) {
  lua_pushlightuserdata(L, key);
  lua_rawget(L, LUA_REGISTRYINDEX);
}

void vm_codec_set(lua_State *L) {
  lua_settop(L, 2);
  lua_pushlightuserdata(L, &encode_key);
  lua_pushvalue(L, 1);
  lua_rawset(L, LUA_REGISTRYINDEX);
  lua_pushlightuserdata(L, &decode_key);
  lua_pushvalue(L, 2);
  lua_rawset(L, LUA_REGISTRYINDEX);
}

void vm_buffer_encode(lua_State *L, int idx) {
  lua_pushvalue(L, idx);
  push_function(L, &encode_key);
  lua_insert(L, -2);
  lua_call(L, 1, 1);
}

void vm_buffer_decode(lua_State *L, const char *data, size_t len) {
  push_function(L, &decode_key);
  lua_pushlstring(L, data, len);
  lua_call(L, 1, 1);
}

static omni_blob *tagged(omni_blob *blob, uint32_t tag) {
  if (blob != NULL) blob->tag = tag;
  return blob;
}

/* Leaves the encoded string on the stack, or the error message and returns NULL. */
static omni_blob *encode_complex(lua_State *L, int idx) {
  lua_pushvalue(L, idx);
  push_function(L, &encode_key);
  lua_insert(L, -2);
  if (lua_pcall(L, 1, 1, 0) != 0) return NULL;
  size_t len;
  const char *bytes = lua_tolstring(L, -1, &len);
  omni_blob *blob = tagged(omni_blob_new(bytes, len), TAG_BUFFER);
  lua_pop(L, 1);
  if (blob == NULL) lua_pushliteral(L, "out of memory");
  return blob;
}

omni_blob *vm_encode(lua_State *L, int idx) {
  omni_blob *blob;
  size_t len;
  const char *bytes;
  lua_Number number;
  switch (lua_type(L, idx)) {
  case LUA_TNIL:
  case LUA_TNONE: blob = tagged(omni_blob_new(NULL, 0), TAG_NIL); break;
  case LUA_TBOOLEAN: blob = tagged(omni_blob_new(NULL, 0), lua_toboolean(L, idx) ? TAG_TRUE : TAG_FALSE); break;
  case LUA_TNUMBER:
    number = lua_tonumber(L, idx);
    blob = tagged(omni_blob_new(&number, sizeof number), TAG_NUMBER);
    break;
  case LUA_TSTRING:
    bytes = lua_tolstring(L, idx, &len);
    blob = tagged(omni_blob_new(bytes, len), TAG_STRING);
    break;
  default: return encode_complex(L, idx);
  }
  if (blob == NULL) lua_pushliteral(L, "out of memory");
  return blob;
}

void vm_decode(lua_State *L, const omni_blob *blob) {
  lua_Number number;
  switch (blob->tag) {
  case TAG_NIL: lua_pushnil(L); break;
  case TAG_TRUE:
  case TAG_FALSE: lua_pushboolean(L, blob->tag == TAG_TRUE); break;
  case TAG_NUMBER:
    memcpy(&number, blob->data, sizeof number);
    lua_pushnumber(L, number);
    break;
  case TAG_STRING: lua_pushlstring(L, (const char *)blob->data, blob->len); break;
  default: vm_buffer_decode(L, (const char *)blob->data, blob->len); break;
  }
}
