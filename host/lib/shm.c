/* omni.native.shm: the steps of the connector that never wait; lua/omni/shm.lua has the loops that suspend. */
#include "core/shm.h"

#include "lib/modules.h"
#include "vm/vm.h"

#include <stdlib.h>
#include <string.h>

static const vm_class shm_class, view_class, waiter_class;

static omni_shm *check_shm(lua_State *L) { return vm_object_check(L, 1, &shm_class); }

/* A key is any string; numbers are refused, since 1 and "1.0" would be a matter of taste. */
static const char *check_key(lua_State *L, const char *method, size_t *len) {
  if (lua_type(L, 2) != LUA_TSTRING)
    vm_misuse(L, "connector:%s: the key must be a string, not %s", method, luaL_typename(L, 2));
  return lua_tolstring(L, 2, len);
}

/* ---- opening ---- */

static const char *opt_field(lua_State *L, const char *name) {
  lua_getfield(L, 1, name);
  return lua_tostring(L, -1); /* the table keeps it alive */
}

/* open{namespace=, lock_dir=, shm_dir=, view_limit=, owned=} -> handle | nil, "ECODE: ...", "ECODE" */
static int shm_open_handle(lua_State *L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  lua_settop(L, 1);
  omni_shm_opts opts = {
      .namespace = opt_field(L, "namespace"), .lock_dir = opt_field(L, "lock_dir"), .shm_dir = opt_field(L, "shm_dir")};
  lua_getfield(L, 1, "view_limit");
  opts.view_limit = (uint64_t)lua_tonumber(L, -1);
  lua_getfield(L, 1, "owned");
  opts.owned = lua_toboolean(L, -1);
  omni_shm *shm;
  char text[256];
  omni_err err = omni_shm_open(&opts, &shm, text, sizeof text);
  if (err != OMNI_OK) return vm_fail(L, err, "%s", text);
  vm_handle_push(L, &shm_class, shm);
  return 1;
}

static int shm_close(lua_State *L) {
  omni_shm_close(check_shm(L));
  return 0;
}

/* ---- put ---- */

static int put_failed(lua_State *L, omni_shm *shm, omni_err err, const char *key, size_t keylen, size_t len) {
  char name[OMNI_SHM_NAME_MAX + 1];
  omni_shm_name(shm, key, keylen, name);
  switch (err) {
  case OMNI_ECLOSED: return vm_fail(L, err, "the connector is closed");
  case OMNI_EBUSY: return vm_fail(L, err, "somebody else holds the lock of %s", name);
  case OMNI_ENOSPC: return vm_fail(L, err, "%s has no room for %f bytes", omni_shm_dir(shm), (lua_Number)len);
  case OMNI_ENOENT: return vm_fail(L, err, "a directory is gone: %s or %s", omni_shm_dir(shm), omni_shm_lock_dir(shm));
  case OMNI_EACCES: return vm_fail(L, err, "%s or its lock belongs to somebody else, or is no plain file", name);
  default: return vm_fail(L, err, "%s: %s", name, omni_err_text(err));
  }
}

static const void *check_value(lua_State *L, size_t *len) {
  if (lua_type(L, 3) == LUA_TSTRING) return lua_tolstring(L, 3, len);
  vm_handle *handle = vm_handle_test(L, 3);
  if (handle != NULL && handle->class == &view_class && handle->object != NULL)
    return omni_shm_view_data(handle->object, len);
  vm_misuse(L,
            "connector:put: the value must be a string or an open view, not %s; tables go through omni.chunks or "
            "omni.json",
            handle != NULL ? handle->class->name : luaL_typename(L, 3));
  return NULL;
}

/* _put(key, value) -> true | nil, "ECODE: ...", "ECODE": one try. */
static int shm_put(lua_State *L) {
  omni_shm *shm = check_shm(L);
  size_t keylen, len;
  const char *key = check_key(L, "put", &keylen);
  const void *value = check_value(L, &len);
  struct iovec piece = {(void *)value, len};
  omni_err err = omni_shm_put(shm, key, keylen, &piece, 1);
  if (err != OMNI_OK) return put_failed(L, shm, err, key, keylen, len);
  lua_pushboolean(L, 1);
  return 1;
}

/* ---- get ---- */

static int get_failed(lua_State *L, omni_shm *shm, omni_err err, const char *key, size_t keylen) {
  char name[OMNI_SHM_NAME_MAX + 1];
  omni_shm_name(shm, key, keylen, name);
  switch (err) {
  case OMNI_ECLOSED: return vm_fail(L, err, "the connector is closed");
  case OMNI_ECORRUPT: return vm_fail(L, err, "segment %s is not whole: its writer died", name);
  case OMNI_EACCES: return vm_fail(L, err, "%s or its lock belongs to somebody else, or is no plain file", name);
  case OMNI_E2BIG:
    return vm_fail(L, err, "segment %s says an impossible length, or live views would hold more than view_limit", name);
  default: return vm_fail(L, err, "%s: %s", name, omni_err_text(err));
  }
}

/* What a get that brought nothing returns. In the loop of wait, `why` tells what to do next. */
static int got_nothing(lua_State *L, omni_shm *shm, omni_shm_got got, omni_err err, bool why) {
  size_t keylen;
  const char *key = lua_tolstring(L, 2, &keylen);
  if (got == OMNI_SHM_FAILED) return get_failed(L, shm, err, key, keylen);
  if (got == OMNI_SHM_TORN) return get_failed(L, shm, OMNI_ECORRUPT, key, keylen);
  lua_pushnil(L);
  if (!why) return 1;
  lua_pushstring(L, got == OMNI_SHM_ABSENT ? "absent" : "busy");
  return 2;
}

static int push_blob(lua_State *L) {
  omni_blob *blob = lua_touserdata(L, 1);
  lua_pushlstring(L, (const char *)blob->data, blob->len);
  return 1;
}

static int get(lua_State *L, const char *method, bool why) {
  omni_shm *shm = check_shm(L);
  size_t keylen;
  const char *key = check_key(L, method, &keylen);
  omni_blob *blob;
  omni_err err = OMNI_OK;
  omni_shm_got got = omni_shm_get(shm, key, keylen, &blob, &err);
  if (got != OMNI_SHM_GOT) return got_nothing(L, shm, got, err, why);
  lua_pushcfunction(L, push_blob);
  lua_pushlightuserdata(L, blob);
  int failed = lua_pcall(L, 1, 1, 0); /* a string can be too large for the memory that is left */
  omni_blob_unref(blob);
  return failed ? lua_error(L) : 1;
}

/* get(key) -> bytes | nil | nil, "ECODE: ...", "ECODE" */
static int shm_get(lua_State *L) { return get(L, "get", false); }

/* _try(key) -> bytes | nil, "absent" or "busy" | nil, "ECODE: ...", "ECODE" */
static int shm_try(lua_State *L) { return get(L, "wait", true); }

/* get_view(key) -> view | nil | nil, "ECODE: ...", "ECODE" */
static int shm_get_view(lua_State *L) {
  omni_shm *shm = check_shm(L);
  size_t keylen;
  const char *key = check_key(L, "get_view", &keylen);
  omni_shm_view *view;
  omni_err err = OMNI_OK;
  vm_handle *handle = vm_handle_push(L, &view_class, NULL); /* first: what follows must not raise */
  omni_shm_got got = omni_shm_get_view(shm, key, keylen, &view, &err);
  if (got != OMNI_SHM_GOT) return got_nothing(L, shm, got, err, false);
  handle->object = view;
  return 1;
}

/* ---- the rest ---- */

/* _discard_name(segment name) -> true | nil, "ECODE: ...", "ECODE": removes the key whoever wrote it. */
static int shm_discard_name(lua_State *L) {
  omni_shm *shm = vm_object_check(L, 1, &shm_class);
  const char *name = luaL_checkstring(L, 2);
  omni_err err = omni_shm_discard_name(shm, name);
  if (err != OMNI_OK) return vm_fail(L, err, "%s: %s", name, omni_err_text(err));
  lua_pushboolean(L, 1);
  return 1;
}

static int shm_cleanup_prefix(lua_State *L) {
  omni_shm *shm = check_shm(L);
  if (lua_type(L, 2) != LUA_TSTRING)
    return vm_misuse(L, "connector:cleanup_prefix: the prefix must be a string, not %s", luaL_typename(L, 2));
  size_t len;
  const char *prefix = lua_tolstring(L, 2, &len);
  lua_pushnumber(L, (lua_Number)omni_shm_cleanup_prefix(shm, prefix, len));
  return 1;
}

static int shm_name(lua_State *L) {
  omni_shm *shm = check_shm(L);
  size_t keylen;
  const char *key = check_key(L, "shm_name", &keylen);
  char name[OMNI_SHM_NAME_MAX + 1];
  omni_shm_name(shm, key, keylen, name);
  lua_pushstring(L, name);
  return 1;
}

static int shm_lock_path(lua_State *L) {
  omni_shm *shm = check_shm(L);
  size_t keylen;
  const char *key = check_key(L, "lock_path", &keylen);
  char name[OMNI_SHM_NAME_MAX + 1];
  omni_shm_name(shm, key, keylen, name);
  lua_pushfstring(L, "%s/%s.lock", omni_shm_lock_dir(shm), name);
  return 1;
}

static int shm_stats(lua_State *L) {
  omni_shm_stats stats;
  omni_shm_read_stats(check_shm(L), &stats);
  lua_createtable(L, 0, 10);
#define FIELD(name) (lua_pushnumber(L, (lua_Number)stats.name), lua_setfield(L, -2, #name))
  FIELD(puts), FIELD(gets), FIELD(put_bytes), FIELD(get_bytes), FIELD(busy), FIELD(incomplete), FIELD(cleaned);
  FIELD(live_segments), FIELD(live_views), FIELD(view_bytes);
#undef FIELD
  return 1;
}

/* ---- views ---- */

static const char *check_view(lua_State *L, size_t *len) {
  return omni_shm_view_data(vm_object_check(L, 1, &view_class), len);
}

static int view_len(lua_State *L) {
  size_t len;
  check_view(L, &len);
  lua_pushnumber(L, (lua_Number)len);
  return 1;
}

/* string([i[, j]]): a copy of the bytes i to j, counted as string.sub does. */
static int view_string(lua_State *L) {
  size_t len;
  const char *data = check_view(L, &len);
  lua_Number first = luaL_optnumber(L, 2, 1), last = luaL_optnumber(L, 3, -1), size = (lua_Number)len;
  if (first < 0) first += size + 1;
  if (last < 0) last += size + 1;
  if (first < 1) first = 1;
  if (last > size) last = size;
  if (!(first <= last)) /* nan, too */
    lua_pushliteral(L, "");
  else
    lua_pushlstring(L, data + (size_t)first - 1, (size_t)last - (size_t)first + 1);
  return 1;
}

/* ptr(): the first byte, for ffi.cast; valid until close. */
static int view_ptr(lua_State *L) {
  size_t len;
  lua_pushlightuserdata(L, (void *)check_view(L, &len));
  return 1;
}

static int view_close(lua_State *L) {
  vm_handle_release(vm_handle_check(L, 1, &view_class));
  return 0;
}

/* ---- waiting ---- */

/* Who waits on a key. */
typedef struct waiter {
  omni_shm_waiter *core;
  vm_state *state;
  vm_ticket ticket; /* of the task in _wait */
} waiter;

static void on_woken(void *arg) {
  waiter *w = arg;
  vm_unpark(w->state, w->ticket);
}

static void waiter_unref(void *arg) {
  waiter *w = arg;
  omni_shm_waiter_free(w->core);
  free(w);
}

/* _waiter(key) -> waiter | nil, "ECODE: ...", "ECODE" */
static int shm_waiter(lua_State *L) {
  omni_shm *shm = check_shm(L);
  size_t keylen;
  const char *key = check_key(L, "wait", &keylen);
  vm_handle *handle = vm_handle_push(L, &waiter_class, NULL);
  waiter *w = calloc(1, sizeof *w);
  if (w == NULL) return luaL_error(L, "out of memory");
  w->state = vm_of(L);
  omni_err err = omni_shm_waiter_new(shm, key, keylen, vm_inbox(w->state), on_woken, w, &w->core);
  if (err != OMNI_OK) {
    free(w);
    return vm_fail(L, err, "%s cannot be watched: %s", omni_shm_lock_dir(shm), omni_err_text(err));
  }
  handle->object = w;
  return 1;
}

/* _wait(timeout | -1) -> true when something may have come | false on timeout */
static int waiter_wait(lua_State *L) {
  waiter *w = vm_object_check(L, 1, &waiter_class);
  double timeout = luaL_checknumber(L, 2);
  w->ticket = vm_ticket_next(L, "connector:wait");
  return vm_park(L, "connector:wait", timeout, 1);
}

/* _gone(): the lock directory was removed. */
static int waiter_gone(lua_State *L) {
  waiter *w = vm_object_check(L, 1, &waiter_class);
  lua_pushboolean(L, omni_shm_waiter_gone(w->core));
  return 1;
}

static int waiter_close(lua_State *L) {
  vm_handle_release(vm_handle_check(L, 1, &waiter_class));
  return 0;
}

/* __hope: any process may put. */
static int waiter_hope(lua_State *L) {
  lua_pushboolean(L, 1);
  return 1;
}

/* ---- the module ---- */

static void *shm_ref(void *shm) { return omni_shm_ref(shm); }
static void shm_unref(void *shm) { omni_shm_unref(shm); }
static void view_unref(void *view) { omni_shm_view_close(view); }

static const luaL_Reg shm_methods[] = {{"_put", shm_put},
                                       {"get", shm_get},
                                       {"_try", shm_try},
                                       {"get_view", shm_get_view},
                                       {"_waiter", shm_waiter},
                                       {"_discard_name", shm_discard_name},
                                       {"cleanup_prefix", shm_cleanup_prefix},
                                       {"shm_name", shm_name},
                                       {"lock_path", shm_lock_path},
                                       {"close", shm_close},
                                       {"stats", shm_stats},
                                       {NULL, NULL}};
static const luaL_Reg view_methods[] = {{"len", view_len},     {"string", view_string}, {"ptr", view_ptr},
                                        {"close", view_close}, {"__len", view_len},     {NULL, NULL}};
static const luaL_Reg waiter_methods[] = {
    {"_wait", waiter_wait}, {"_gone", waiter_gone}, {"close", waiter_close}, {"__hope", waiter_hope}, {NULL, NULL}};

static const vm_class shm_class = {"omni.shm", shm_ref, shm_unref, shm_methods};
static const vm_class view_class = {"omni.shm.view", NULL, view_unref, view_methods};
static const vm_class waiter_class = {"omni.shm.waiter", NULL, waiter_unref, waiter_methods};

int omni_open_shm(lua_State *L) {
  lua_newtable(L);
  lua_pushcfunction(L, shm_open_handle);
  lua_setfield(L, -2, "open");
  vm_class_methods(L, &shm_class, "methods");
  vm_class_methods(L, &view_class, "view_methods");
  vm_class_methods(L, &waiter_class, "waiter_methods");
  return 1;
}
