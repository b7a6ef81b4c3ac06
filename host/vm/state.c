/* Life of a state: create, run until nothing is left, end in order. */
#include "vm/state.h"

#include "core/pool.h"

#include <luv/luv.h>

#include <luv/lhandle.h>

#include <assert.h>
#include <lualib.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

vm_config vm_conf = {"omnihost", "", NULL};

static char state_key; /* registry key of the vm_state */

/* The answer given last on this thread, by the registry's address. Most threads have one state and all ask often. */
static _Thread_local struct {
  const void *registry;
  vm_state *S;
} last;

vm_state *vm_of(lua_State *L) {
  const void *registry = lua_topointer(L, LUA_REGISTRYINDEX);
  if (registry == last.registry) return last.S;
  lua_pushlightuserdata(L, &state_key);
  lua_rawget(L, LUA_REGISTRYINDEX);
  vm_state *S = lua_touserdata(L, -1);
  lua_pop(L, 1);
  if (S == NULL) return NULL; /* a guest's: not ours, and not remembered */
  last.registry = registry;
  last.S = S;
  return S;
}

lua_State *vm_main(vm_state *S) { return S->L; }

uv_loop_t *vm_loop(vm_state *S) { return &S->loop; }

omni_inbox *vm_inbox(vm_state *S) { return S->inbox; }

void vm_exit(vm_state *S, int code) {
  if (!S->exiting) S->code = code;
  S->exiting = true;
  uv_stop(&S->loop);
}

/* ---- errors ---- */

/* A line of a traceback: the user's, C's, or the host's own. */
typedef enum frame_kind { FRAME_USER, FRAME_C, FRAME_HOST } frame_kind;

static frame_kind kind_of(const char *line) {
  while (*line == '\t' || *line == ' ')
    line++;
  if (strncmp(line, "[C]:", 4) == 0 || strncmp(line, "[builtin:", 9) == 0) return FRAME_C;
  return strncmp(line, "builtin/", 8) == 0 ? FRAME_HOST : FRAME_USER;
}

/* Appends the lines of a traceback that help a user: from the first frame of the script to the last one, without ours
 * between them. A traceback of ours alone stays whole. */
static void add_user_frames(luaL_Buffer *out, const char *trace) {
  const char *pending = NULL; /* C frames that count only if a user's frame follows */
  bool any = false;
  for (const char *line = strchr(trace, '\n'); line != NULL; line = strchr(line + 1, '\n')) {
    const char *end = strchr(line + 1, '\n');
    frame_kind kind = kind_of(line + 1);
    if (kind == FRAME_C && any && pending == NULL) pending = line;
    if (kind == FRAME_HOST) pending = NULL;
    if (kind != FRAME_USER) continue;
    if (pending != NULL) luaL_addlstring(out, pending, (size_t)(line - pending));
    pending = NULL;
    any = true;
    luaL_addlstring(out, line, end != NULL ? (size_t)(end - line) : strlen(line));
  }
  if (!any && strchr(trace, '\n') != NULL) luaL_addstring(out, strchr(trace, '\n'));
}

/* Pushes the traceback of L, from `level` on, as users want to read it. */
static void push_traceback(lua_State *L, int level) {
  luaL_traceback(L, L, NULL, level);
  if (vm_conf.lua_root != NULL) return; /* a developer of the built-in Lua sees all of it */
  luaL_Buffer out;
  luaL_buffinit(L, &out);
  luaL_addstring(&out, "stack traceback:");
  add_user_frames(&out, lua_tostring(L, -1));
  luaL_pushresult(&out);
  lua_remove(L, -2);
}

int vm_traceback(lua_State *L) {
  if (lua_isnil(L, 1)) return 1;
  const char *text = lua_tostring(L, 1);
  if (text == NULL && luaL_callmeta(L, 1, "__tostring")) text = lua_tostring(L, -1);
  if (text == NULL) text = lua_pushfstring(L, "(error object is a %s value)", luaL_typename(L, 1));
  push_traceback(L, 1);
  lua_pushfstring(L, "%s\n%s", text, lua_tostring(L, -1));
  return 1;
}

/* A test run takes the errors of callbacks and spawned tasks, so that its summary survives them. */
static bool taken_by_test(vm_state *S, const char *text) {
  if (S->on_error == LUA_NOREF) return false;
  lua_rawgeti(S->L, LUA_REGISTRYINDEX, S->on_error);
  lua_pushstring(S->L, text);
  bool taken = lua_pcall(S->L, 1, 1, 0) == 0 && lua_toboolean(S->L, -1);
  lua_pop(S->L, 1);
  return taken;
}

void vm_report(vm_state *S, const char *text) {
  if (S->exiting || taken_by_test(S, text)) return;
  fprintf(stderr, "omnihost: %s\n", text);
  vm_exit(S, 1);
}

/* ---- callbacks ---- */

/* Runs a function under pcall as a callback of the loop. Returns pcall's status; on success nresults are left. */
static int guarded(vm_state *S, lua_State *L, int nargs, int nresults, const char *where) {
  vm_task *task = S->current;
  int base = lua_gettop(L) - nargs;
  lua_pushcfunction(L, vm_traceback);
  lua_insert(L, base);
  S->current = NULL; /* a callback is no task: suspending in it is refused with a clear error */
  S->depth++;
  int status = lua_pcall(L, nargs, nresults, base);
  S->depth--;
  S->current = task;
  lua_remove(L, base);
  if (status == 0) return 0;
  lua_pushfstring(L, "%s%s", where, lua_isnil(L, -1) ? "error without a value" : lua_tostring(L, -1));
  vm_report(S, lua_tostring(L, -1));
  lua_pop(L, 1);
  lua_pop(L, 1);
  return status;
}

void vm_callback(vm_state *S, int nargs, const char *where) {
  if (S->closing) {
    lua_pop(S->L, nargs + 1);
    return;
  }
  char prefix[80];
  snprintf(prefix, sizeof prefix, "%s: ", where);
  guarded(S, S->L, nargs, 0, prefix);
  vm_tasks_run_ready(S);
}

/* luv calls every callback through this. */
static int luv_callback(lua_State *L, int nargs, int nresults, int flags) {
  (void)flags;
  vm_state *S = vm_of(L);
  if (S->closing) {
    lua_pop(L, nargs + 1);
    return -LUA_ERRRUN;
  }
  int base = lua_gettop(L) - nargs - 1;
  int status = guarded(S, L, nargs, nresults, "");
  vm_tasks_run_ready(S);
  return status == 0 ? lua_gettop(L) - base : -status;
}

/* ---- open ---- */

static void after_deliveries(void *arg) { vm_tasks_run_ready(arg); }

#ifdef OMNI_LUA_MALLOC
/* Sanitizer builds: malloc lets ASan see each Lua object. */
static void *lua_alloc(void *ud, void *ptr, size_t osize, size_t nsize) {
  (void)ud, (void)osize;
  if (nsize == 0) {
    free(ptr);
    return NULL;
  }
  return realloc(ptr, nsize);
}
static lua_State *new_lua(void) { return lua_newstate(lua_alloc, NULL); }
#else
static lua_State *new_lua(void) { return luaL_newstate(); }
#endif

/* Under pcall: libraries, luv on the host's loop, built-in modules. */
static int open_libraries(lua_State *L) {
  vm_state *S = lua_touserdata(L, 1);
  lua_pushlightuserdata(L, &state_key);
  lua_pushlightuserdata(L, S);
  lua_rawset(L, LUA_REGISTRYINDEX);
  luaL_openlibs(L);
  vm_next_open(L);
  vm_tasks_open(S);
  /* On the main Lua thread, before any coroutine: opened inside one that is collected later, luv crashes. */
  luv_set_loop(L, &S->loop);
  luv_set_callback(L, luv_callback);
  lua_getglobal(L, "package");
  lua_getfield(L, -1, "loaded");
  lua_pushcfunction(L, luaopen_luv);
  lua_call(L, 0, 1);
  static const char *const hidden[] = {"walk",       "run",       "loop_close",   "new_thread",    "new_work",
                                       "queue_work", "new_async", "new_fs_event", "fs_event_start"};
  for (size_t i = 0; i < sizeof hidden / sizeof *hidden; i++) {
    lua_pushnil(L);
    lua_setfield(L, -2, hidden[i]);
  }
  lua_setfield(L, -2, "luv");
  lua_settop(L, 0);
  vm_builtin_open(L);
  return 0;
}

vm_state *vm_state_new(const char *name) {
  vm_state *S = calloc(1, sizeof *S);
  if (S == NULL) return NULL;
  snprintf(S->name, sizeof S->name, "%s", name);
  S->on_error = LUA_NOREF;
  if (uv_loop_init(&S->loop) != 0) goto fail_loop;
  S->loop.data = S;
  S->inbox = omni_inbox_new(&S->loop, after_deliveries, S);
  if (S->inbox == NULL) goto fail_inbox;
  S->L = new_lua();
  if (S->L == NULL) goto fail_lua;
  if (lua_cpcall(S->L, open_libraries, S) != 0) {
    fprintf(stderr, "omnihost: state %s: %s\n", name, lua_tostring(S->L, -1));
    vm_state_close(S);
    return NULL;
  }
  return S;
fail_lua:
  omni_inbox_close(S->inbox);
  omni_inbox_unref(S->inbox);
  uv_run(&S->loop, UV_RUN_DEFAULT);
fail_inbox:
  uv_loop_close(&S->loop);
fail_loop:
  free(S);
  return NULL;
}

/* ---- run ---- */

void vm_state_start(vm_state *S, int nargs) {
  S->main = vm_task_spawn(S, nargs);
  if (S->main == NULL) vm_exit(S, 1);
}

/* One wait for the inbox alone: nothing of this loop can go on, but somebody outside can. */
static void wait_outside(vm_state *S) {
  omni_inbox_keep(S->inbox, true);
  uv_run(&S->loop, UV_RUN_ONCE);
  omni_inbox_keep(S->inbox, false);
}

int vm_state_run(vm_state *S) {
  vm_tasks_run_ready(S);
  while (!S->exiting) {
    uv_run(&S->loop, UV_RUN_DEFAULT);
    if (S->exiting) break;
    if (S->ready != NULL) {
      vm_tasks_run_ready(S);
    } else if (vm_children_alive(S) || vm_tasks_hope(S)) {
      wait_outside(S);
    } else {
      if (S->task_count > 0 && vm_tasks_report_stuck(S) > 0) S->code = 1;
      vm_children_unseen(S);
      break;
    }
  }
  return S->code;
}

/* ---- close ---- */

/* luv's own handles are closed by their own method, so that luv frees what belongs to them. */
static void close_luv_handle(uv_handle_t *handle, void *arg) {
  vm_state *S = arg;
  if (uv_is_closing(handle)) return;
  luv_handle_t *luv = handle->data;
  lua_State *L = S->L;
  lua_rawgeti(L, LUA_REGISTRYINDEX, luv->ref);
  if (luaL_getmetafield(L, -1, "__index")) {
    lua_getfield(L, -1, "close");
    lua_pushvalue(L, -3);
    if (lua_pcall(L, 1, 0, 0) != 0) lua_pop(L, 1);
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
  if (!uv_is_closing(handle)) uv_close(handle, NULL);
}

void vm_state_close(vm_state *S) {
  S->exiting = true;
  vm_children_stop(S);
  S->closing = true;
  omni_inbox_close(S->inbox);
  vm_tasks_close(S);
  uv_walk(&S->loop, close_luv_handle, S);
  /* A stop that the last run did not see ends the first one at once; luv's close callbacks need the Lua state. */
  while (uv_run(&S->loop, UV_RUN_DEFAULT) != 0)
    ;
  lua_close(S->L);
  omni_pool_join_owned(S);
  /* Handles that finalizers closed. */
  uv_run(&S->loop, UV_RUN_DEFAULT);
  int left = uv_loop_close(&S->loop);
  assert(left == 0 && "every handle of the loop is closed");
  (void)left;
  omni_inbox_unref(S->inbox);
  vm_tasks_free(S);
  if (last.S == S) last.registry = NULL; /* its address may become another state's */
  free(S);
}
