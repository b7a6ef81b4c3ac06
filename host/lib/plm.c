/* omni.native.plm: manifests' pools and runs; lua/omni/plm has the halves that suspend. */
#include "lib/plm.h"

#include "lib/modules.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const vm_class pool_class, run_class, call_class;
static char home_key; /* registry key of the function that runs a job at home */

omni_pool *omni_plm_pool_check(lua_State *L, int idx) { return vm_object_check(L, idx, &pool_class); }
omni_run *omni_plm_run_check(lua_State *L, int idx) { return vm_object_check(L, idx, &run_class); }
static omni_call *check_call(lua_State *L) { return vm_object_check(L, 1, &call_class); }

/* ---- the home ---- */

typedef struct lua_home {
  vm_state *S;
  omni_pool *pool; /* the handle's */
} lua_home;

static void run_at_home(lua_home *home, omni_job *job) {
  lua_State *L = vm_main(home->S);
  lua_pushlightuserdata(L, &home_key);
  lua_rawget(L, LUA_REGISTRYINDEX);
  if (plm_job_push(L, omni_job_ref(job)) == NULL) {
    lua_pop(L, 1);
    omni_home_finish(job, omni_error_response("ENOMEM", "out of memory"));
    return;
  }
  omni_job_unref(job);
  vm_callback(home->S, 1, "omni.plm");
}

/* On the loop, whenever a job came or was cancelled. */
static void on_home(void *arg) {
  lua_home *home = arg;
  omni_pool *pool = home->pool; /* what runs here may drop the handle and its home; the bell keeps the pool */
  for (omni_job *job; (job = omni_home_cancelled(pool)) != NULL;)
    plm_job_interrupt(job);
  vm_state *S = home->S;
  lua_home copy = {S, pool};
  for (omni_job *job; (job = omni_home_take(pool)) != NULL;)
    run_at_home(&copy, job);
}

/* home(fn): runs jobs of inline tools, fn(job). Once per state. */
static int plm_home(lua_State *L) {
  luaL_checktype(L, 1, LUA_TFUNCTION);
  lua_pushlightuserdata(L, &home_key);
  lua_pushvalue(L, 1);
  lua_rawset(L, LUA_REGISTRYINDEX);
  return 0;
}

/* ---- pools ---- */

static void release_pool(vm_handle *handle) {
  omni_pool_home_gone(handle->object);
  free(handle->extra);
  handle->extra = NULL;
}

static void unref_pool(void *pool) { omni_pool_release(pool); }

static void read_tool(lua_State *L, omni_tool *tool) {
  lua_getfield(L, -1, "name");
  tool->name = luaL_checkstring(L, -1); /* kept by the caller's table */
  lua_getfield(L, -2, "early");
  tool->early = lua_toboolean(L, -1);
  lua_getfield(L, -3, "home");
  tool->home = lua_toboolean(L, -1);
  lua_getfield(L, -4, "timeout");
  tool->timeout = (uint64_t)(luaL_optnumber(L, -1, 0) * 1e9);
  lua_getfield(L, -5, "max_in_flight");
  tool->max_in_flight = (unsigned)luaL_optnumber(L, -1, 0);
  lua_pop(L, 5);
}

/* pool(tools, workers, setup): tools = {{name=, early=, home=, timeout=, max_in_flight=}, ...}. */
static int plm_pool(lua_State *L) {
  static const omni_pool_ops ops = {plm_worker_main, on_home};
  luaL_checktype(L, 1, LUA_TTABLE);
  size_t count = lua_objlen(L, 1);
  omni_tool *tools = lua_newuserdata(L, (count + 1) * sizeof *tools);
  for (size_t i = 0; i < count; i++) {
    lua_rawgeti(L, 1, (int)i + 1);
    read_tool(L, &tools[i]);
    lua_pop(L, 1);
  }
  omni_blob *setup = vm_encode(L, 3);
  if (setup == NULL) return lua_error(L);
  vm_state *S = vm_of(L);
  lua_home *home = malloc(sizeof *home);
  omni_pool *pool = omni_pool_new(tools, (uint32_t)count, (unsigned)luaL_checkint(L, 2), &ops, setup, S);
  if (pool == NULL || home == NULL) {
    free(home);
    if (pool != NULL) omni_pool_release(pool);
    return luaL_error(L, "out of memory");
  }
  *home = (lua_home){S, pool};
  omni_pool_set_home(pool, vm_inbox(S), home);
  vm_handle *handle = vm_handle_push(L, &pool_class, pool);
  handle->extra = home;
  handle->release = release_pool;
  return 1;
}

static int pool_close(lua_State *L) {
  vm_handle_release(vm_handle_check(L, 1, &pool_class));
  return 0;
}

static int pool_closed(lua_State *L) {
  lua_pushboolean(L, vm_handle_check(L, 1, &pool_class)->object == NULL);
  return 1;
}

/* _id() -> light userdata: what job:_pool() gives. */
static int pool_id(lua_State *L) {
  lua_pushlightuserdata(L, omni_plm_pool_check(L, 1));
  return 1;
}

#define FIELD(name) (lua_pushnumber(L, (lua_Number)stats.name), lua_setfield(L, -2, #name))

static int pool_stats(lua_State *L) {
  omni_pool_stats stats;
  omni_pool_read_stats(omni_plm_pool_check(L, 1), &stats);
  lua_createtable(L, 0, 6);
  FIELD(workers), FIELD(idle), FIELD(queued), FIELD(started), FIELD(died), FIELD(jobs);
  return 1;
}

/* ---- runs ---- */

static void release_run(vm_handle *handle) { omni_run_shut(handle->object); }
static void unref_run(void *run) { omni_run_unref(run); }

/* run(pool, enabled, pending | 0, calls | 0, timeout | -1) */
static int plm_run(lua_State *L) {
  omni_pool *pool = omni_plm_pool_check(L, 1);
  double timeout = luaL_checknumber(L, 5);
  omni_run_options options = {.enabled = lua_toboolean(L, 2),
                              .pending = (unsigned)luaL_checknumber(L, 3),
                              .calls = (uint64_t)luaL_checknumber(L, 4),
                              .deadline = timeout >= 0 ? omni_sys_now() + (uint64_t)(timeout * 1e9) : 0};
  omni_run *run = omni_run_open(pool, &options);
  if (run == NULL) return luaL_error(L, "out of memory");
  vm_handle_push(L, &run_class, run)->release = release_run;
  return 1;
}

/* A tool's number; -1 is no tool's. */
static uint32_t check_tool(lua_State *L, int idx) { return (uint32_t)(int64_t)luaL_checknumber(L, idx); }

static omni_blob *check_args(lua_State *L, int idx) {
  size_t len;
  const char *text = luaL_checklstring(L, idx, &len);
  omni_blob *args = omni_blob_new(text, len);
  if (args == NULL) luaL_error(L, "out of memory");
  return args;
}

/* _prepare(tool, args, line) -> handle | 0 */
static int run_prepare(lua_State *L) {
  omni_run *run = omni_plm_run_check(L, 1);
  uint32_t tool = check_tool(L, 2);
  int line = luaL_checkint(L, 4);
  lua_pushnumber(L, omni_run_prepare(run, tool, check_args(L, 3), line));
  return 1;
}

/* _begin(handle, tool, args, line) -> call */
static int run_begin(lua_State *L) {
  omni_run *run = omni_plm_run_check(L, 1);
  uint32_t handle = check_tool(L, 2), tool = check_tool(L, 3);
  int line = luaL_checkint(L, 5);
  omni_call *call = omni_call_begin(run, handle, tool, check_args(L, 4), line);
  if (call == NULL) return luaL_error(L, "out of memory");
  vm_handle_push(L, &call_class, call);
  return 1;
}

static int run_cancel_handle(lua_State *L) {
  omni_run_cancel_handle(omni_plm_run_check(L, 1), check_tool(L, 2));
  return 0;
}

static int run_cancel(lua_State *L) {
  omni_run_cancel(omni_plm_run_check(L, 1));
  return 0;
}

/* _let_go(): of a run that is closed and quiet; its workers belong to the manifest alone. */
static int run_let_go(lua_State *L) {
  omni_run_let_go(omni_plm_run_check(L, 1));
  return 0;
}

static int run_shut(lua_State *L) {
  omni_run_shut(omni_plm_run_check(L, 1));
  return 0;
}

static int run_quiet(lua_State *L) {
  lua_pushboolean(L, omni_run_quiet(omni_plm_run_check(L, 1)));
  return 1;
}

static void on_woken(void *arg, uint64_t token) { vm_unpark(arg, token); }

/* _wait(timeout): suspends until it is quiet; false on timeout. */
static int run_wait(lua_State *L) {
  omni_run *run = omni_plm_run_check(L, 1);
  double timeout = luaL_checknumber(L, 2);
  vm_state *S = vm_of(L);
  if (!omni_run_sleep(run, vm_inbox(S), on_woken, S, vm_ticket_next(L, "run:close"))) {
    lua_pushboolean(L, 1);
    return 1;
  }
  return vm_park(L, "run:close", timeout, 0);
}

static int run_names(lua_State *L) {
  char names[200];
  omni_run_names(omni_plm_run_check(L, 1), names, sizeof names);
  lua_pushstring(L, names);
  return 1;
}

static int run_stats(lua_State *L) {
  omni_run_stats stats;
  omni_run_read_stats(omni_plm_run_check(L, 1), &stats);
  lua_createtable(L, 0, 13);
  FIELD(calls), FIELD(prepared), FIELD(refused), FIELD(adopted), FIELD(mismatch), FIELD(stale), FIELD(preempted);
  FIELD(cancelled), FIELD(unknown), FIELD(epoch), FIELD(pending), FIELD(active), FIELD(lost);
  return 1;
}
#undef FIELD

/* ---- trace ---- */

static void set_time(lua_State *L, const char *key, uint64_t time) {
  if (time == 0) return;
  lua_pushnumber(L, (lua_Number)time / 1e9);
  lua_setfield(L, -2, key);
}

static void set_number(lua_State *L, const char *key, double number) {
  lua_pushnumber(L, number);
  lua_setfield(L, -2, key);
}

static void push_event(lua_State *L, const omni_run_event *event, omni_pool *pool) {
  static const char *const ops[] = {"prepare", "resolve", "call", "cancel"};
  lua_createtable(L, 0, 12);
  lua_pushstring(L, ops[event->op]);
  lua_setfield(L, -2, "op");
  if (event->tool < omni_pool_tool_count(pool)) {
    lua_pushstring(L, omni_pool_tool(pool, event->tool)->name);
    lua_setfield(L, -2, "tool");
  }
  lua_pushlstring(L, (const char *)event->args->data, event->args->len);
  lua_setfield(L, -2, "args");
  lua_pushstring(L, event->outcome);
  lua_setfield(L, -2, "outcome");
  lua_pushboolean(L, event->logical);
  lua_setfield(L, -2, "logical");
  lua_pushboolean(L, event->failed);
  lua_setfield(L, -2, "failed");
  set_number(L, "handle", event->handle);
  set_number(L, "line", event->line);
  if (event->worker != 0) set_number(L, "worker", event->worker);
  set_time(L, "t_prepare", event->prepared);
  set_time(L, "t_start", event->started);
  set_time(L, "t_end", event->ended);
  set_time(L, "t_resolve", event->resolved);
}

/* The visit copies into C memory first: a Lua error must not pass through it. */
typedef struct event_list {
  omni_run_event *events;
  size_t count, room;
} event_list;

static void add_event(void *arg, const omni_run_event *event) {
  event_list *list = arg;
  if (list->count == list->room) {
    size_t room = list->room > 0 ? list->room * 2 : 64;
    omni_run_event *grown = realloc(list->events, room * sizeof *grown);
    if (grown == NULL) return;
    list->events = grown;
    list->room = room;
  }
  list->events[list->count] = *event;
  list->events[list->count++].args = omni_blob_ref((omni_blob *)event->args);
}

static int list_gc(lua_State *L) {
  event_list *list = lua_touserdata(L, 1);
  for (size_t i = 0; i < list->count; i++)
    omni_blob_unref((omni_blob *)list->events[i].args);
  free(list->events);
  *list = (event_list){0};
  return 0;
}

/* _events() -> {{op=, tool=, ...}, ...} */
static int run_events(lua_State *L) {
  omni_run *run = omni_plm_run_check(L, 1);
  event_list *list = lua_newuserdata(L, sizeof *list);
  *list = (event_list){0};
  lua_createtable(L, 0, 1);
  lua_pushcfunction(L, list_gc);
  lua_setfield(L, -2, "__gc");
  lua_setmetatable(L, -2);
  omni_run_visit(run, add_event, list);
  lua_createtable(L, (int)list->count, 0);
  for (size_t i = 0; i < list->count; i++) {
    push_event(L, &list->events[i], omni_run_pool(run));
    lua_rawseti(L, -2, (int)i + 1);
  }
  return 1;
}

/* ---- calls ---- */

/* _take() -> nil | "OK" or the code of the run's end, response text */
static int call_take(lua_State *L) {
  omni_err err;
  omni_blob *response;
  vm_handle *handle = vm_handle_check(L, 1, &call_class);
  if (!omni_call_take(check_call(L), &err, &response)) return 0;
  lua_pushstring(L, omni_err_name(err));
  if (response != NULL)
    lua_pushlstring(L, (const char *)response->data, response->len);
  else
    lua_pushnil(L);
  omni_blob_unref(response);
  vm_handle_release(handle);
  return 2;
}

/* _wait(): suspends until it may be settled. */
static int call_wait(lua_State *L) {
  omni_call *call = check_call(L);
  vm_state *S = vm_of(L);
  uint64_t until = 0;
  if (!omni_call_sleep(call, vm_inbox(S), on_woken, S, vm_ticket_next(L, "run:resolve"), &until)) return 0;
  uint64_t now = omni_sys_now();
  double timeout = until == 0 ? -1 : until > now ? (double)(until - now) / 1e9 : 0;
  return vm_park(L, "run:resolve", timeout, 1);
}

static int call_hope(lua_State *L) {
  lua_pushboolean(L, omni_call_hope(check_call(L)));
  return 1;
}

static void unref_call(void *call) { omni_call_unref(call); }

static const luaL_Reg pool_methods[] = {
    {"close", pool_close}, {"closed", pool_closed}, {"stats", pool_stats}, {"_id", pool_id}, {NULL, NULL}};
static const luaL_Reg run_methods[] = {
    {"_prepare", run_prepare}, {"_begin", run_begin},   {"cancel_handle", run_cancel_handle},
    {"cancel", run_cancel},    {"_shut", run_shut},     {"_let_go", run_let_go},
    {"_quiet", run_quiet},     {"_wait", run_wait},     {"_names", run_names},
    {"stats", run_stats},      {"_events", run_events}, {NULL, NULL}};
static const luaL_Reg call_methods[] = {
    {"_take", call_take}, {"_wait", call_wait}, {"__hope", call_hope}, {NULL, NULL}};

static const vm_class pool_class = {"omni.plm.pool", NULL, unref_pool, pool_methods};
static const vm_class run_class = {"omni.plm.run", NULL, unref_run, run_methods};
static const vm_class call_class = {"omni.plm.call", NULL, unref_call, call_methods};

static void set_methods(lua_State *L, const vm_class *class, const char *name) {
  vm_class_push(L, class);
  lua_getfield(L, -1, "__index");
  lua_setfield(L, -3, name);
  lua_pop(L, 1);
}

int omni_open_plm(lua_State *L) {
  static const luaL_Reg functions[] = {{"home", plm_home}, {"pool", plm_pool}, {"run", plm_run}, {NULL, NULL}};
  lua_newtable(L);
  luaL_register(L, NULL, functions);
  set_methods(L, &run_class, "methods");
  set_methods(L, &pool_class, "pool_methods");
  set_methods(L, &call_class, "call_methods");
  plm_worker_functions(L);
  plm_job_functions(L);
  return 1;
}
