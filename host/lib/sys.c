/* omni.native.sys: the rules behind the seam to the system, for specs. In builds without them every function raises. */
#include "core/sys_hooks.h"
#include "lib/modules.h"
#include "vm/vm.h"

#include <stdlib.h>
#include <string.h>

#ifdef OMNI_SYS_HOOKS

/* handle->extra of a rule: the task that waits for somebody to be held. */
typedef struct waiter {
  vm_state *S;
  vm_ticket ticket; /* 0 = nobody waits */
} waiter;

static void *rule_ref(void *rule) { return omni_sys_rule_ref(rule); }
static void rule_unref(void *rule) { omni_sys_rule_unref(rule); }

static int rule_hits(lua_State *L);
static int rule_reached(lua_State *L);
static int rule_release(lua_State *L);
static int rule_remove(lua_State *L);
static int rule_wait(lua_State *L);
static int rule_hope(lua_State *L);

static const luaL_Reg rule_methods[] = {{"hits", rule_hits},
                                        {"reached", rule_reached},
                                        {"release", rule_release},
                                        {"remove", rule_remove},
                                        {"_wait", rule_wait},
                                        {"__hope", rule_hope},
                                        {NULL, NULL}};
static const vm_class rule_class = {"omni.sys.rule", rule_ref, rule_unref, rule_methods};

static omni_sys_rule *check_rule(lua_State *L) { return vm_object_check(L, 1, &rule_class); }

static int rule_hits(lua_State *L) {
  lua_pushnumber(L, (lua_Number)omni_sys_rule_hits(check_rule(L)));
  return 1;
}

static int rule_reached(lua_State *L) {
  lua_pushboolean(L, omni_sys_rule_held(check_rule(L)) > 0);
  return 1;
}

static int rule_release(lua_State *L) {
  omni_sys_rule_release(check_rule(L));
  return 0;
}

static int rule_remove(lua_State *L) {
  omni_sys_rule_remove(check_rule(L));
  return 0;
}

/* Whether another thread can still come to the rule. */
static int rule_hope(lua_State *L) {
  lua_pushboolean(L, omni_sys_rule_active(check_rule(L)));
  return 1;
}

static void somebody_held(void *arg) {
  waiter *w = arg;
  vm_ticket ticket = w->ticket;
  w->ticket = 0;
  if (ticket != 0) vm_unpark(w->S, ticket);
}

static void let_go(vm_handle *handle) {
  omni_sys_rule_unbind(handle->object);
  free(handle->extra);
  handle->extra = NULL;
}

static waiter *waiter_of(lua_State *L, vm_handle *handle) {
  if (handle->extra != NULL) return handle->extra;
  waiter *w = calloc(1, sizeof *w);
  if (w == NULL) luaL_error(L, "out of memory");
  w->S = vm_of(L);
  handle->extra = w;
  handle->release = let_go;
  omni_sys_rule_bind(handle->object, vm_inbox(w->S), somebody_held, w);
  return w;
}

/* rule:_wait(seconds): true at once where somebody is held, else suspends; true when woken, false on timeout. */
static int rule_wait(lua_State *L) {
  vm_handle *handle = vm_handle_check(L, 1, &rule_class);
  double seconds = luaL_checknumber(L, 2);
  waiter *w = waiter_of(L, handle);
  /* The ticket stands before the look, so that whoever is held after the look wakes it. */
  w->ticket = vm_ticket_next(L, "rule:wait");
  if (omni_sys_rule_held(handle->object) == 0) return vm_park(L, "rule:wait", seconds, 1);
  w->ticket = 0;
  lua_pushboolean(L, 1);
  return 1;
}

/* ---- the module ---- */

static int action_named(lua_State *L, int idx) {
  static const char *const names[] = {"fail", "hold", "kill", NULL};
  static const omni_sys_action actions[] = {OMNI_SYS_FAIL, OMNI_SYS_HOLD, OMNI_SYS_DIE};
  return (int)actions[luaL_checkoption(L, idx, "fail", names)];
}

static omni_sys_op check_op(lua_State *L, int idx) {
  const char *name = luaL_checkstring(L, idx);
  omni_sys_op op = omni_sys_op_named(name);
  if (op == OMNI_SYS_OP_MAX) luaL_error(L, "unknown operation \"%s\" (they are in omni.native.sys.ops)", name);
  return op;
}

static uint64_t check_times(lua_State *L, int idx, lua_Number absent) {
  lua_Number n = luaL_optnumber(L, idx, absent);
  luaL_argcheck(L, n >= 0, idx, "a number of calls, not below 0, is needed");
  return n >= 9007199254740992.0 ? UINT64_MAX : (uint64_t)n;
}

static int check_errno(lua_State *L, int idx) {
  const char *name = luaL_optstring(L, idx, "EIO");
  int code = omni_sys_errno_named(name);
  if (code == 0) luaL_error(L, "unknown errno \"%s\": a name such as \"ENOSPC\" is needed", name);
  return code;
}

/* sys.rule(op, match, skip, times, action, errno, after) -> rule */
static int sys_rule(lua_State *L) {
  omni_sys_rule_opts opts = {.op = check_op(L, 1),
                             .match = luaL_optstring(L, 2, NULL),
                             .skip = check_times(L, 3, 0),
                             .times = check_times(L, 4, 1),
                             .action = (omni_sys_action)action_named(L, 5),
                             .errnum = check_errno(L, 6),
                             .after = lua_toboolean(L, 7)};
  omni_sys_rule *rule = omni_sys_rule_add(&opts);
  if (rule == NULL)
    return luaL_error(L, "a rule cannot fail a call after it was made, fail a POINT or CLOCK, or act after THREAD or "
                         "CLOCK");
  vm_handle_push(L, &rule_class, rule);
  return 1;
}

static int sys_count(lua_State *L) {
  lua_pushnumber(L, (lua_Number)omni_sys_count(check_op(L, 1)));
  return 1;
}

static int sys_reset(lua_State *L) {
  (void)L;
  omni_sys_reset();
  return 0;
}

/* sys.advance(seconds): omni_sys_now() goes on by so much. */
static int sys_advance(lua_State *L) {
  lua_Number seconds = luaL_checknumber(L, 1);
  luaL_argcheck(L, seconds >= 0 && seconds < 1e9, 1, "seconds, not below 0, are needed: the clock never goes back");
  omni_sys_advance((uint64_t)(seconds * 1e9));
  return 0;
}

/* sys.point(name): a named point passed by Lua itself. */
static int sys_point(lua_State *L) {
  omni_sys_point(luaL_checkstring(L, 1));
  return 0;
}

static void push_ops(lua_State *L) {
  lua_newtable(L);
  int n = 0;
#define X(op)                                                                                                          \
  lua_pushliteral(L, #op);                                                                                             \
  lua_rawseti(L, -2, ++n);
  OMNI_SYS_MAP(X)
#undef X
}

int omni_open_sys(lua_State *L) {
  static const luaL_Reg functions[] = {{"rule", sys_rule},       {"count", sys_count}, {"reset", sys_reset},
                                       {"advance", sys_advance}, {"point", sys_point}, {NULL, NULL}};
  lua_newtable(L);
  luaL_register(L, NULL, functions);
  push_ops(L);
  lua_setfield(L, -2, "ops");
  vm_class_push(L, &rule_class);
  lua_getfield(L, -1, "__index");
  lua_setfield(L, -3, "Rule"); /* the table of methods, where omni.testing.sys adds its own */
  lua_pop(L, 1);
  lua_pushboolean(L, 1);
  lua_setfield(L, -2, "enabled");
  return 1;
}

#else

static int unavailable(lua_State *L) {
  return luaL_error(L, "this omnihost is built without the hooks of its seam: use build/test/omnihost");
}

int omni_open_sys(lua_State *L) {
  static const luaL_Reg functions[] = {{"rule", unavailable},    {"count", unavailable}, {"reset", unavailable},
                                       {"advance", unavailable}, {"point", unavailable}, {NULL, NULL}};
  lua_newtable(L);
  luaL_register(L, NULL, functions);
  lua_newtable(L);
  lua_setfield(L, -2, "ops");
  lua_newtable(L);
  lua_setfield(L, -2, "Rule");
  lua_pushboolean(L, 0);
  lua_setfield(L, -2, "enabled");
  return 1;
}

#endif
