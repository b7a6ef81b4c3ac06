/* What encoder and decoder of JSON share. */
#ifndef OMNI_LIB_JSON_H
#define OMNI_LIB_JSON_H

#include <lua.h>
#include <stdbool.h>
#include <stddef.h>

/* Nesting allowed both ways: that of LuaJIT's string.buffer, so that what can be read can also cross to a state. */
#define JSON_DEPTH 100

/* Integers up to here are exact as a double, in every JSON implementation. */
#define JSON_EXACT (INT64_C(1) << 53)

/* Registry name of the metatable that marks arrays; one per state. */
#define JSON_ARRAY_MT "omni.json.array"

/* Upvalues of both functions. */
#define JSON_UP_ARRAY lua_upvalueindex(1)    /* the metatable that marks arrays */
#define JSON_UP_GUARD lua_upvalueindex(2)    /* metatable of the userdata whose __gc frees the C memory of a call */
#define JSON_UP_TOSTRING lua_upvalueindex(3) /* the global tostring (encoder) */

/* What an encoder may cost where a guest runs it: a small value that shares its tables can have an endless text. */
typedef struct json_bounds {
  size_t bytes;          /* of the text */
  size_t keys;           /* of objects that are open at once: they are sorted */
  bool (*expired)(void); /* asked now and then: true = give up */
} json_bounds;
#define JSON_UP_BOUNDS lua_upvalueindex(4) /* light userdata; absent = no bounds (encoder) */

/* Pushes encode or decode with its upvalues; bounds may be NULL. */
void json_push_encode(lua_State *L, const json_bounds *bounds);
void json_push_decode(lua_State *L);

/* encode(value) -> text | nil, message, "EJSON" */
int json_encode(lua_State *L);
int json_encode_gc(lua_State *L);

/* decode(text) -> value | nil, message, "EJSON" */
int json_decode(lua_State *L);
int json_decode_gc(lua_State *L);

#endif
