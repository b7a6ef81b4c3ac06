/* Values of chunks: how they become bytes and back, and the builder's state on the SAVE thread. */
#include "lib/chunks.h"

#include "vm/vm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- values ---- */

/* Pushes a function of omni.native.json. */
static void push_json(lua_State *L, const char *name) {
  lua_getglobal(L, "require");
  lua_pushliteral(L, "omni.native.json");
  lua_call(L, 1, 1);
  lua_getfield(L, -1, name);
  lua_remove(L, -2);
}

/* The string at the top of the stack (popped) as a blob; leaves a message where there is no memory. */
static bool to_blob(lua_State *L, omni_chunk_kind kind, omni_blob **out) {
  size_t len;
  const char *bytes = lua_tolstring(L, -1, &len);
  *out = omni_blob_new(bytes, len);
  lua_pop(L, 1);
  if (*out == NULL) {
    lua_pushliteral(L, "out of memory");
    return false;
  }
  (*out)->tag = kind;
  return true;
}

static int buffer_encode(lua_State *L) {
  vm_buffer_encode(L, 1);
  return 1;
}

static bool encode_buffer(lua_State *L, int idx, omni_blob **out) {
  lua_pushcfunction(L, buffer_encode);
  lua_pushvalue(L, idx);
  if (lua_pcall(L, 1, 1, 0) != 0) return false;
  return to_blob(L, OMNI_CHUNK_BUFFER, out);
}

static bool encode_json(lua_State *L, int idx, omni_blob **out) {
  push_json(L, "encode");
  lua_pushvalue(L, idx);
  lua_call(L, 1, 2);
  if (lua_isnil(L, -2)) {
    lua_remove(L, -2);
    return false;
  }
  lua_pop(L, 1);
  return to_blob(L, OMNI_CHUNK_JSON, out);
}

bool chunks_encode(lua_State *L, int idx, chunks_encoding encoding, omni_blob **out) {
  *out = NULL;
  int type = lua_type(L, idx);
  if (type == LUA_TNIL || type == LUA_TNONE) return true;
  if (type == LUA_TSTRING) {
    lua_pushvalue(L, idx);
    return to_blob(L, OMNI_CHUNK_BYTES, out);
  }
  if (encoding == CHUNKS_BUFFER) return encode_buffer(L, idx, out);
  if (encoding == CHUNKS_JSON) return encode_json(L, idx, out);
  lua_pushfstring(L, "encoding \"bytes\" carries strings and nil, not a %s", luaL_typename(L, idx));
  return false;
}

static int decode_json(lua_State *L, const char *data, size_t len) {
  push_json(L, "decode");
  lua_pushlstring(L, data, len);
  lua_call(L, 1, 2);
  if (lua_isnil(L, -2)) return lua_error(L); /* the message is on top */
  lua_pop(L, 1);
  return 1;
}

int chunks_decode(lua_State *L) {
  const omni_chunk *chunk = lua_touserdata(L, 1);
  const char *data = (const char *)chunk->data->data + chunk->at;
  size_t len = chunk->data->len - chunk->at;
  if (chunk->data->tag == OMNI_CHUNK_JSON) return decode_json(L, data, len);
  vm_buffer_decode(L, data, len);
  return 1;
}

/* ---- builders ---- */

struct chunks_builder {
  vm_state *S;  /* NULL until the first build; belongs to the SAVE thread */
  int function; /* its registry reference, or LUA_NOREF */
  chunks_encoding encoding;
  char module[];
};

chunks_builder *chunks_builder_new(const char *module, chunks_encoding encoding) {
  size_t len = strlen(module) + 1;
  chunks_builder *b = calloc(1, sizeof *b + len);
  if (b == NULL) return NULL;
  b->function = LUA_NOREF;
  b->encoding = encoding;
  memcpy(b->module, module, len);
  return b;
}

void chunks_builder_free(void *ud) {
  chunks_builder *b = ud;
  if (b->S != NULL) vm_state_close(b->S);
  free(b);
}

/* One build, under pcall: what goes in and what comes out. */
typedef struct build_call {
  chunks_builder *builder;
  const char *req;
  omni_blob *in, *out;
  bool is_final;
} build_call;

/* Pushes the builder's function; loads its module where that has not happened. */
static void push_function(lua_State *L, chunks_builder *b) {
  if (b->function == LUA_NOREF) {
    lua_getglobal(L, "require");
    lua_pushstring(L, b->module);
    lua_call(L, 1, 1);
    if (!lua_isfunction(L, -1))
      luaL_error(L, "module %s must return a function(value, req, is_final), not a %s", b->module,
                 luaL_typename(L, -1));
    b->function = luaL_ref(L, LUA_REGISTRYINDEX);
  }
  lua_rawgeti(L, LUA_REGISTRYINDEX, b->function);
}

static void push_snapshot(lua_State *L, omni_blob *in) {
  if (in == NULL)
    lua_pushnil(L);
  else if (in->tag == OMNI_CHUNK_BYTES)
    lua_pushlstring(L, (const char *)in->data, in->len);
  else
    vm_buffer_decode(L, (const char *)in->data, in->len);
}

static int build(lua_State *L) {
  build_call *call = lua_touserdata(L, 1);
  push_function(L, call->builder);
  push_snapshot(L, call->in);
  lua_pushstring(L, call->req);
  lua_pushboolean(L, call->is_final);
  lua_call(L, 3, 1);
  if (!chunks_encode(L, lua_gettop(L), call->builder->encoding, &call->out)) return lua_error(L);
  return 0;
}

omni_err chunks_builder_run(void *ud, const char *req, omni_blob *in, bool is_final, omni_blob **out, char *text,
                            size_t size) {
  chunks_builder *b = ud;
  if (b->S == NULL) b->S = vm_state_new("build");
  if (b->S == NULL) {
    snprintf(text, size, "no state can be made for module %s", b->module);
    return OMNI_ENOMEM;
  }
  build_call call = {.builder = b, .req = req, .in = in, .is_final = is_final};
  lua_State *L = vm_main(b->S);
  if (lua_cpcall(L, build, &call) == 0) {
    *out = call.out;
    return OMNI_OK;
  }
  const char *message = lua_tostring(L, -1);
  snprintf(text, size, "build_payload %s: %s", b->module, message != NULL ? message : "error without a text");
  lua_pop(L, 1);
  return OMNI_ERUN;
}
