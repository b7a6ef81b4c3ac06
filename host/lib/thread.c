/* omni.native.thread: starts threads with states of their own; lua/omni/thread.lua prepares what they run. */
#include "lib/modules.h"
#include "vm/child.h"

#include <stdlib.h>

static const vm_class thread_class;

static vm_child *check_child(lua_State *L) { return vm_object_check(L, 1, &thread_class); }

/* Takes a reference of each handle in the array at idx; raises (without leaving references) where one cannot cross. */
static vm_passed *take_handles(lua_State *L, int idx, size_t n) {
  for (size_t i = 1; i <= n; i++) {
    lua_rawgeti(L, idx, (int)i);
    vm_handle *handle = vm_handle_test(L, -1);
    if (handle == NULL || handle->object == NULL || handle->class->ref == NULL)
      luaL_error(L, "a %s cannot be passed to a thread", handle != NULL ? handle->class->name : luaL_typename(L, -1));
    lua_pop(L, 1);
  }
  vm_passed *passed = calloc(n > 0 ? n : 1, sizeof *passed);
  if (passed == NULL) luaL_error(L, "out of memory");
  for (size_t i = 0; i < n; i++) {
    lua_rawgeti(L, idx, (int)i + 1);
    vm_handle *handle = vm_handle_test(L, -1);
    passed[i].class = handle->class;
    passed[i].object = handle->class->ref(handle->object);
    lua_pop(L, 1);
  }
  return passed;
}

/* start(name, payload, handles) -> thread */
static int thread_start(lua_State *L) {
  const char *name = luaL_checkstring(L, 1);
  luaL_checktype(L, 3, LUA_TTABLE);
  size_t n = lua_objlen(L, 3);
  omni_blob *payload = vm_encode(L, 2);
  if (payload == NULL) return luaL_error(L, "omni.thread cannot pass these arguments: %s", lua_tostring(L, -1));
  vm_passed *passed = take_handles(L, 3, n);
  vm_child *child = vm_child_start(vm_of(L), name, payload, passed, n);
  if (child == NULL) return luaL_error(L, "omni.thread: no thread can be started");
  vm_handle_push(L, &thread_class, child);
  return 1;
}

/* finish(ok, value): what join returns; called once by the thread's own entry. */
static int thread_finish(lua_State *L) {
  vm_child *child = vm_child_of(vm_of(L));
  if (child == NULL) return 0;
  omni_blob *result = vm_encode(L, 2);
  if (result != NULL) {
    vm_child_finish(child, lua_toboolean(L, 1), result);
    lua_pushboolean(L, 1);
    return 1;
  }
  lua_pushboolean(L, 0);
  lua_insert(L, -2);
  return 2;
}

static int thread_ended(lua_State *L) {
  lua_pushboolean(L, check_child(L)->joined);
  return 1;
}

/* _wait(timeout | -1) */
static int thread_wait(lua_State *L) {
  vm_child *child = check_child(L);
  double timeout = luaL_checknumber(L, 2);
  if (vm_waits(vm_of(L), child->waiter)) return vm_misuse(L, "another coroutine joins this thread already");
  child->waiter = vm_ticket_next(L, "thread:join");
  return vm_park(L, "thread:join", timeout, 1);
}

static int thread_hope(lua_State *L) {
  lua_pushboolean(L, !check_child(L)->joined);
  return 1;
}

/* _result() -> ok, value: of a thread that has ended. */
static int thread_result(lua_State *L) {
  vm_child *child = check_child(L);
  child->seen = true;
  lua_pushboolean(L, child->ok);
  if (child->result == NULL)
    lua_pushnil(L);
  else
    vm_decode(L, child->result);
  vm_children_collect(vm_of(L));
  return 2;
}

/* stop(): asks the thread's state to end as os.exit(0) would. */
static int thread_stop(lua_State *L) {
  vm_child_stop(check_child(L));
  return 0;
}

static void unref(void *child) { vm_child_unref(child); }

static const luaL_Reg methods[] = {{"_ended", thread_ended}, {"_wait", thread_wait},  {"_result", thread_result},
                                   {"stop", thread_stop},    {"__hope", thread_hope}, {NULL, NULL}};

static const vm_class thread_class = {"omni.thread", NULL, unref, methods};

int omni_open_thread(lua_State *L) {
  static const luaL_Reg functions[] = {{"start", thread_start}, {"finish", thread_finish}, {NULL, NULL}};
  lua_newtable(L);
  luaL_register(L, NULL, functions);
  vm_class_methods(L, &thread_class, "methods");
  return 1;
}
