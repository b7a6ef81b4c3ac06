/* string.format: numbers by LuaJIT's own, strings by ours, whose __tostring is bounded and which shows no addresses. */
#include "vm/guest_private.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* One conversion: %[flags][width][.precision]letter */
typedef struct conversion {
  char text[24]; /* from % to the letter, NUL-terminated */
  bool left;     /* flag - */
  int width;     /* -1 = none given; so too below */
  int precision;
  char letter;
} conversion;

/* At most two digits. */
static int read_number(lua_State *L, const char **p) {
  int n = 0, digits = 0;
  while (isdigit((unsigned char)**p)) {
    n = n * 10 + (*(*p)++ - '0');
    if (++digits > 2) luaL_error(L, "invalid format (width or precision too long)");
  }
  return n;
}

/* p is behind the %; returns behind the letter. */
static const char *read_conversion(lua_State *L, const char *p, conversion *c) {
  const char *start = p;
  *c = (conversion){.width = -1, .precision = -1};
  while (*p != '\0' && strchr("-+ #0", *p) != NULL) {
    if (*p++ == '-') c->left = true;
    if (p - start > 5) luaL_error(L, "invalid format (repeated flags)");
  }
  if (isdigit((unsigned char)*p)) c->width = read_number(L, &p);
  if (*p == '.') {
    p++;
    c->precision = read_number(L, &p);
  }
  c->letter = *p;
  if (*p == '\0' || strchr("diuoxXcaAeEfgGqsp", *p) == NULL) luaL_error(L, "invalid option '%%%c' to 'format'", *p);
  p++;
  snprintf(c->text, sizeof c->text, "%%%.*s", (int)(p - start), start);
  return p;
}

static void add_padded(guest_out *out, const conversion *c, const char *text, size_t len) {
  if (c->precision >= 0 && (size_t)c->precision < len) len = (size_t)c->precision;
  size_t pad = c->width > 0 && (size_t)c->width > len ? (size_t)c->width - len : 0;
  for (size_t i = 0; !c->left && i < pad; i++)
    guest_out_add(out, " ", 1);
  guest_out_add(out, text, len);
  for (size_t i = 0; c->left && i < pad; i++)
    guest_out_add(out, " ", 1);
}

/* By the format function at upvalue 1. */
static void add_by_lua(lua_State *L, guest_out *out, const conversion *c, int arg) {
  size_t len;
  lua_pushvalue(L, lua_upvalueindex(1));
  lua_pushstring(L, c->text);
  lua_pushvalue(L, arg);
  lua_call(L, 2, 1);
  const char *text = lua_tolstring(L, -1, &len);
  guest_out_add(out, text, len);
  lua_pop(L, 1);
}

static void add_value(lua_State *L, guest_out *out, const conversion *c, int arg) {
  size_t len;
  const char *text;
  char number[24] = "null";
  switch (c->letter) {
  case 's':
    luaL_checkany(L, arg);
    text = guest_tolstring(L, arg, &len);
    add_padded(out, c, text, len);
    lua_pop(L, 1);
    break;
  case 'p': /* an address elsewhere; here the number that tostring shows */
    luaL_checkany(L, arg);
    if (lua_istable(L, arg) || lua_isfunction(L, arg) || lua_isthread(L, arg))
      snprintf(number, sizeof number, "%.0f", guest_object_number(L, arg));
    add_padded(out, c, number, strlen(number));
    break;
  case 'q':
    luaL_checklstring(L, arg, &len);
    if (len > GUEST_STRING_MAX / 8) luaL_error(L, "string.format: the string is too long for %%q");
    vm_guest_charge(L, len / 2);
    add_by_lua(L, out, c, arg);
    break;
  default: luaL_checknumber(L, arg); add_by_lua(L, out, c, arg);
  }
}

int guest_format(lua_State *L) {
  size_t len;
  const char *p = luaL_checklstring(L, 1, &len), *end = p + len;
  int arg = 1, top = lua_gettop(L);
  guest_out out;
  guest_out_open(&out, L, len + 64);
  while (p < end) {
    const char *sign = memchr(p, '%', (size_t)(end - p));
    guest_out_add(&out, p, (size_t)((sign != NULL ? sign : end) - p));
    if (sign == NULL) break;
    p = sign + 1;
    if (p < end && *p == '%') {
      guest_out_add(&out, p++, 1);
      continue;
    }
    conversion c;
    p = read_conversion(L, p, &c);
    if (++arg > top) return luaL_argerror(L, arg, "no value");
    add_value(L, &out, &c, arg);
    vm_guest_charge(L, 4);
  }
  guest_out_push(&out);
  return 1;
}
