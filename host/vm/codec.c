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

bool vm_encode_bytes(lua_State *L, int idx, vm_bytes *out) {
  *out = (vm_bytes){.tag = TAG_NIL};
  switch (lua_type(L, idx)) {
  case LUA_TNIL:
  case LUA_TNONE: return true;
  case LUA_TBOOLEAN: out->tag = lua_toboolean(L, idx) ? TAG_TRUE : TAG_FALSE; return true;
  case LUA_TNUMBER:
    out->number = lua_tonumber(L, idx);
    out->tag = TAG_NUMBER;
    out->data = &out->number;
    out->len = sizeof out->number;
    return true;
  case LUA_TSTRING: out->tag = TAG_STRING; break;
  default:
    lua_pushvalue(L, idx);
    push_function(L, &encode_key);
    lua_insert(L, -2);
    if (lua_pcall(L, 1, 1, 0) != 0) return false;
    out->tag = TAG_BUFFER;
    idx = -1;
  }
  out->data = lua_tolstring(L, idx, &out->len);
  return true;
}

omni_blob *vm_encode(lua_State *L, int idx) {
  vm_bytes bytes;
  int top = lua_gettop(L);
  if (!vm_encode_bytes(L, idx, &bytes)) return NULL;
  omni_blob *blob = omni_blob_new(bytes.data, bytes.len);
  lua_settop(L, top);
  if (blob == NULL)
    lua_pushliteral(L, "out of memory");
  else
    blob->tag = bytes.tag;
  return blob;
}

omni_blob *vm_encode_text(const char *text) {
  omni_blob *blob = omni_blob_new(text, strlen(text));
  if (blob != NULL) blob->tag = TAG_STRING;
  return blob;
}

void vm_decode_bytes(lua_State *L, uint32_t tag, const void *data, size_t len) {
  lua_Number number;
  switch (tag) {
  case TAG_NIL: lua_pushnil(L); break;
  case TAG_TRUE:
  case TAG_FALSE: lua_pushboolean(L, tag == TAG_TRUE); break;
  case TAG_NUMBER:
    memcpy(&number, data, sizeof number);
    lua_pushnumber(L, number);
    break;
  case TAG_STRING: lua_pushlstring(L, data, len); break;
  default: vm_buffer_decode(L, data, len); break;
  }
}

void vm_decode(lua_State *L, const omni_blob *blob) { vm_decode_bytes(L, blob->tag, blob->data, blob->len); }
