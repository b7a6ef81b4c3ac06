/* The string library of guests: Lua 5.1's, with bounded sizes and matching by guest_match.c. */
#include "vm/guest_private.h"

#include <ctype.h>
#include <string.h>

/* A position as the user gives it, counted from the end where negative; 0 is before the string. */
static size_t position(lua_Integer at, size_t len) {
  if (at >= 0) return (size_t)at;
  size_t back = (size_t)0 - (size_t)at;
  return back > len ? 0 : len - back + 1;
}

/* ---- sizes ---- */

static int too_long(lua_State *L, const char *name) {
  return luaL_error(L, "string.%s: the string would be longer than %d bytes", name, (int)GUEST_STRING_MAX);
}

static int guest_rep(lua_State *L) {
  size_t len, gap;
  const char *text = luaL_checklstring(L, 1, &len);
  double times = luaL_checknumber(L, 2);
  const char *separator = luaL_optlstring(L, 3, "", &gap);
  if (!(times >= 1) || (len == 0 && gap == 0)) {
    lua_pushliteral(L, "");
    return 1;
  }
  if (times * (double)(len + gap) > (double)(GUEST_STRING_MAX + gap)) return too_long(L, "rep");
  size_t unit = len + gap, total = (size_t)times * unit - gap;
  char *to = lua_newuserdata(L, total + gap);
  memcpy(to, text, len);
  memcpy(to + len, separator, gap);
  for (size_t done = unit; done < total; done *= 2) /* what is there is copied as a whole */
    memcpy(to + done, to, done < total - done ? done : total - done);
  vm_guest_charge(L, total / 16);
  lua_pushlstring(L, to, total);
  return 1;
}

/* reverse, lower, upper. */
static int transformed(lua_State *L, const char *name, void (*transform)(char *to, const char *from, size_t len)) {
  size_t len;
  const char *text = luaL_checklstring(L, 1, &len);
  if (len > GUEST_STRING_MAX) return too_long(L, name);
  vm_guest_charge(L, len / 4);
  char small[256], *to = len <= sizeof small ? small : lua_newuserdata(L, len);
  transform(to, text, len);
  lua_pushlstring(L, to, len);
  return 1;
}

static void reverse_bytes(char *to, const char *from, size_t len) {
  for (size_t i = 0; i < len; i++)
    to[i] = from[len - 1 - i];
}

static void lower_bytes(char *to, const char *from, size_t len) {
  for (size_t i = 0; i < len; i++)
    to[i] = (char)tolower((unsigned char)from[i]);
}

static void upper_bytes(char *to, const char *from, size_t len) {
  for (size_t i = 0; i < len; i++)
    to[i] = (char)toupper((unsigned char)from[i]);
}

static int guest_reverse(lua_State *L) { return transformed(L, "reverse", reverse_bytes); }
static int guest_lower(lua_State *L) { return transformed(L, "lower", lower_bytes); }
static int guest_upper(lua_State *L) { return transformed(L, "upper", upper_bytes); }

/* ---- find, match, gmatch ---- */

/* Without the budget a search by memmem could take long, but it is linear. */
static int find_plain(lua_State *L, const char *text, size_t len, const char *what, size_t wlen, size_t from) {
  vm_guest_charge(L, (len - from) / 16);
  const char *found = memmem(text + from, len - from, what, wlen);
  if (found == NULL) {
    lua_pushnil(L);
    return 1;
  }
  lua_pushinteger(L, found - text + 1);
  lua_pushinteger(L, found - text + (lua_Integer)wlen);
  return 2;
}

static int push_found(lua_State *L, guest_matcher *m, const char *from, const char *to, bool positions) {
  guest_matcher_done(m);
  if (!positions) return guest_matcher_push_all(m, from, to);
  lua_pushinteger(L, from - m->text + 1);
  lua_pushinteger(L, to - m->text);
  return 2 + guest_matcher_push_all(m, NULL, NULL);
}

static int find_or_match(lua_State *L, bool find) {
  size_t len, plen;
  const char *text = luaL_checklstring(L, 1, &len), *pattern = luaL_checklstring(L, 2, &plen);
  size_t from = position(luaL_optinteger(L, 3, 1), len);
  from = from > 0 ? from - 1 : 0;
  if (from > len) from = len;
  if (find && (lua_toboolean(L, 4) || (strpbrk(pattern, "^$*+?.([%-") == NULL && strlen(pattern) == plen)))
    return find_plain(L, text, len, pattern, plen, from);
  bool anchored = *pattern == '^';
  guest_matcher m;
  guest_matcher_init(&m, L, text, len, pattern, plen);
  for (const char *at = text + from; at <= m.text_end; at++) {
    m.captures = 0;
    const char *end = guest_matcher_at(&m, at, pattern + anchored);
    if (end != NULL) return push_found(L, &m, at, end, find);
    if (anchored) break;
  }
  guest_matcher_done(&m);
  lua_pushnil(L);
  return 1;
}

static int guest_find(lua_State *L) { return find_or_match(L, true); }
static int guest_match(lua_State *L) { return find_or_match(L, false); }

/* Upvalues: text, pattern, where to go on. */
static int gmatch_next(lua_State *L) {
  size_t len, plen;
  const char *text = lua_tolstring(L, lua_upvalueindex(1), &len);
  const char *pattern = lua_tolstring(L, lua_upvalueindex(2), &plen);
  guest_matcher m;
  guest_matcher_init(&m, L, text, len, pattern, plen);
  for (const char *at = text + lua_tointeger(L, lua_upvalueindex(3)); at <= m.text_end; at++) {
    m.captures = 0;
    const char *end = guest_matcher_at(&m, at, pattern);
    if (end == NULL) continue;
    lua_pushinteger(L, end - text + (end == at));
    lua_replace(L, lua_upvalueindex(3));
    return push_found(L, &m, at, end, false);
  }
  guest_matcher_done(&m);
  return 0;
}

static int guest_gmatch(lua_State *L) {
  luaL_checkstring(L, 1);
  luaL_checkstring(L, 2);
  lua_settop(L, 2);
  lua_pushinteger(L, 0);
  lua_pushcclosure(L, gmatch_next, 3);
  return 1;
}

/* ---- gsub ---- */

/* The replacement text with its %0 to %9. */
static void add_template(guest_matcher *m, guest_out *out, const char *from, const char *to) {
  size_t len;
  const char *text = lua_tolstring(m->L, 3, &len), *end = text + len;
  while (text < end) {
    const char *sign = memchr(text, '%', (size_t)(end - text));
    guest_out_add(out, text, (size_t)((sign != NULL ? sign : end) - text));
    if (sign == NULL) return;
    text = sign + 1;
    if (text < end && *text == '0') {
      guest_out_add(out, from, (size_t)(to - from));
    } else if (text < end && isdigit((unsigned char)*text)) {
      size_t size;
      guest_matcher_push(m, *text - '1', from, to);
      const char *capture = lua_tolstring(m->L, -1, &size);
      guest_out_add(out, capture, size);
      lua_pop(m->L, 1);
    } else if (text < end) {
      guest_out_add(out, text, 1);
    }
    text++;
  }
}

/* What a table or a function gives for the match; nothing keeps it as it is. */
static void add_value(guest_matcher *m, guest_out *out, const char *from, const char *to) {
  lua_State *L = m->L;
  vm_guest_check_stack(L);
  if (lua_type(L, 3) == LUA_TFUNCTION) {
    lua_pushvalue(L, 3);
    int n = guest_matcher_push_all(m, from, to);
    lua_call(L, n, 1);
  } else {
    guest_matcher_push(m, 0, from, to);
    lua_gettable(L, 3);
  }
  size_t len = (size_t)(to - from);
  const char *text = from;
  if (lua_toboolean(L, -1)) {
    if (!lua_isstring(L, -1)) luaL_error(L, "invalid replacement value (a %s)", luaL_typename(L, -1));
    text = lua_tolstring(L, -1, &len);
  }
  guest_out_add(out, text, len);
  lua_pop(L, 1);
}

static int guest_gsub(lua_State *L) {
  size_t len, plen;
  const char *text = luaL_checklstring(L, 1, &len), *pattern = luaL_checklstring(L, 2, &plen);
  int kind = lua_type(L, 3);
  luaL_argcheck(L, kind == LUA_TNUMBER || kind == LUA_TSTRING || kind == LUA_TFUNCTION || kind == LUA_TTABLE, 3,
                "string/function/table expected");
  double limit = luaL_optnumber(L, 4, (double)len + 1);
  lua_settop(L, 3);
  if (kind == LUA_TNUMBER) lua_tostring(L, 3);
  bool by_text = kind == LUA_TNUMBER || kind == LUA_TSTRING, anchored = *pattern == '^';
  const char *at = text;
  int n = 0;
  guest_out out;
  guest_out_open(&out, L, len + 64);
  guest_matcher m;
  guest_matcher_init(&m, L, text, len, pattern, plen);
  while (n < limit) {
    m.captures = 0;
    const char *end = guest_matcher_at(&m, at, pattern + anchored);
    if (end != NULL) {
      n++;
      (by_text ? add_template : add_value)(&m, &out, at, end);
    }
    if (end != NULL && end > at)
      at = end;
    else if (at < m.text_end)
      guest_out_add(&out, at++, 1);
    else
      break;
    if (anchored) break;
  }
  guest_matcher_done(&m);
  guest_out_add(&out, at, (size_t)(m.text_end - at));
  guest_out_push(&out);
  lua_pushinteger(L, n);
  return 2;
}

void guest_string_open(lua_State *L) {
  static const luaL_Reg functions[] = {{"find", guest_find},   {"match", guest_match}, {"gmatch", guest_gmatch},
                                       {"gsub", guest_gsub},   {"rep", guest_rep},     {"reverse", guest_reverse},
                                       {"lower", guest_lower}, {"upper", guest_upper}, {NULL, NULL}};
  luaL_register(L, NULL, functions);
  lua_getfield(L, LUA_GLOBALSINDEX, "string");
  lua_getfield(L, -1, "format");
  lua_pushcclosure(L, guest_format, 1);
  lua_setfield(L, -3, "format");
  lua_pop(L, 1);
}
