/*
 * next and pairs in an order that depends on the table's content only: items 1..n, then other numbers, then strings,
 * each sorted, then booleans and objects. LuaJIT's own order changes from state to state, for it seeds its hashes.
 *
 * An object (table, function, coroutine) stands by its run-local number. Those that have none yet get one here, in
 * LuaJIT's order: a set of fresh objects is the one thing whose order is not fixed.
 */
#include "vm/guest_private.h"

#include <stdlib.h>
#include <string.h>

typedef enum key_kind { KEY_NUMBER, KEY_STRING, KEY_BOOLEAN, KEY_OBJECT } key_kind;

/* A key while keys are sorted. */
typedef struct key {
  key_kind kind;
  int place;     /* in the list of keys, which keeps it alive */
  double number; /* its value; of an object: its number */
  const char *text;
  size_t len; /* of strings */
} key;

/* An iterator's state, a userdata. */
typedef struct walk {
  int items;    /* 1..items come first */
  int count;    /* keys behind them, in the list at UP_KEYS */
  int item, at; /* the last one given of each */
} walk;

enum { UP_TABLE = lua_upvalueindex(1), UP_WALK = lua_upvalueindex(2), UP_KEYS = lua_upvalueindex(3) };

static char cache_key; /* registry key of { table, iterator, last key } of the last next() */

static bool before(const key *a, const key *b) {
  if (a->kind != b->kind) return a->kind < b->kind;
  if (a->kind != KEY_STRING) return a->number < b->number;
  int order = memcmp(a->text, b->text, a->len < b->len ? a->len : b->len);
  return order != 0 ? order < 0 : a->len < b->len;
}

static void merge(const key *from, key *to, size_t low, size_t middle, size_t high) {
  size_t i = low, k = middle;
  for (size_t at = low; at < high; at++)
    to[at] = i < middle && (k >= high || !before(&from[k], &from[i])) ? from[i++] : from[k++];
}

/* Sorts by merging; may raise at a limit, for all memory is the state's. */
static void sort_keys(lua_State *L, key *keys, size_t n) {
  if (n < 2) return;
  key *from = keys, *to = lua_newuserdata(L, n * sizeof *keys);
  for (size_t width = 1; width < n; width *= 2) {
    for (size_t low = 0; low < n; low += 2 * width) {
      size_t middle = low + width < n ? low + width : n, high = middle + width < n ? middle + width : n;
      merge(from, to, low, middle, high);
      vm_guest_charge(L, high - low);
    }
    key *other = from;
    from = to;
    to = other;
  }
  if (from != keys) memcpy(keys, from, n * sizeof *keys);
  lua_pop(L, 1);
}

/* How many items stand at 1, 2, 3 ... without a gap. */
static int count_items(lua_State *L, int table) {
  int n = 0;
  for (bool there = true; there; n += there) {
    lua_rawgeti(L, table, n + 1);
    there = !lua_isnil(L, -1);
    lua_pop(L, 1);
  }
  vm_guest_charge(L, (size_t)n / 4);
  return n;
}

/* What the key at -2 of a walk by lua_next is sorted by. */
static key describe(lua_State *L) {
  key k = {.kind = KEY_OBJECT};
  switch (lua_type(L, -2)) {
  case LUA_TNUMBER:
    k.kind = KEY_NUMBER;
    k.number = lua_tonumber(L, -2);
    break;
  case LUA_TSTRING:
    k.kind = KEY_STRING;
    k.text = lua_tolstring(L, -2, &k.len);
    break;
  case LUA_TBOOLEAN:
    k.kind = KEY_BOOLEAN;
    k.number = lua_toboolean(L, -2);
    break;
  default: k.number = guest_object_number(L, -2);
  }
  return k;
}

static bool is_item(const key *k, int items) {
  return k->kind == KEY_NUMBER && k->number >= 1 && k->number <= items && k->number == (int)k->number;
}

static int count_keys(lua_State *L, int table) {
  int n = 0;
  for (lua_pushnil(L); lua_next(L, table) != 0; lua_pop(L, 1))
    if (++n % 1024 == 0) vm_guest_charge(L, 1024);
  return n;
}

/* Appends the keys that are no items to the list at `list`, and what they are sorted by to keys. */
static void collect_keys(lua_State *L, int table, int items, int list, key *keys) {
  int n = 0;
  for (lua_pushnil(L); lua_next(L, table) != 0; lua_pop(L, 1)) {
    vm_guest_charge(L, 1);
    key k = describe(L);
    if (is_item(&k, items)) continue;
    k.place = n + 1;
    lua_pushvalue(L, -2);
    lua_rawseti(L, list, k.place);
    keys[n++] = k;
  }
}

/* Pushes the list of the keys that are no items, sorted. */
static void push_keys(lua_State *L, int table, int items, int count) {
  lua_createtable(L, count, 0);
  if (count == 0) return;
  int sorted = lua_gettop(L);
  lua_createtable(L, count, 0);
  key *keys = lua_newuserdata(L, (size_t)count * sizeof *keys);
  collect_keys(L, table, items, sorted + 1, keys);
  sort_keys(L, keys, (size_t)count);
  for (int i = 0; i < count; i++) {
    lua_rawgeti(L, sorted + 1, keys[i].place);
    lua_rawseti(L, sorted, i + 1);
  }
  lua_settop(L, sorted);
}

/* The iterator: key and value in order, without what has become nil in the meantime. */
static int walk_next(lua_State *L) {
  walk *w = lua_touserdata(L, UP_WALK);
  lua_settop(L, 0);
  while (w->item < w->items) {
    lua_pushinteger(L, ++w->item);
    lua_rawgeti(L, UP_TABLE, w->item);
    if (!lua_isnil(L, -1)) return 2;
    lua_settop(L, 0);
  }
  while (w->at < w->count) {
    lua_rawgeti(L, UP_KEYS, ++w->at);
    lua_pushvalue(L, -1);
    lua_rawget(L, UP_TABLE);
    if (!lua_isnil(L, -1)) return 2;
    lua_settop(L, 0);
    vm_guest_charge(L, 1);
  }
  return 0;
}

/* Pushes an iterator over the table at this (absolute) index. */
static void push_iterator(lua_State *L, int table) {
  luaL_checkstack(L, 16, "too many values");
  int items = count_items(L, table), count = count_keys(L, table) - items;
  lua_pushvalue(L, table);
  walk *w = lua_newuserdata(L, sizeof *w);
  *w = (walk){.items = items, .count = count};
  push_keys(L, table, items, count);
  lua_pushcclosure(L, walk_next, 3);
}

/* pairs(t) -> iterator, t, nil */
static int guest_pairs(lua_State *L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  lua_settop(L, 1);
  push_iterator(L, 1);
  lua_insert(L, 1);
  lua_pushnil(L);
  return 3;
}

/* Pushes the cache: { table, iterator, last key }. */
static void push_cache(lua_State *L) {
  lua_pushlightuserdata(L, &cache_key);
  lua_rawget(L, LUA_REGISTRYINDEX);
}

/* Whether the last next() was of this table and gave this key. */
static bool continues(lua_State *L, int cache) {
  lua_rawgeti(L, cache, 1);
  lua_rawgeti(L, cache, 3);
  bool same = lua_rawequal(L, -2, 1) && lua_rawequal(L, -1, 2);
  lua_pop(L, 2);
  return same && !lua_isnil(L, 2);
}

/* A new iterator in the cache, turned past the key at 2. */
static void begin(lua_State *L, int cache) {
  push_iterator(L, 1);
  lua_pushvalue(L, -1);
  lua_rawseti(L, cache, 2);
  lua_pushvalue(L, 1);
  lua_rawseti(L, cache, 1);
  while (!lua_isnil(L, 2)) {
    lua_pushvalue(L, -1);
    lua_call(L, 0, 1);
    vm_guest_charge(L, 1);
    if (lua_isnil(L, -1)) luaL_error(L, "invalid key to 'next'");
    bool found = lua_rawequal(L, -1, 2);
    lua_pop(L, 1);
    if (found) break;
  }
  lua_pop(L, 1);
}

/* next(t [, key]) -> key, value. Consecutive calls share an iterator. */
static int guest_next(lua_State *L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  lua_settop(L, 2);
  lua_pushnil(L);
  if (lua_next(L, 1) == 0) lua_pushnil(L), lua_pushnil(L);
  if (lua_isnil(L, 3) && lua_isnil(L, 2)) return 1; /* empty: asked often, and nothing to sort */
  lua_settop(L, 2);
  push_cache(L);
  if (!continues(L, 3)) begin(L, 3);
  lua_rawgeti(L, 3, 2);
  lua_call(L, 0, 2);
  lua_pushvalue(L, -2);
  lua_rawseti(L, 3, 3);
  return lua_isnil(L, -2) ? 1 : 2;
}

void guest_order_open(lua_State *L) {
  static const luaL_Reg functions[] = {{"next", guest_next}, {"pairs", guest_pairs}, {NULL, NULL}};
  luaL_register(L, NULL, functions);
  lua_pushlightuserdata(L, &cache_key);
  lua_createtable(L, 3, 0);
  lua_rawset(L, LUA_REGISTRYINDEX);
}
