/* The table library of guests, with bounded work; pack and unpack as in later Lua. */
#include "vm/guest_private.h"

#include <limits.h>
#include <string.h>

/* ---- a buffer in the state's memory ---- */

void guest_out_open(guest_out *out, lua_State *L, size_t room) {
  luaL_checkstack(L, 8, "too many values");
  *out = (guest_out){.L = L, .room = room, .data = lua_newuserdata(L, room)};
  out->idx = lua_gettop(L);
}

static void grow(guest_out *out, size_t need) {
  if (need > GUEST_STRING_MAX) luaL_error(out->L, "the string would be longer than %d bytes", (int)GUEST_STRING_MAX);
  size_t room = out->room * 2 > need ? out->room * 2 : need;
  char *data = lua_newuserdata(out->L, room);
  memcpy(data, out->data, out->len);
  lua_replace(out->L, out->idx);
  out->data = data;
  out->room = room;
}

void guest_out_add(guest_out *out, const char *data, size_t len) {
  if (len > out->room - out->len) grow(out, out->len + len);
  memcpy(out->data + out->len, data, len);
  out->len += len;
}

void guest_out_push(guest_out *out) {
  vm_guest_charge(out->L, out->len / 16);
  lua_pushlstring(out->L, out->data, out->len);
}

/* ---- concat ---- */

static int guest_concat(lua_State *L) {
  size_t gap, len;
  luaL_checktype(L, 1, LUA_TTABLE);
  const char *separator = luaL_optlstring(L, 2, "", &gap);
  int first = luaL_optint(L, 3, 1);
  int last = lua_isnoneornil(L, 4) ? (int)lua_objlen(L, 1) : luaL_checkint(L, 4);
  guest_out out;
  guest_out_open(&out, L, 256);
  for (int i = first; i <= last; i++) {
    lua_rawgeti(L, 1, i);
    if (!lua_isstring(L, -1)) /* a number counts as one */
      return luaL_error(L, "invalid value (%s) at index %d in table for 'concat'", luaL_typename(L, -1), i);
    const char *text = lua_tolstring(L, -1, &len);
    guest_out_add(&out, text, len);
    lua_pop(L, 1);
    vm_guest_charge(L, 1);
    if (i == last) break; /* i + 1 could overflow */
    guest_out_add(&out, separator, gap);
  }
  guest_out_push(&out);
  return 1;
}

/* ---- sort: by merging, so that an order that is none, or one made for the purpose, costs no more ---- */

enum { SORT_TABLE = 1, SORT_LESS = 2, SORT_FROM = 3, SORT_TO = 4 };

/* Whether the value at top comes before the one below it. */
static bool comes_before(lua_State *L) {
  vm_guest_charge(L, 1);
  if (lua_isnil(L, SORT_LESS)) {
    if (lua_type(L, -1) == LUA_TTABLE) vm_guest_check_stack(L); /* __lt */
    return lua_lessthan(L, -1, -2);
  }
  vm_guest_check_stack(L);
  lua_pushvalue(L, SORT_LESS);
  lua_pushvalue(L, -2);
  lua_pushvalue(L, -4);
  lua_call(L, 2, 1);
  bool before = lua_toboolean(L, -1);
  lua_pop(L, 1);
  return before;
}

static void move(lua_State *L, int from, int i, int to, int k) {
  lua_rawgeti(L, from, i);
  lua_rawseti(L, to, k);
}

/* Merges from[low..middle-1] and from[middle..high-1] into `to`. */
static void merge(lua_State *L, int from, int to, int low, int middle, int high) {
  int i = low, k = middle, at = low;
  while (i < middle && k < high) {
    lua_rawgeti(L, from, i);
    lua_rawgeti(L, from, k);
    bool second = comes_before(L);
    lua_pop(L, 2);
    move(L, from, second ? k++ : i++, to, at++);
  }
  while (i < middle)
    move(L, from, i++, to, at++);
  while (k < high)
    move(L, from, k++, to, at++);
}

static int guest_sort(lua_State *L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  if (!lua_isnoneornil(L, 2)) luaL_checktype(L, 2, LUA_TFUNCTION);
  lua_settop(L, 2);
  luaL_checkstack(L, 16, "too many values");
  int n = (int)lua_objlen(L, 1), from = SORT_FROM, to = SORT_TO;
  if (n < 2) return 0;
  lua_createtable(L, n, 0);
  lua_createtable(L, n, 0);
  for (int i = 1; i <= n; i++)
    move(L, SORT_TABLE, i, from, i);
  for (long width = 1; width < n; width *= 2) {
    for (long low = 1; low <= n; low += 2 * width) {
      long middle = low + width <= n ? low + width : n + 1, high = low + 2 * width <= n ? low + 2 * width : n + 1;
      merge(L, from, to, (int)low, (int)middle, (int)high);
      vm_guest_charge(L, (size_t)(high - low) / 4);
    }
    int other = from;
    from = to;
    to = other;
  }
  for (int i = 1; i <= n; i++)
    move(L, from, i, SORT_TABLE, i);
  return 0;
}

/* ---- insert and remove: LuaJIT's own walk as far as they are told, two billion steps if need be ---- */

static int guest_insert(lua_State *L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  int n = (int)lua_objlen(L, 1), arguments = lua_gettop(L);
  luaL_argcheck(L, arguments == 2 || arguments == 3, arguments < 2 ? 2 : 4, "wrong number of arguments to 'insert'");
  double at = arguments == 3 ? luaL_checknumber(L, 2) : n + 1;
  luaL_argcheck(L, at >= 1 && at < INT_MAX, 2, "position out of bounds");
  int position = (int)at;
  vm_guest_charge(L, position <= n ? (size_t)(n - position) / 4 : 0);
  for (int i = n; i >= position; i--)
    move(L, 1, i, 1, i + 1);
  lua_rawseti(L, 1, position);
  return 0;
}

static int guest_remove(lua_State *L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  int n = (int)lua_objlen(L, 1);
  double at = luaL_optnumber(L, 2, n);
  if (!(at >= 1 && at <= n)) return 0;
  int position = (int)at;
  lua_rawgeti(L, 1, position);
  vm_guest_charge(L, (size_t)(n - position) / 4);
  for (int i = position; i < n; i++)
    move(L, 1, i + 1, 1, i);
  lua_pushnil(L);
  lua_rawseti(L, 1, n);
  return 1;
}

/* ---- pack ---- */

static int guest_pack(lua_State *L) {
  int n = lua_gettop(L);
  lua_createtable(L, n, 1);
  lua_insert(L, 1);
  for (int i = n; i >= 1; i--)
    lua_rawseti(L, 1, i);
  lua_pushinteger(L, n);
  lua_setfield(L, 1, "n");
  return 1;
}

void guest_table_open(lua_State *L) {
  static const luaL_Reg functions[] = {{"concat", guest_concat}, {"sort", guest_sort}, {"insert", guest_insert},
                                       {"remove", guest_remove}, {"pack", guest_pack}, {NULL, NULL}};
  luaL_register(L, NULL, functions);
  lua_getfield(L, LUA_GLOBALSINDEX, "unpack");
  lua_setfield(L, -2, "unpack");
}
