/* omni.native.router: the steps of a router; lua/omni/router.lua has the call that suspends. */
#include "core/router.h"

#include "lib/modules.h"
#include "vm/vm.h"

#include <math.h>
#include <string.h>

#define KEY_MAX 512 /* bytes of an encoded key */
#define KEY_DEPTH 8 /* nesting of arrays in a key */

static const vm_class router_class, waiter_class;

static omni_router *check_router(lua_State *L) { return vm_object_check(L, 1, &router_class); }

/* Of a waiter that is not released. */
static vm_handle *check_waiter(lua_State *L, int idx) {
  vm_object_check(L, idx, &waiter_class);
  return lua_touserdata(L, idx);
}

/* ---- keys: strings, numbers and arrays of these, as bytes that are equal when the keys are ---- */

typedef struct key_bytes {
  size_t len;
  unsigned char data[KEY_MAX];
} key_bytes;

static void add(lua_State *L, key_bytes *key, const void *data, size_t len) {
  if (len > sizeof key->data - key->len) vm_misuse(L, "router: a key takes at most %d bytes", KEY_MAX);
  memcpy(key->data + key->len, data, len);
  key->len += len;
}

/* A type byte, then what makes equal values equal bytes: the type keeps 1 and "1" apart. idx is absolute. */
static void add_value(lua_State *L, key_bytes *key, int idx, int depth) {
  int type = lua_type(L, idx);
  if (type == LUA_TSTRING) {
    size_t len;
    const char *text = lua_tolstring(L, idx, &len);
    add(L, key, "s", 1);
    add(L, key, &len, sizeof len);
    add(L, key, text, len);
  } else if (type == LUA_TNUMBER) {
    lua_Number number = lua_tonumber(L, idx) + 0.0; /* -0 becomes 0 */
    if (isnan(number)) vm_misuse(L, "router: nan equals nothing and is no key");
    add(L, key, "n", 1);
    add(L, key, &number, sizeof number);
  } else if (type == LUA_TTABLE && depth < KEY_DEPTH) {
    size_t n = lua_objlen(L, idx);
    int top = lua_gettop(L);
    if (n == 0) vm_misuse(L, "router: an empty table is no key");
    luaL_checkstack(L, 2, "router: too deep a key");
    add(L, key, "a", 1);
    add(L, key, &n, sizeof n);
    for (size_t i = 1; i <= n; i++) {
      lua_rawgeti(L, idx, (int)i);
      add_value(L, key, top + 1, depth + 1);
      lua_settop(L, top);
    }
  } else {
    vm_misuse(L, "router: a key is a string, a number or an array of these, not a %s", luaL_typename(L, idx));
  }
}

static void read_key(lua_State *L, int idx, key_bytes *key) {
  key->len = 0;
  add_value(L, key, idx, 0);
}

/* ---- the router ---- */

static int router_new(lua_State *L) {
  omni_router *router = omni_router_new();
  if (router == NULL) return luaL_error(L, "out of memory");
  vm_handle_push(L, &router_class, router);
  return 1;
}

/* The router that a waiter is in or was in; kept by the waiter's handle until the answer is taken. */
static void forget_router(vm_handle *handle) {
  omni_router_unref_waiting(handle->extra);
  handle->extra = NULL;
}

/* Leaving a waiter in the table would fail the next call of its key. */
static void release_waiter(vm_handle *handle) {
  if (handle->extra != NULL) omni_router_unregister(handle->extra, handle->object);
  forget_router(handle);
}

/* waiter() -> waiter that waits for nothing yet */
static int router_waiter(lua_State *L) {
  omni_waiter *waiter = omni_waiter_new(vm_inbox(vm_of(L)));
  if (waiter == NULL) return luaL_error(L, "out of memory");
  vm_handle_push(L, &waiter_class, waiter)->release = release_waiter;
  return 1;
}

/* nil, error, code; what fail_all latched has its code in its text. */
static int refused(lua_State *L, omni_router *router, omni_err err) {
  if (err == OMNI_EEXIST) return vm_fail(L, err, "somebody waits for this key already");
  if (err != OMNI_ECANCELED) return vm_fail(L, err, NULL);
  omni_blob *fatal = omni_router_fatal(router);
  lua_pushnil(L);
  lua_pushlstring(L, (const char *)fatal->data, fatal->len);
  omni_blob_unref(fatal);
  return 2;
}

/* _enter(key, waiter) -> true | nil, error, code. The waiter is in no router, or its answer was taken. */
static int router_enter(lua_State *L) {
  omni_router *router = check_router(L);
  vm_handle *handle = check_waiter(L, 3);
  omni_waiter *waiter = handle->object;
  key_bytes key;
  read_key(L, 2, &key);
  if (!omni_waiter_idle(waiter)) { /* its deliverer is about to let go of it, or its bell is still on the way */
    waiter = omni_waiter_new(vm_inbox(vm_of(L)));
    if (waiter == NULL) return luaL_error(L, "out of memory");
    omni_waiter_unref(handle->object);
    handle->object = waiter;
  }
  omni_err err = omni_router_register(router, waiter, key.data, key.len);
  if (err != OMNI_OK) return refused(L, router, err);
  handle->extra = omni_router_ref_waiting(router);
  lua_pushboolean(L, 1);
  return 1;
}

static int deliver(lua_State *L, bool failed) {
  omni_router *router = check_router(L);
  key_bytes key;
  vm_bytes bytes;
  read_key(L, 2, &key);
  lua_settop(L, 3);
  if (!vm_encode_bytes(L, 3, &bytes))
    return vm_misuse(L, "router:deliver cannot carry this value: %s", lua_tostring(L, -1));
  omni_answer answer = {failed, bytes.tag, bytes.data, bytes.len};
  omni_err err = omni_router_deliver(router, key.data, key.len, &answer);
  if (err == OMNI_ENOMEM) return luaL_error(L, "out of memory");
  lua_pushboolean(L, err == OMNI_OK);
  return 1;
}

/* deliver(key, value) -> boolean: false, and late_results + 1, where nobody waits. */
static int router_deliver(lua_State *L) { return deliver(L, false); }

/* _fail(key, text) -> boolean */
static int router_fail(lua_State *L) { return deliver(L, true); }

/* _fail_all(text) */
static int router_fail_all(lua_State *L) {
  omni_router *router = check_router(L);
  luaL_checkstring(L, 2);
  omni_blob *error = vm_encode(L, 2);
  if (error == NULL) return luaL_error(L, "out of memory");
  omni_router_fail_all(router, error);
  omni_blob_unref(error);
  return 0;
}

/* unregister(key, waiter) -> boolean: true if it was this waiter that stood for the key. */
static int router_unregister(lua_State *L) {
  omni_router *router = check_router(L);
  vm_handle *handle = vm_handle_check(L, 3, &waiter_class);
  key_bytes key;
  read_key(L, 2, &key);
  bool its = handle->object != NULL && handle->extra == router && omni_waiter_is_for(handle->object, key.data, key.len);
  lua_pushboolean(L, its && omni_router_unregister(router, handle->object));
  return 1;
}

static int router_stats(lua_State *L) {
  omni_router_stats stats;
  omni_router_read_stats(check_router(L), &stats);
  lua_createtable(L, 0, 4);
#define FIELD(name) (lua_pushnumber(L, (lua_Number)stats.name), lua_setfield(L, -2, #name))
  FIELD(registered), FIELD(delivered), FIELD(late_results), FIELD(waiting);
#undef FIELD
  return 1;
}

/* ---- waiters ---- */

/* _take() -> nil | true, value | false, error text. With the answer there, the waiter is out of its router. */
static int waiter_take(lua_State *L) {
  omni_answer answer;
  vm_handle *handle = check_waiter(L, 1);
  if (!omni_waiter_result(handle->object, &answer)) return 0;
  forget_router(handle);
  lua_pushboolean(L, !answer.failed);
  vm_decode_bytes(L, answer.tag, answer.data, answer.len);
  return 2;
}

static void on_woken(void *arg, uint64_t token) { vm_unpark(arg, token); }

/* _wait(timeout | -1): true when woken or when there is nothing to wait for, false on timeout. */
static int waiter_wait(lua_State *L) {
  omni_waiter *waiter = vm_object_check(L, 1, &waiter_class);
  double timeout = luaL_checknumber(L, 2);
  vm_state *S = vm_of(L);
  if (!omni_waiter_sleep(waiter, on_woken, S, vm_ticket_next(L, "router:call"))) {
    lua_pushboolean(L, 1);
    return 1;
  }
  return vm_park(L, "router:call", timeout, 1);
}

/* _fail(text) -> boolean: an error for this waiter and no other; false where its answer is there or on its way. */
static int waiter_fail(lua_State *L) {
  vm_handle *handle = check_waiter(L, 1);
  vm_bytes bytes;
  luaL_checkstring(L, 2);
  (void)vm_encode_bytes(L, 2, &bytes); /* a string can always cross */
  omni_answer answer = {true, bytes.tag, bytes.data, bytes.len};
  lua_pushboolean(L, handle->extra != NULL && omni_router_fail_waiter(handle->extra, handle->object, &answer));
  return 1;
}

/* __hope: somebody outside of this state holds the router. This state holds it too, for the Lua half keeps it. */
static int waiter_hope(lua_State *L) {
  vm_handle *handle = vm_handle_check(L, 1, &waiter_class);
  lua_pushboolean(L, handle->extra != NULL && omni_router_others(handle->extra) > 0);
  return 1;
}

static void *ref_router(void *router) { return omni_router_ref(router); }
static void unref_router(void *router) { omni_router_unref(router); }
static void unref_waiter(void *waiter) { omni_waiter_unref(waiter); }

/* _release(): out of the table, and no more. */
static int waiter_release(lua_State *L) {
  vm_handle_release(vm_handle_check(L, 1, &waiter_class));
  return 0;
}

static const luaL_Reg router_methods[] = {{"_enter", router_enter},
                                          {"deliver", router_deliver},
                                          {"unregister", router_unregister},
                                          {"stats", router_stats},
                                          {"_fail", router_fail},
                                          {"_fail_all", router_fail_all},
                                          {NULL, NULL}};
static const luaL_Reg waiter_methods[] = {{"_take", waiter_take},       {"_wait", waiter_wait},  {"_fail", waiter_fail},
                                          {"_release", waiter_release}, {"__hope", waiter_hope}, {NULL, NULL}};

static const vm_class router_class = {"omni.router", ref_router, unref_router, router_methods};
static const vm_class waiter_class = {"omni.router.waiter", NULL, unref_waiter, waiter_methods};

int omni_open_router(lua_State *L) {
  lua_newtable(L);
  lua_pushcfunction(L, router_new);
  lua_setfield(L, -2, "new");
  lua_pushcfunction(L, router_waiter);
  lua_setfield(L, -2, "waiter");
  vm_class_methods(L, &router_class, "methods");
  vm_class_methods(L, &waiter_class, "waiter_methods");
  return 1;
}
