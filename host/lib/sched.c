/* omni.native.sched: tasks, tickets, park and unpark for Lua code that waits. */
#include "vm/state.h"

#include "lib/modules.h"

#include <math.h>

/* spawn(fn, ...): a new task; it starts on the next turn of the loop. */
static int sched_spawn(lua_State *L) {
  luaL_checktype(L, 1, LUA_TFUNCTION);
  vm_state *S = vm_of(L);
  int n = lua_gettop(L);
  if (!lua_checkstack(S->L, n + 2)) return luaL_error(L, "too many arguments");
  if (L != S->L) {
    lua_xmove(L, S->L, n);
  }
  if (vm_task_spawn(S, n - 1) == NULL) return luaL_error(L, "too many tasks, or out of memory");
  return 0;
}

/* run(fn, ...) -> boolean: as a task of its own, at once, until it ends (true) or first suspends; fn must not raise. */
static int sched_run(lua_State *L) {
  luaL_checktype(L, 1, LUA_TFUNCTION);
  return vm_task_run(L, lua_gettop(L) - 1);
}

/* ticket(what) -> number: stands for the running task's next park. */
static int sched_ticket(lua_State *L) {
  lua_pushnumber(L, (lua_Number)vm_ticket_next(L, luaL_optstring(L, 1, "this function")));
  return 1;
}

/* park(what, timeout?, hope?) -> true, values of unpark | false on timeout. */
static int sched_park(lua_State *L) {
  const char *what = luaL_checkstring(L, 1);
  double timeout = luaL_optnumber(L, 2, -1);
  luaL_argcheck(L, !isnan(timeout), 2, "a number of seconds expected, got nan");
  lua_settop(L, 3);
  return vm_park(L, what, timeout, 3);
}

/* unpark(ticket, ...) -> boolean: false when that suspension is over (or has not begun). */
static int sched_unpark(lua_State *L) {
  vm_ticket ticket = (vm_ticket)luaL_checknumber(L, 1);
  lua_pushboolean(L, vm_unpark_values(vm_of(L), ticket, L, lua_gettop(L) - 1));
  return 1;
}

/* now() -> seconds on the monotonic clock. */
static int sched_now(lua_State *L) {
  lua_pushnumber(L, (lua_Number)omni_sys_now() / 1e9);
  return 1;
}

/* can_suspend() -> boolean */
static int sched_can_suspend(lua_State *L) {
  lua_pushboolean(L, vm_of(L)->current != NULL && lua_isyieldable(L));
  return 1;
}

/* codec(encode, decode): keeps string.buffer's functions for values that cross to other states. Boot only. */
static int sched_codec(lua_State *L) {
  vm_codec_set(L);
  return 0;
}

/* guard(fn): runs every task's function from now on, fn(task_fn, ...). Boot only. */
static int sched_guard(lua_State *L) {
  vm_state *S = vm_of(L);
  lua_settop(L, 1);
  S->guard = luaL_ref(L, LUA_REGISTRYINDEX);
  return 0;
}

/* encode(value) -> string, decode(string) -> value: as values cross between states. */
static int sched_encode(lua_State *L) {
  luaL_checkany(L, 1);
  vm_buffer_encode(L, 1);
  return 1;
}

static int sched_decode(lua_State *L) {
  size_t len;
  const char *bytes = luaL_checklstring(L, 1, &len);
  vm_buffer_decode(L, bytes, len);
  return 1;
}

/* sentinel() -> what a suspending task yields; for boot, which passes it through users' coroutines. */
static int sched_sentinel(lua_State *L) {
  lua_pushlightuserdata(L, vm_sentinel());
  return 1;
}

int omni_open_sched(lua_State *L) {
  static const luaL_Reg functions[] = {{"spawn", sched_spawn},
                                       {"run", sched_run},
                                       {"ticket", sched_ticket},
                                       {"park", sched_park},
                                       {"unpark", sched_unpark},
                                       {"now", sched_now},
                                       {"can_suspend", sched_can_suspend},
                                       {"codec", sched_codec},
                                       {"guard", sched_guard},
                                       {"failed", vm_task_failed},
                                       {"traceback", vm_traceback},
                                       {"encode", sched_encode},
                                       {"sentinel", sched_sentinel},
                                       {"decode", sched_decode},
                                       {NULL, NULL}};
  lua_newtable(L);
  luaL_register(L, NULL, functions);
  return 1;
}
