/*
 * What rewritten programs call: P starts the reads of one boundary, R announces the call that is about to be made.
 * lua/omni/plm/rewrite.lua describes the text. Neither raises, runs code of the guest's or writes what it can see.
 */
#include "lib/guest.h"
#include "lib/json.h"

#include <stdlib.h>
#include <string.h>

#define VALUES_MAX 200 /* of one site's arguments, at once on the stack */

/* A plan as it is read: postfix code over the values of P. */
typedef struct reader {
  lua_State *L;
  const char *at, *end;
  int values; /* index of P's value 0: value i is at values + i */
  int top;    /* index where P's own values end */
  int base;   /* index below the site's arguments */
} reader;

/* Reads digits up to the stop character, and skips that. */
static size_t read_count(reader *r, char stop) {
  size_t n = 0;
  while (r->at < r->end && *r->at >= '0' && *r->at <= '9')
    n = n * 10 + (size_t)(*r->at++ - '0');
  if (r->at < r->end && *r->at == stop) r->at++;
  return n;
}

/* The bytes of an op with a length; NULL where the plan is not whole. */
static const char *read_bytes(reader *r, size_t *len) {
  *len = read_count(r, ':');
  const char *bytes = r->at;
  if (*len > (size_t)(r->end - r->at)) return NULL;
  r->at += *len;
  return bytes;
}

static bool is_plain_table(lua_State *L, int idx) {
  if (!lua_istable(L, idx)) return false;
  if (!lua_getmetatable(L, idx)) return true;
  luaL_getmetatable(L, JSON_ARRAY_MT); /* a mark: it has no __index */
  bool marked = lua_rawequal(L, -1, -2);
  lua_pop(L, 2);
  return marked;
}

/* ---- operations: false = cannot be done silently ---- */

static bool push_bytes(reader *r, char op) {
  size_t len;
  const char *bytes = read_bytes(r, &len);
  if (bytes == NULL) return false;
  char text[64];
  switch (op) {
  case 's': lua_pushlstring(r->L, bytes, len); return true;
  case 'g':
    lua_pushlstring(r->L, bytes, len);
    lua_rawget(r->L, LUA_GLOBALSINDEX);
    return true;
  default:
    if (len >= sizeof text) return false;
    memcpy(text, bytes, len);
    text[len] = '\0';
    lua_pushnumber(r->L, strtod(text, NULL));
    return true;
  }
}

static bool push_value(reader *r) {
  int i = r->values + (int)read_count(r, ':');
  if (i <= r->values || i > r->top) return false;
  lua_pushvalue(r->L, i);
  return true;
}

static bool index_table(reader *r) {
  lua_State *L = r->L;
  if (lua_gettop(L) < r->base + 2 || !is_plain_table(L, -2)) return false;
  lua_rawget(L, -2);
  lua_remove(L, -2);
  return true;
}

static bool set_member(reader *r) {
  lua_State *L = r->L;
  if (lua_gettop(L) < r->base + 3 || !lua_istable(L, -3) || lua_isnil(L, -2)) return false;
  lua_rawset(L, -3);
  return true;
}

static bool is_scalar(lua_State *L, int idx) {
  int type = lua_type(L, idx);
  return type == LUA_TNUMBER || type == LUA_TSTRING;
}

static bool combine(reader *r, char op) {
  lua_State *L = r->L;
  if (lua_gettop(L) < r->base + 2 || !is_scalar(L, -1) || !is_scalar(L, -2)) return false;
  if (op == '.') {
    lua_concat(L, 2);
    return true;
  }
  if (!lua_isnumber(L, -1) || !lua_isnumber(L, -2)) return false;
  lua_Number b = lua_tonumber(L, -1), a = lua_tonumber(L, -2);
  lua_pop(L, 2);
  lua_pushnumber(L, op == '+' ? a + b : op == '-' ? a - b : a * b);
  return true;
}

static bool run_op(reader *r) {
  lua_State *L = r->L;
  char op = *r->at++;
  switch (op) {
  case 's':
  case 'n':
  case 'g': return push_bytes(r, op);
  case 'v': return push_value(r);
  case 'z': lua_pushnil(L); return true;
  case 't':
  case 'f': lua_pushboolean(L, op == 't'); return true;
  case '{': lua_newtable(L); return true;
  case '=': return set_member(r);
  case 'i': return index_table(r);
  case '.':
  case '+':
  case '-':
  case '*': return combine(r, op);
  default: return false;
  }
}

/* ---- sites ---- */

static void drop(guest_program *p, uint32_t site) {
  uint32_t handle = p->sites[site].handle;
  p->sites[site].handle = 0;
  if (handle != 0) omni_run_cancel_handle(p->run, handle);
}

void guest_drop_later(guest_program *p, uint32_t site) {
  for (uint32_t i = site + 1; i <= p->sites[site].last; i++)
    drop(p, i);
}

uint32_t guest_claim(guest_program *p, uint32_t tool, uint32_t *site) {
  uint32_t armed = p->armed;
  *site = armed;
  p->armed = 0;
  if (armed == 0) return 0;
  if (p->sites[armed].tool != tool) {
    drop(p, armed);
    return 0;
  }
  uint32_t handle = p->sites[armed].handle;
  p->sites[armed].handle = 0;
  return handle;
}

/* Whether the tool's name still leads to the run's own function. */
static bool names_tool(lua_State *L, const guest_program *p, uint32_t tool) {
  int top = lua_gettop(L);
  const char *name = p->tools[tool].name, *dot;
  lua_pushvalue(L, LUA_GLOBALSINDEX);
  for (bool more = true; more; name = dot + 1) {
    dot = strchr(name, '.');
    more = dot != NULL;
    lua_pushlstring(L, name, more ? (size_t)(dot - name) : strlen(name));
    if (!is_plain_table(L, -2) && !lua_rawequal(L, -2, LUA_GLOBALSINDEX)) break;
    lua_rawget(L, -2);
    if (!more) break;
  }
  guest_push_tool(L, tool);
  bool same = lua_rawequal(L, -1, -2);
  lua_settop(L, top);
  return same;
}

/* Evaluates one site's arguments and starts its call. */
static void prepare_site(reader *r, guest_program *p, uint32_t number, int n, const char *end) {
  lua_State *L = r->L;
  guest_site *site = &p->sites[number];
  drop(p, number); /* left by an activation that an error ended */
  r->base = lua_gettop(L);
  bool done = names_tool(L, p, site->tool);
  while (done && r->at < end && lua_gettop(L) < r->base + VALUES_MAX)
    done = run_op(r);
  done = done && r->at == end && lua_gettop(L) == r->base + n;
  omni_blob *args = done ? guest_encode_values(L, n) : NULL;
  if (args != NULL) site->handle = omni_run_prepare(p->run, p->tools[site->tool].id, args, site->line);
  lua_settop(L, r->base);
  r->at = end;
}

static void run_plan(lua_State *L, guest_program *p, uint32_t number) {
  reader r = {.L = L, .at = p->plans[number], .values = 1, .top = lua_gettop(L)};
  const char *plan_end = r.at + p->plan_lens[number];
  luaL_checkstack(L, VALUES_MAX + 16, "too many values");
  while (r.at < plan_end && *r.at == 'S') {
    r.at++;
    r.end = plan_end;
    uint32_t site = (uint32_t)read_count(&r, ',');
    size_t n = read_count(&r, ','), len = read_count(&r, ':');
    if (len > (size_t)(plan_end - r.at) || site == 0 || site > p->site_count || n > VALUES_MAX) return;
    r.end = r.at + len;
    prepare_site(&r, p, site, (int)n, r.end);
  }
}

/* P's work under a protected call: memory can be short, a limit can be reached. */
static int prepare_body(lua_State *L) {
  guest_program *p = vm_guest_arg();
  lua_Integer number = lua_tointeger(L, 1);
  if (number >= 1 && number <= (lua_Integer)p->plan_count && p->run != NULL) run_plan(L, p, (uint32_t)number);
  return 0;
}

/* P(plan, values...) */
static int prepare(lua_State *L) {
  lua_pushvalue(L, lua_upvalueindex(1));
  lua_insert(L, 1);
  (void)lua_pcall(L, lua_gettop(L) - 1, 0, 0);
  return 0;
}

/* R(site, ...) -> ... */
static int resolve(lua_State *L) {
  guest_program *p = vm_guest_arg();
  lua_Integer site = lua_tointeger(L, 1);
  p->armed = site >= 1 && site <= (lua_Integer)p->site_count ? (uint32_t)site : 0;
  return lua_gettop(L) - 1;
}

void guest_push_prepare(lua_State *L) {
  lua_pushcfunction(L, prepare_body);
  lua_pushcclosure(L, prepare, 1);
  lua_pushcfunction(L, resolve);
}
