/* The environment of guests: an allow-list, with what differs from LuaJIT's own replaced. */
#include "vm/guest_private.h"

#include <lualib.h>
#include <stdio.h>
#include <string.h>

static char numbers_key; /* registry key of the table: object -> its number */

/*
 * pcall and xpcall, in Lua so that what they call can yield. LuaJIT's pcall looks at the stack only where it enters a
 * Lua function: with itself as __call of what it calls, it runs over the stack's end. Here it is given functions only,
 * and what is no function is called by Lua code. xpcall unwinds first: a message handler of LuaJIT's runs with hooks
 * off, where nothing could stop it.
 */
static const char prelude[] =
    "local pcall, callable, type, error, select = ...\n"
    "local function call(f, ...) return f(...) end\n"
    "local function protected(...)\n"
    "  if select('#', ...) == 0 then error(\"bad argument #1 to 'pcall' (value expected)\", 2) end\n"
    "  local f = ...\n"
    "  if type(f) == 'function' then return pcall(...) end\n"
    "  if callable(f) then return pcall(call, ...) end\n"
    "  return false, 'attempt to call a ' .. type(f) .. ' value'\n"
    "end\n"
    "local function handled(ok, ...)\n"
    "  if ok then return false, ... end\n"
    "  return false, 'error in error handling'\n"
    "end\n"
    "local function finish(handler, ok, ...)\n"
    "  if ok then return true, ... end\n"
    "  return handled(protected(handler, ...))\n"
    "end\n"
    "return protected, function(body, handler, ...)\n"
    "  if handler == nil then error(\"bad argument #2 to 'xpcall' (value expected)\", 2) end\n"
    "  return finish(handler, protected(body, ...))\n"
    "end\n";

/* ---- values as text ---- */

lua_Number guest_object_number(lua_State *L, int idx) {
  lua_pushvalue(L, idx);
  lua_pushlightuserdata(L, &numbers_key);
  lua_rawget(L, LUA_REGISTRYINDEX); /* object numbers */
  lua_pushvalue(L, -2);
  lua_rawget(L, -2); /* object numbers number */
  lua_Number number = lua_tonumber(L, -1);
  if (lua_isnil(L, -1)) {
    lua_rawgeti(L, -2, 0);
    number = lua_tonumber(L, -1) + 1;
    lua_pop(L, 1);
    lua_pushnumber(L, number);
    lua_rawseti(L, -3, 0);
    lua_pushvalue(L, -3);
    lua_pushnumber(L, number);
    lua_rawset(L, -4);
  }
  lua_pop(L, 3);
  return number;
}

/* What __tostring gives. */
static const char *call_tostring(lua_State *L, int idx, size_t *len) {
  vm_guest_check_stack(L);
  lua_pushvalue(L, idx);
  lua_call(L, 1, 1);
  if (lua_type(L, -1) != LUA_TSTRING && lua_type(L, -1) != LUA_TNUMBER)
    luaL_error(L, "'__tostring' must return a string");
  return lua_tolstring(L, -1, len);
}

const char *guest_tolstring(lua_State *L, int idx, size_t *len) {
  luaL_checkstack(L, 8, "too many values");
  if (idx < 0 && idx > LUA_REGISTRYINDEX) idx = lua_gettop(L) + idx + 1;
  char text[48];
  switch (lua_type(L, idx)) {
  case LUA_TNUMBER:
  case LUA_TSTRING: lua_pushvalue(L, idx); break;
  case LUA_TBOOLEAN: lua_pushstring(L, lua_toboolean(L, idx) ? "true" : "false"); break;
  case LUA_TNIL:
  case LUA_TNONE: lua_pushliteral(L, "nil"); break;
  case LUA_TLIGHTUSERDATA: lua_pushliteral(L, "null"); break;
  default:
    if (luaL_getmetafield(L, idx, "__tostring")) return call_tostring(L, idx, len);
    snprintf(text, sizeof text, "%s: 0x%08x", luaL_typename(L, idx), (unsigned)guest_object_number(L, idx));
    lua_pushstring(L, text);
  }
  return lua_tolstring(L, -1, len);
}

static int guest_tostring(lua_State *L) {
  luaL_checkany(L, 1);
  guest_tolstring(L, 1, NULL);
  return 1;
}

static void print_bytes(vm_guest *g, const char *data, size_t len) {
  size_t room = g->limits.output - g->printed.len, kept = len < room ? len : room;
  omni_buf_put(&g->printed, data, kept);
  g->printed_lost += len - kept;
}

static int guest_print(lua_State *L) {
  vm_guest *g = vm_guest_self();
  int n = lua_gettop(L);
  for (int i = 1; i <= n; i++) {
    size_t len;
    const char *text = guest_tolstring(L, i, &len);
    if (i > 1) print_bytes(g, "\t", 1);
    print_bytes(g, text, len);
    lua_pop(L, 1);
    vm_guest_charge(L, 10 + len / 16);
  }
  print_bytes(g, "\n", 1);
  return 0;
}

/* Whether the value can be called. */
static int guest_callable(lua_State *L) {
  bool can = lua_isfunction(L, 1) || luaL_getmetafield(L, 1, "__call");
  lua_pushboolean(L, can);
  return 1;
}

/* ---- building ---- */

void guest_take(lua_State *L, const char *library, const char *const *names) {
  lua_getfield(L, LUA_GLOBALSINDEX, library);
  for (; *names != NULL; names++) {
    lua_getfield(L, -1, *names);
    lua_setfield(L, -3, *names);
  }
  lua_pop(L, 1);
}

static void open_libraries(lua_State *L) {
  static const luaL_Reg libraries[] = {{"", luaopen_base},
                                       {LUA_TABLIBNAME, luaopen_table},
                                       {LUA_STRLIBNAME, luaopen_string},
                                       {LUA_MATHLIBNAME, luaopen_math},
                                       {LUA_BITLIBNAME, luaopen_bit},
                                       {NULL, NULL}};
  for (const luaL_Reg *library = libraries; library->func != NULL; library++) {
    lua_pushcfunction(L, library->func);
    lua_pushstring(L, library->name);
    lua_call(L, 1, 0);
  }
}

/* A library of which only some functions are let through. */
static void add_library(lua_State *L, const char *name, const char *const *names, void (*open)(lua_State *L)) {
  lua_newtable(L);
  guest_take(L, name, names);
  if (open != NULL) open(L);
  lua_setfield(L, -2, name);
}

/* pcall and xpcall into the table on top. */
static void add_protected_calls(lua_State *L) {
  static const char *const needed[] = {"type", "error", "select"};
  if (luaL_loadbuffer(L, prelude, sizeof prelude - 1, "@builtin/guest.lua") != 0) lua_error(L);
  lua_getfield(L, LUA_GLOBALSINDEX, "pcall");
  lua_pushcfunction(L, guest_callable);
  for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
    lua_getfield(L, LUA_GLOBALSINDEX, needed[i]);
  lua_call(L, 5, 2);
  lua_setfield(L, -3, "xpcall");
  lua_setfield(L, -2, "pcall");
}

static void add_base(lua_State *L) {
  static const char *const base[] = {"assert",   "error",  "getmetatable", "ipairs",   "pcall",
                                     "rawequal", "rawget", "rawset",       "select",   "setmetatable",
                                     "tonumber", "type",   "unpack",       "_VERSION", NULL};
  static const luaL_Reg own[] = {{"print", guest_print}, {"tostring", guest_tostring}, {NULL, NULL}};
  guest_take(L, "_G", base);
  luaL_register(L, NULL, own);
  guest_order_open(L);
  add_protected_calls(L);
}

/* The methods of strings are those of the guest's own string table; the metatable stays out of reach. */
static void lock_strings(lua_State *L) {
  lua_pushliteral(L, "");
  lua_newtable(L);
  lua_getfield(L, -3, "string");
  lua_setfield(L, -2, "__index");
  lua_pushliteral(L, "locked");
  lua_setfield(L, -2, "__metatable");
  lua_setmetatable(L, -2);
  lua_pop(L, 1);
}

void guest_env_open(lua_State *L) {
  static const char *const math[] = {"abs",        "acos", "asin",  "atan", "atan2", "ceil", "cos",   "cosh",
                                     "deg",        "exp",  "floor", "fmod", "frexp", "huge", "ldexp", "log",
                                     "log10",      "max",  "min",   "modf", "pi",    "pow",  "rad",   "random",
                                     "randomseed", "sin",  "sinh",  "sqrt", "tan",   "tanh", NULL};
  static const char *const bit[] = {"arshift", "band", "bnot",   "bor",   "bswap", "bxor", "lshift",
                                    "rol",     "ror",  "rshift", "tobit", "tohex", NULL};
  static const char *const table[] = {"maxn", NULL};
  static const char *const string[] = {"byte", "char", "len", "sub", NULL};
  static const char *const coroutine[] = {"create", "isyieldable", "running", "status", "yield", NULL};
  open_libraries(L);
  lua_pushlightuserdata(L, &numbers_key);
  lua_newtable(L);
  lua_createtable(L, 0, 1);
  lua_pushliteral(L, "k"); /* numbers do not keep objects alive */
  lua_setfield(L, -2, "__mode");
  lua_setmetatable(L, -2);
  lua_rawset(L, LUA_REGISTRYINDEX);
  lua_newtable(L);
  add_base(L);
  add_library(L, "math", math, NULL);
  add_library(L, "bit", bit, NULL);
  add_library(L, "table", table, guest_table_open);
  add_library(L, "string", string, guest_string_open);
  add_library(L, "coroutine", coroutine, guest_coroutine_open);
  lock_strings(L);
  lua_pushvalue(L, -1);
  lua_setfield(L, -2, "_G");
  lua_replace(L, LUA_GLOBALSINDEX);
}
