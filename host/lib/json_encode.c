/*
 * Writing JSON canonically: equal values give equal text. Keys are sorted by their bytes, integers are written out,
 * other numbers with the fewest digits (15 to 17) that read back the same, and no space is added.
 */
#include "core/buf.h"
#include "lib/json.h"
#include "vm/vm.h"

#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define CDATA 10 /* LuaJIT's type of FFI objects; lua.h has no name for it */
#define PATH_LIMIT 200

typedef struct name {
  const char *text; /* a string that is a key of a table on the Lua stack, so it lives */
  size_t len;
} name;

/* One container around the present value: its address, and which of its values that is. */
typedef struct frame {
  const void *table;
  name key;  /* objects; text NULL in arrays */
  int index; /* arrays; 0 = the container itself */
} frame;

/* The C memory of one call. It sits in a userdata, whose __gc frees it if a Lua error passes. */
typedef struct memory {
  omni_buf out;
  name *names; /* a stack of the sorted keys of the open objects */
  size_t count, cap;
} memory;

typedef struct encoder {
  lua_State *L;
  memory *m;
  const json_bounds *bounds; /* NULL = none */
  unsigned asked;            /* values since the bounds were looked at */
  int depth;                 /* open containers */
  frame frames[JSON_DEPTH];
  char problem[160];
} encoder;

static void memory_free(memory *m) {
  omni_buf_free(&m->out);
  free(m->names);
  *m = (memory){0};
}

int json_encode_gc(lua_State *L) {
  memory_free(lua_touserdata(L, 1));
  return 0;
}

static memory *memory_push(lua_State *L) {
  memory *m = lua_newuserdata(L, sizeof *m);
  *m = (memory){0};
  lua_pushvalue(L, JSON_UP_GUARD);
  lua_setmetatable(L, -2);
  return m;
}

/* Notes what is wrong; where is told by the open frames. Returns false. */
static bool __attribute__((format(printf, 2, 3))) refuse(encoder *E, const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  vsnprintf(E->problem, sizeof E->problem, fmt, args);
  va_end(args);
  return false;
}

/* ---- scalars ---- */

/* "1.5" whatever LC_NUMERIC says; digits alone would be read as an integer, beyond 2^53 refused. */
static void put_real(encoder *E, double value) {
  char text[40];
  for (int digits = 15; digits <= 17; digits++) {
    snprintf(text, sizeof text, "%.*g", digits, value);
    if (strtod(text, NULL) == value) break;
  }
  bool integer = true;
  for (char *c = text; *c != '\0'; c++) {
    if (strchr("+-0123456789", *c) != NULL) continue;
    if (*c != 'e') *c = '.';
    integer = false;
  }
  omni_buf_puts(&E->m->out, text);
  if (integer) omni_buf_puts(&E->m->out, ".0");
}

static void put_integer(encoder *E, long long value) {
  char text[24], *first = text + sizeof text;
  unsigned long long rest = (unsigned long long)(value < 0 ? -value : value);
  do
    *--first = (char)('0' + rest % 10);
  while ((rest /= 10) > 0);
  if (value < 0) *--first = '-';
  omni_buf_put(&E->m->out, first, (size_t)(text + sizeof text - first));
}

static bool put_number(encoder *E, double value) {
  if (!isfinite(value)) return refuse(E, "%s is not a number in JSON", isnan(value) ? "NaN" : "infinity");
  if (value != floor(value) || fabs(value) > (double)JSON_EXACT || (value == 0 && signbit(value))) {
    put_real(E, value);
    return true;
  }
  put_integer(E, (long long)value);
  return true;
}

/* int64_t and uint64_t objects, known by how they print: 5LL, 5ULL. */
static bool put_cdata(encoder *E) {
  lua_State *L = E->L;
  lua_pushvalue(L, JSON_UP_TOSTRING);
  lua_pushvalue(L, -2);
  lua_call(L, 1, 1);
  const char *text = lua_tostring(L, -1);
  char *end = NULL;
  long long value = text != NULL ? strtoll(text, &end, 10) : 0;
  bool integer = end != NULL && end != text && (strcmp(end, "LL") == 0 || strcmp(end, "ULL") == 0);
  bool exact = value <= JSON_EXACT && value >= -JSON_EXACT; /* strtoll saturates: never exact by accident */
  if (!integer) refuse(E, "a cdata object has no form in JSON");
  if (integer && !exact) refuse(E, "integer %s is beyond 2^53", text);
  lua_pop(L, 1);
  return integer && exact && put_number(E, (double)value);
}

static bool put_string(encoder *E, const char *text, size_t len) {
  size_t valid = omni_utf8_valid(text, len);
  if (valid < len) return refuse(E, "the string is not UTF-8 at its byte %zu", valid + 1);
  omni_buf_json(&E->m->out, text, len);
  return true;
}

/* Whether the bounds allow one more value. */
static bool within(encoder *E) {
  const json_bounds *bounds = E->bounds;
  if (E->m->out.len > bounds->bytes) return refuse(E, "its text is longer than %zu bytes", bounds->bytes);
  if (E->m->count > bounds->keys) return refuse(E, "more than %zu keys", bounds->keys);
  if (++E->asked % 256 != 0 || !bounds->expired()) return true;
  return refuse(E, "the time is over");
}

/* ---- tables (on top of the stack; left there) ---- */

static bool put_value(encoder *E);

static bool is_item(lua_State *L, int idx) {
  if (lua_type(L, idx) != LUA_TNUMBER) return false;
  lua_Number key = lua_tonumber(L, idx);
  return key >= 1 && key == floor(key);
}

/* Numbers by value, then strings by their bytes, then the rest, which no message tells apart. */
static bool key_before(lua_State *L, int a, int b) {
  int x = lua_type(L, a), y = lua_type(L, b);
  int rank_x = x == LUA_TNUMBER ? -2 : x == LUA_TSTRING ? -1 : x;
  int rank_y = y == LUA_TNUMBER ? -2 : y == LUA_TSTRING ? -1 : y;
  return rank_x != rank_y ? rank_x < rank_y : rank_x < 0 && lua_lessthan(L, a, b);
}

/* Complains of the first key, in the order above, that has no place in the table: the same in every run, whereas the
 * order of a table with strings as keys depends on the seed of the state. */
static bool refuse_key(encoder *E, bool array) {
  lua_State *L = E->L;
  lua_pushnil(L);
  int least = lua_gettop(L);
  for (lua_pushnil(L); lua_next(L, least - 1) != 0; lua_pop(L, 1)) {
    if (array ? is_item(L, -2) : lua_type(L, -2) == LUA_TSTRING) continue;
    if (!lua_isnil(L, least) && !key_before(L, least + 1, least)) continue;
    lua_pushvalue(L, -2);
    lua_replace(L, least);
  }
  if (!array && lua_type(L, least) == LUA_TNUMBER)
    refuse(E, "object with the number key %.14g (an array has its items at 1..n)", lua_tonumber(L, least));
  else if (!array)
    refuse(E, "object with a key of type %s", luaL_typename(L, least));
  else if (lua_type(L, least) == LUA_TSTRING)
    refuse(E, "array with the key \"%.40s\": it can have items only", lua_tostring(L, least));
  else
    refuse(E, "array with a key that is no item number (%s)", luaL_typename(L, least));
  lua_settop(L, least - 1);
  return false;
}

/* How far the array goes: its keys must be exactly 1..n. */
static bool array_size(encoder *E, int *n) {
  lua_State *L = E->L;
  *n = 0;
  lua_Number last = 0;
  for (lua_pushnil(L); lua_next(L, -2) != 0; lua_pop(L, 1), ++*n) {
    if (E->bounds != NULL && !within(E)) {
      lua_pop(L, 2);
      return false;
    }
    if (!is_item(L, -2)) {
      lua_pop(L, 2);
      return refuse_key(E, true);
    }
    lua_Number key = lua_tonumber(L, -2);
    if (key > last) last = key;
  }
  return last == *n || refuse(E, "array with holes: %d items, the last one at %.14g", *n, last);
}

static bool put_array(encoder *E, frame *f) {
  int n;
  if (!array_size(E, &n)) return false;
  omni_buf_putc(&E->m->out, '[');
  for (int i = 1; i <= n; i++) {
    if (i > 1) omni_buf_putc(&E->m->out, ',');
    f->index = i;
    lua_rawgeti(E->L, -1, i);
    bool ok = put_value(E);
    lua_pop(E->L, 1);
    if (!ok) return false;
  }
  omni_buf_putc(&E->m->out, ']');
  return true;
}

static int compare_names(const void *a, const void *b) {
  const name *x = a, *y = b;
  int order = memcmp(x->text, y->text, x->len < y->len ? x->len : y->len);
  return order != 0 ? order : (x->len > y->len) - (x->len < y->len);
}

static bool push_name(encoder *E, const char *text, size_t len) {
  if (E->bounds != NULL && !within(E)) return false;
  if (E->m->count == E->m->cap) {
    size_t cap = E->m->cap == 0 ? 32 : E->m->cap * 2;
    name *names = realloc(E->m->names, cap * sizeof *names);
    if (names == NULL) return refuse(E, "out of memory");
    E->m->names = names;
    E->m->cap = cap;
  }
  E->m->names[E->m->count++] = (name){text, len};
  return true;
}

/* Puts the object's keys on the stack of names. */
static bool push_names(encoder *E) {
  lua_State *L = E->L;
  for (lua_pushnil(L); lua_next(L, -2) != 0; lua_pop(L, 1)) {
    size_t len;
    if (lua_type(L, -2) != LUA_TSTRING) {
      lua_pop(L, 2);
      return refuse_key(E, false);
    }
    const char *text = lua_tolstring(L, -2, &len);
    if (push_name(E, text, len)) continue;
    lua_pop(L, 2);
    return false;
  }
  return true;
}

/* Writes one member: ,"key":value */
static bool put_member(encoder *E, frame *f, name key, bool first) {
  if (!first) omni_buf_putc(&E->m->out, ',');
  f->key = key;
  if (!put_string(E, key.text, key.len)) return false;
  omni_buf_putc(&E->m->out, ':');
  lua_pushlstring(E->L, key.text, key.len);
  lua_rawget(E->L, -2);
  bool ok = put_value(E);
  lua_pop(E->L, 1);
  return ok;
}

static bool put_object(encoder *E, frame *f) {
  size_t base = E->m->count;
  if (!push_names(E)) return false;
  size_t end = E->m->count;
  if (end > base + 1) qsort(E->m->names + base, end - base, sizeof *E->m->names, compare_names);
  omni_buf_putc(&E->m->out, '{');
  for (size_t i = base; i < end; i++)
    if (!put_member(E, f, E->m->names[i], i == base)) return false;
  omni_buf_putc(&E->m->out, '}');
  E->m->count = base;
  return true;
}

/* Marked tables and those with an item 1 are arrays. */
static bool is_array(lua_State *L) {
  bool marked = false;
  if (lua_getmetatable(L, -1)) {
    marked = lua_rawequal(L, -1, JSON_UP_ARRAY);
    lua_pop(L, 1);
  }
  if (marked) return true;
  lua_rawgeti(L, -1, 1);
  bool item = !lua_isnil(L, -1);
  lua_pop(L, 1);
  return item;
}

/* Too deep: where a table stands within itself, that is the reason, and the path ends where it comes again. */
static bool refuse_depth(encoder *E) {
  for (int i = 1; i < E->depth; i++)
    for (int k = 0; k < i; k++)
      if (E->frames[k].table == E->frames[i].table) {
        E->depth = i;
        return refuse(E, "the table contains itself");
      }
  return refuse(E, "nested deeper than %d", JSON_DEPTH);
}

static bool put_table(encoder *E) {
  if (E->depth == JSON_DEPTH) return refuse_depth(E);
  if (!lua_checkstack(E->L, 6)) return refuse(E, "out of memory");
  frame *f = &E->frames[E->depth++];
  *f = (frame){.table = lua_topointer(E->L, -1)};
  bool ok = (is_array(E->L) ? put_array : put_object)(E, f);
  if (ok) E->depth--; /* else the frames tell where it was */
  return ok;
}

/* The value on top of the stack. */
static bool put_value(encoder *E) {
  lua_State *L = E->L;
  size_t len;
  const char *text;
  if (E->bounds != NULL && !within(E)) return false;
  switch (lua_type(L, -1)) {
  case LUA_TNIL: omni_buf_puts(&E->m->out, "null"); return true;
  case LUA_TBOOLEAN: omni_buf_puts(&E->m->out, lua_toboolean(L, -1) ? "true" : "false"); return true;
  case LUA_TNUMBER: return put_number(E, lua_tonumber(L, -1));
  case LUA_TSTRING: text = lua_tolstring(L, -1, &len); return put_string(E, text, len);
  case LUA_TTABLE: return put_table(E);
  case LUA_TLIGHTUSERDATA:
    if (lua_touserdata(L, -1) != NULL) break;
    omni_buf_puts(&E->m->out, "null");
    return true;
  case CDATA: return put_cdata(E);
  }
  return refuse(E, "a %s has no form in JSON", luaL_typename(L, -1));
}

/* ---- errors ---- */

static bool is_identifier(name key) {
  static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789";
  for (size_t i = 0; i < key.len; i++)
    if (key.text[i] == '\0' || strchr(letters, key.text[i]) == NULL) return false;
  return key.len > 0 && (key.text[0] < '0' || key.text[0] > '9');
}

/* $.items[3]["a b"] */
static void put_path(const encoder *E, omni_buf *path) {
  char index[16];
  omni_buf_putc(path, '$');
  for (int i = 0; i < E->depth && path->len < PATH_LIMIT; i++) {
    const frame *f = &E->frames[i];
    if (f->key.text != NULL) {
      omni_buf_putc(path, is_identifier(f->key) ? '.' : '[');
      if (is_identifier(f->key))
        omni_buf_put(path, f->key.text, f->key.len < 60 ? f->key.len : 60);
      else
        omni_buf_json(path, f->key.text, f->key.len < 60 ? f->key.len : 60);
      if (!is_identifier(f->key)) omni_buf_putc(path, ']');
    } else if (f->index > 0) {
      snprintf(index, sizeof index, "[%d]", f->index);
      omni_buf_puts(path, index);
    }
  }
  if (path->len >= PATH_LIMIT) omni_buf_puts(path, "...");
}

static int fail(lua_State *L, encoder *E) {
  omni_buf *path = &E->m->out;
  omni_buf_free(path);
  put_path(E, path);
  omni_buf_putc(path, '\0');
  return vm_fail(L, OMNI_EJSON, "%s: %s", path->failed ? "$" : path->data, E->problem);
}

int json_encode(lua_State *L) {
  luaL_checkany(L, 1);
  lua_settop(L, 1);
  encoder E;
  E.L = L;
  E.m = memory_push(L);
  E.bounds = lua_touserdata(L, JSON_UP_BOUNDS);
  E.asked = 0;
  E.depth = 0;
  lua_pushvalue(L, 1);
  bool ok = put_value(&E);
  if (ok && E.m->out.failed) ok = refuse(&E, "out of memory");
  int results = 1;
  if (ok)
    lua_pushlstring(L, E.m->out.data, E.m->out.len);
  else
    results = fail(L, &E);
  memory_free(E.m);
  return results;
}
