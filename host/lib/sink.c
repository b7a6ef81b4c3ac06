/* omni.native.sink: the steps of a sink; lua/omni/sink.lua has the loop that suspends. */
#include "core/sink.h"

#include "lib/modules.h"
#include "lib/sink.h"
#include "vm/vm.h"

#include <stdlib.h>

#define BATCH 256 /* items taken from the queue at a time */

/* The consumer's side of a handle: who waits. */
typedef struct consumer {
  vm_state *state;
  vm_ticket ticket; /* of the task in get_batch, 0 = none yet */
} consumer;

static const vm_class sink_class;

static omni_sink *check_sink(lua_State *L) { return vm_object_check(L, 1, &sink_class); }

omni_sink *omni_lib_sink(lua_State *L, int idx) { return vm_object_check(L, idx, &sink_class); }

static void on_woken(void *arg) {
  consumer *c = arg;
  vm_unpark(c->state, c->ticket);
}

/* The consumer goes: nobody will ever take from this sink, so its producers are told. */
static void release(vm_handle *handle) {
  omni_sink_unbind(handle->object);
  omni_sink_close(handle->object);
  free(handle->extra);
  handle->extra = NULL;
}

static int sink_new(lua_State *L) {
  lua_Number capacity = luaL_optnumber(L, 1, 0);
  omni_sink *sink = omni_sink_new((size_t)capacity);
  if (sink == NULL) return luaL_error(L, "out of memory");
  vm_handle_push(L, &sink_class, sink);
  return 1;
}

/* bind() -> true: this state is the consumer from now on. */
static int sink_bind(lua_State *L) {
  omni_sink *sink = check_sink(L);
  vm_handle *handle = vm_handle_check(L, 1, &sink_class);
  consumer *c = calloc(1, sizeof *c);
  if (c == NULL) return luaL_error(L, "out of memory");
  c->state = vm_of(L);
  omni_err err = omni_sink_bind(sink, vm_inbox(c->state), on_woken, c);
  if (err != OMNI_OK) {
    free(c);
    return vm_fail(L, err, "the sink is bound to a consumer already");
  }
  handle->extra = c;
  handle->release = release;
  lua_pushboolean(L, 1);
  return 1;
}

/* put(value) -> true | nil, "EFULL: ...", "EFULL" */
static int sink_put(lua_State *L) {
  omni_sink *sink = check_sink(L);
  if (lua_isnoneornil(L, 2)) return vm_misuse(L, "sink:put: nil is no item: a batch is an array");
  omni_blob *blob = vm_encode(L, 2);
  if (blob == NULL) return vm_misuse(L, "sink:put cannot carry this value: %s", lua_tostring(L, -1));
  omni_err err = omni_sink_put(sink, blob);
  if (err == OMNI_OK) {
    lua_pushboolean(L, 1);
    return 1;
  }
  omni_blob_unref(blob);
  if (err == OMNI_EFULL) return vm_fail(L, err, "the sink holds as many items as its capacity allows");
  if (err == OMNI_ECLOSED) return vm_fail(L, err, "the sink is closed");
  return vm_fail(L, err, NULL);
}

/* A batch on its way to a Lua table: what an error leaves is freed by its __gc. */
typedef struct batch {
  size_t n, next;
  omni_blob *items[BATCH];
} batch;

static int batch_gc(lua_State *L) {
  batch *b = lua_touserdata(L, 1);
  while (b->next < b->n)
    omni_blob_unref(b->items[b->next++]);
  return 0;
}

static batch *push_batch(lua_State *L) {
  static char key;
  lua_pushlightuserdata(L, &key);
  lua_rawget(L, LUA_REGISTRYINDEX);
  batch *b = lua_touserdata(L, -1);
  if (b != NULL) return b;
  lua_pop(L, 1);
  b = lua_newuserdata(L, sizeof *b);
  b->n = b->next = 0;
  lua_newtable(L);
  lua_pushcfunction(L, batch_gc);
  lua_setfield(L, -2, "__gc");
  lua_setmetatable(L, -2);
  lua_pushlightuserdata(L, &key);
  lua_pushvalue(L, -2);
  lua_rawset(L, LUA_REGISTRYINDEX);
  return b;
}

/* _drain(max) -> array | nil: what is there, at most max items, oldest first. */
static int sink_drain(lua_State *L) {
  omni_sink *sink = check_sink(L);
  lua_Number max = luaL_checknumber(L, 2);
  size_t total = 0;
  lua_settop(L, 2);
  batch *b = push_batch(L);
  while ((lua_Number)total < max) {
    lua_Number left = max - (lua_Number)total;
    b->next = 0;
    b->n = omni_sink_drain(sink, b->items, left < BATCH ? (size_t)left : BATCH);
    if (b->n == 0) break;
    if (total == 0) lua_createtable(L, (int)b->n, 0);
    while (b->next < b->n) {
      omni_blob *blob = b->items[b->next];
      vm_decode(L, blob);
      b->next++;
      omni_blob_unref(blob);
      lua_rawseti(L, -2, (int)++total);
    }
    if (b->n < BATCH) break;
  }
  if (total == 0) lua_pushnil(L);
  return 1;
}

static consumer *check_consumer(lua_State *L) {
  vm_handle *handle = vm_handle_check(L, 1, &sink_class);
  if (handle->extra == NULL)
    vm_misuse(L, "this handle is not the sink's consumer: only the state that made or bound the sink can take from "
                 "it (sink.new{bind = false}, then sink:bind() where the items are wanted)");
  return handle->extra;
}

/* _ready(): raises where a get cannot begin: not the consumer, or somebody waits already. */
static int sink_ready(lua_State *L) {
  check_sink(L);
  consumer *c = check_consumer(L);
  if (vm_waits(c->state, c->ticket))
    return vm_misuse(L, "another coroutine waits on this sink already: a sink has one consumer");
  return 0;
}

/* _arm(): the next put rings. */
static int sink_arm(lua_State *L) {
  omni_sink_arm(check_sink(L));
  return 0;
}

/* _wait(timeout | -1) -> true | false on timeout */
static int sink_wait(lua_State *L) {
  check_sink(L);
  consumer *c = check_consumer(L);
  double timeout = luaL_checknumber(L, 2);
  c->ticket = vm_ticket_next(L, "sink:get_batch");
  return vm_park(L, "sink:get_batch", timeout, 1);
}

/* __hope: somebody else holds the sink and may put. */
static int sink_hope(lua_State *L) {
  lua_pushboolean(L, omni_sink_others(check_sink(L)) > 0);
  return 1;
}

static int sink_closed(lua_State *L) {
  lua_pushboolean(L, omni_sink_closed(check_sink(L)));
  return 1;
}

/* close(): no more puts; who waits gets ECLOSED once the queue is empty. */
static int sink_close(lua_State *L) {
  omni_sink_close(check_sink(L));
  return 0;
}

static int sink_stats(lua_State *L) {
  omni_sink_stats stats;
  omni_sink_read_stats(check_sink(L), &stats);
  lua_createtable(L, 0, 5);
#define FIELD(name) (lua_pushnumber(L, (lua_Number)stats.name), lua_setfield(L, -2, #name))
  FIELD(puts), FIELD(gets), FIELD(refused), FIELD(wakeups_scheduled), FIELD(depth);
#undef FIELD
  return 1;
}

static void *ref(void *sink) { return omni_sink_ref(sink); }
static void unref(void *sink) { omni_sink_unref(sink); }

static const luaL_Reg methods[] = {{"bind", sink_bind},      {"put", sink_put},     {"_drain", sink_drain},
                                   {"_ready", sink_ready},   {"_arm", sink_arm},    {"_wait", sink_wait},
                                   {"_closed", sink_closed}, {"close", sink_close}, {"stats", sink_stats},
                                   {"__hope", sink_hope},    {NULL, NULL}};

static const vm_class sink_class = {"omni.sink", ref, unref, methods};

int omni_open_sink(lua_State *L) {
  lua_newtable(L);
  lua_pushcfunction(L, sink_new);
  lua_setfield(L, -2, "new");
  vm_class_methods(L, &sink_class, "methods");
  return 1;
}
