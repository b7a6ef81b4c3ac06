/*
 * Reading JSON: libjansson checks the text (RFC 8259, UTF-8) and builds its tree, which is converted here. What jansson
 * accepts and a Lua number cannot hold exactly is refused; of equal keys the last one wins, as everywhere.
 */
#include "lib/json.h"
#include "vm/vm.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* Owns the tree while Lua errors (out of memory) may pass. */
typedef struct guard {
  json_t *root;
} guard;

typedef enum refusal { CONVERTED, TOO_LARGE, TOO_DEEP } refusal;

int json_decode_gc(lua_State *L) {
  guard *g = lua_touserdata(L, 1);
  if (g->root != NULL) json_decref(g->root);
  g->root = NULL;
  return 0;
}

static guard *guard_push(lua_State *L) {
  guard *g = lua_newuserdata(L, sizeof *g);
  g->root = NULL;
  lua_pushvalue(L, JSON_UP_GUARD);
  lua_setmetatable(L, -2);
  return g;
}

static refusal convert(lua_State *L, json_t *value, int depth);

static refusal convert_array(lua_State *L, json_t *array, int depth) {
  size_t n = json_array_size(array);
  lua_createtable(L, (int)n, 0);
  for (size_t i = 0; i < n; i++) {
    refusal refused = convert(L, json_array_get(array, i), depth);
    if (refused) return refused;
    lua_rawseti(L, -2, (int)i + 1);
  }
  lua_pushvalue(L, JSON_UP_ARRAY);
  lua_setmetatable(L, -2);
  return CONVERTED;
}

static refusal convert_object(lua_State *L, json_t *object, int depth) {
  lua_createtable(L, 0, (int)json_object_size(object));
  for (void *i = json_object_iter(object); i != NULL; i = json_object_iter_next(object, i)) {
    lua_pushlstring(L, json_object_iter_key(i), json_object_iter_key_len(i));
    refusal refused = convert(L, json_object_iter_value(i), depth);
    if (refused) return refused;
    lua_rawset(L, -3);
  }
  return CONVERTED;
}

/* Pushes a value; depth counts the containers around it. When refused it leaves the stack as it is. */
static refusal convert(lua_State *L, json_t *value, int depth) {
  json_int_t integer;
  switch (json_typeof(value)) {
  case JSON_OBJECT:
  case JSON_ARRAY:
    if (depth == JSON_DEPTH) return TOO_DEEP;
    luaL_checkstack(L, 4, "JSON");
    return (json_is_array(value) ? convert_array : convert_object)(L, value, depth + 1);
  case JSON_STRING: lua_pushlstring(L, json_string_value(value), json_string_length(value)); break;
  case JSON_INTEGER:
    integer = json_integer_value(value);
    if (integer > JSON_EXACT || integer < -JSON_EXACT) return TOO_LARGE;
    lua_pushnumber(L, (lua_Number)integer);
    break;
  case JSON_REAL: lua_pushnumber(L, json_real_value(value)); break;
  case JSON_TRUE: lua_pushboolean(L, 1); break;
  case JSON_FALSE: lua_pushboolean(L, 0); break;
  case JSON_NULL: lua_pushlightuserdata(L, NULL); break;
  }
  return CONVERTED;
}

/* Behind the string that starts at i, in text known to be valid. */
static size_t skip_string(const char *text, size_t i) {
  for (i++; text[i] != '"'; i++)
    if (text[i] == '\\') i++;
  return i + 1;
}

/* Whether the number of len bytes is an integer that was refused. */
static bool is_too_large(const char *number, size_t len) {
  char copy[32];
  if (len >= sizeof copy) return memchr(number, '.', len) == NULL; /* jansson refuses these as integers itself */
  memcpy(copy, number, len);
  copy[len] = '\0';
  if (strpbrk(copy, ".eE") != NULL) return false;
  long long value = strtoll(copy, NULL, 10);
  return value > JSON_EXACT || value < -JSON_EXACT;
}

/* Where valid text has what was refused, for the tree keeps no positions: the last byte of it, counted from 1. */
static size_t find_refused(refusal refused, const char *text, size_t len) {
  int depth = 0;
  for (size_t i = 0; i < len;) {
    size_t number = text[i] == '"' ? 0 : strspn(text + i, "+-.0123456789eE");
    if (text[i] == '"')
      i = skip_string(text, i);
    else if (number > 0 && refused == TOO_LARGE && is_too_large(text + i, number))
      return i + number;
    else {
      depth += (text[i] == '[' || text[i] == '{') - (text[i] == ']' || text[i] == '}');
      if (refused == TOO_DEEP && depth > JSON_DEPTH) return i + 1;
      i += number > 0 ? number : 1;
    }
  }
  return len;
}

static int fail_refused(lua_State *L, refusal refused, const char *text, size_t len) {
  int at = (int)find_refused(refused, text, len);
  if (refused == TOO_DEEP) return vm_fail(L, OMNI_EJSON, "nested deeper than %d at byte %d", JSON_DEPTH, at);
  return vm_fail(L, OMNI_EJSON, "integer beyond 2^53, which a number cannot hold exactly, at byte %d", at);
}

int json_decode(lua_State *L) {
  size_t len;
  luaL_checktype(L, 1, LUA_TSTRING);
  const char *text = lua_tolstring(L, 1, &len);
  lua_settop(L, 1);
  const char *nul = memchr(text, '\0', len); /* jansson would skip it */
  if (nul != NULL) return vm_fail(L, OMNI_EJSON, "NUL byte at byte %d", (int)(nul - text) + 1);
  guard *g = guard_push(L);
  json_error_t error;
  g->root = json_loadb(text, len, JSON_DECODE_ANY | JSON_ALLOW_NUL, &error);
  if (g->root == NULL) return vm_fail(L, OMNI_EJSON, "%s at byte %d", error.text, error.position);
  refusal refused = convert(L, g->root, 0);
  json_decref(g->root);
  g->root = NULL;
  return refused ? fail_refused(L, refused, text, len) : 1;
}
