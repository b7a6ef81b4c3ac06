/* omni.native.host: the process and its main state, for the built-in Lua. */
#include "lib/host.h"

#include "core/control.h"
#include "core/sys.h"
#include "lib/modules.h"
#include "lib/sink.h"
#include "vm/signals.h"
#include "vm/state.h"

#include <luajit.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>

static char exit_token; /* error value of an os.exit that cannot suspend */

/* exit(code?): ends the run in order; does not return. true or nil = 0, false = 1. */
static int host_exit(lua_State *L) {
  vm_state *S = vm_of(L);
  int code = lua_isboolean(L, 1) ? !lua_toboolean(L, 1) : (int)luaL_optinteger(L, 1, 0);
  vm_exit(S, code & 0xff);
  if (S->current != NULL && lua_isyieldable(L)) return vm_park(L, "os.exit", -1, 0);
  lua_pushlightuserdata(L, &exit_token);
  return lua_error(L);
}

/* on_error(fn?): a test run takes errors of callbacks and spawned tasks: fn(text) -> true if it took it. */
static int host_on_error(lua_State *L) {
  vm_state *S = vm_of(L);
  luaL_unref(L, LUA_REGISTRYINDEX, S->on_error);
  S->on_error = LUA_NOREF;
  if (lua_isnoneornil(L, 1)) return 0;
  luaL_checktype(L, 1, LUA_TFUNCTION);
  lua_settop(L, 1);
  S->on_error = luaL_ref(L, LUA_REGISTRYINDEX);
  return 0;
}

/* raise_main(text) -> boolean: the main task, if it waits, gets this error where it waits. */
static int host_raise_main(lua_State *L) {
  vm_state *S = vm_of(L);
  lua_pushboolean(L, vm_task_raise(S, S->main, luaL_checkstring(L, 1)));
  return 1;
}

/* on_signal(fn(name, count)?): called for SIGINT and SIGTERM instead of ending the run. */
static int host_on_signal(lua_State *L) {
  if (!lua_isnoneornil(L, 1)) luaL_checktype(L, 1, LUA_TFUNCTION);
  lua_settop(L, 1);
  vm_signals_handler(L);
  return 0;
}

/* script_dir(dir): the folder of the script, before any other state exists; its modules are found from now on. */
static int host_script_dir(lua_State *L) {
  static char dir[4096];
  size_t len;
  const char *given = luaL_checklstring(L, 1, &len);
  luaL_argcheck(L, len < sizeof dir, 1, "a path of at most 4095 bytes expected");
  memcpy(dir, given, len + 1);
  vm_conf.script_dir = dir;
  vm_builtin_path(L);
  return 0;
}

/* ---- control channel of a worker ---- */

static omni_control *control;

/* control(fd, sink): lines of fd go to the sink; it closes at the end of the stream. Once a process. */
static int host_control(lua_State *L) {
  int fd = (int)luaL_checkinteger(L, 1);
  omni_sink *sink = omni_lib_sink(L, 2);
  if (control != NULL) return luaL_error(L, "the control channel is open already");
  control = omni_control_start(fd, sink, OMNI_LIB_STRING_TAG);
  if (control == NULL) return vm_fail(L, OMNI_ESYS, "no thread for the control channel");
  lua_pushboolean(L, 1);
  return 1;
}

void omni_host_stop_control(void) {
  if (control != NULL) omni_control_stop(control);
  control = NULL;
}

/* ---- descriptors ---- */

/* cloexec(fd): children do not get it. */
static int host_cloexec(lua_State *L) {
  int fd = (int)luaL_checkinteger(L, 1);
  int flags = fcntl(fd, F_GETFD);
  if (flags < 0 || fcntl(fd, F_SETFD, flags | FD_CLOEXEC) != 0)
    return vm_fail(L, omni_err_from_errno(errno), "descriptor %d: %s", fd, strerror(errno));
  lua_pushboolean(L, 1);
  return 1;
}

static int host_isatty(lua_State *L) {
  lua_pushboolean(L, isatty((int)luaL_checkinteger(L, 1)));
  return 1;
}

/* free_space(dir) -> bytes free, bytes in all | nil, error */
static int host_free_space(lua_State *L) {
  const char *dir = luaL_checkstring(L, 1);
  struct statvfs st;
  if (statvfs(dir, &st) != 0) return vm_fail(L, omni_err_from_errno(errno), "%s: %s", dir, strerror(errno));
  lua_pushnumber(L, (lua_Number)st.f_bavail * (lua_Number)st.f_frsize);
  lua_pushnumber(L, (lua_Number)st.f_blocks * (lua_Number)st.f_frsize);
  return 2;
}

/* kill_group(pgid, signal number) -> true | nil, error */
static int host_kill_group(lua_State *L) {
  pid_t group = (pid_t)luaL_checkinteger(L, 1);
  luaL_argcheck(L, group > 1, 1, "a process group above 1 expected");
  if (kill(-group, (int)luaL_checkinteger(L, 2)) != 0)
    return vm_fail(L, omni_err_from_errno(errno), "process group %d: %s", (int)group, strerror(errno));
  lua_pushboolean(L, 1);
  return 1;
}

/* ---- what a test looks for ---- */

static void count_handle(uv_handle_t *handle, void *arg) {
  if (!uv_is_closing(handle) && uv_is_active(handle) && uv_has_ref(handle)) ++*(int *)arg;
}

/* active_handles() -> number of active, referenced handles of this state's loop. */
static int host_active_handles(lua_State *L) {
  int n = 0;
  uv_walk(vm_loop(vm_of(L)), count_handle, &n);
  lua_pushinteger(L, n);
  return 1;
}

/* tasks() -> number of tasks of this state, the main one included. */
static int host_tasks(lua_State *L) {
  lua_pushinteger(L, (lua_Integer)vm_of(L)->task_count);
  return 1;
}

/* bells() -> doorbells rung for this state so far. */
static int host_bells(lua_State *L) {
  lua_pushnumber(L, (lua_Number)omni_inbox_bells(vm_inbox(vm_of(L))));
  return 1;
}

/* ---- facts ---- */

static void field(lua_State *L, const char *key, const char *value) {
  lua_pushstring(L, value);
  lua_setfield(L, -2, key);
}

/* facts() -> table of strings: exe, script_dir, version, luajit, libuv, os, machine. */
static int host_facts(lua_State *L) {
  struct utsname uts;
  uname(&uts);
  lua_newtable(L);
  field(L, "exe", vm_conf.exe);
  field(L, "script_dir", vm_conf.script_dir);
  if (vm_conf.lua_root != NULL) field(L, "lua_root", vm_conf.lua_root);
  field(L, "version", OMNI_VERSION);
  field(L, "luajit", LUAJIT_VERSION);
  field(L, "libuv", uv_version_string());
  field(L, "os", uts.sysname);
  field(L, "kernel", uts.release);
  field(L, "machine", uts.machine);
  field(L, "build", OMNI_VERSION " " LUAJIT_VERSION);
  return 1;
}

int omni_open_host(lua_State *L) {
  static const luaL_Reg functions[] = {{"exit", host_exit},
                                       {"on_error", host_on_error},
                                       {"raise_main", host_raise_main},
                                       {"on_signal", host_on_signal},
                                       {"script_dir", host_script_dir},
                                       {"control", host_control},
                                       {"cloexec", host_cloexec},
                                       {"isatty", host_isatty},
                                       {"free_space", host_free_space},
                                       {"kill_group", host_kill_group},
                                       {"active_handles", host_active_handles},
                                       {"tasks", host_tasks},
                                       {"bells", host_bells},
                                       {"facts", host_facts},
                                       {NULL, NULL}};
  lua_newtable(L);
  luaL_register(L, NULL, functions);
  return 1;
}
