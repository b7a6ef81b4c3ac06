/* omni.native.sink: the steps of a sink; lua/omni/sink.lua has the loop that suspends. */
#include "core/sink.h"

#include "lib/modules.h"
#include "lib/sink.h"
#include "vm/vm.h"

#include <stdlib.h>

/* The consumer's side of a handle: who waits. */
typedef struct consumer {
  vm_state *state;
  vm_ticket ticket; /* of the task in get_batch, 0 = none yet */
  bool filling;     /* a batch is being made */
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
  vm_bytes bytes;
  if (!vm_encode_bytes(L, 2, &bytes)) return vm_misuse(L, "sink:put cannot carry this value: %s", lua_tostring(L, -1));
  omni_err err = omni_sink_put(sink, bytes.tag, bytes.data, bytes.len);
  if (err == OMNI_OK) {
    lua_pushboolean(L, 1);
    return 1;
  }
  if (err == OMNI_EFULL) return vm_fail(L, err, "the sink holds as many items as its capacity allows");
  if (err == OMNI_ECLOSED) return vm_fail(L, err, "the sink is closed");
  return vm_fail(L, err, NULL);
}

static consumer *check_consumer(lua_State *L) {
  vm_handle *handle = vm_handle_check(L, 1, &sink_class);
  if (handle->extra == NULL)
    vm_misuse(L, "this handle is not the sink's consumer: only the state that made or bound the sink can take from "
                 "it (sink.new{bind = false}, then sink:bind() where the items are wanted)");
  return handle->extra;
}

/* A batch that is being made. */
typedef struct batch {
  omni_sink *sink;
  lua_Number max;
  bool more; /* when what is fetched ends, look for more: it was fetched for an earlier batch */
} batch;

static const omni_item *next_of(batch *b) {
  const omni_item *item = omni_sink_next(b->sink);
  if (item != NULL || !b->more) return item;
  b->more = false;
  return omni_sink_fetch(b->sink) ? omni_sink_next(b->sink) : NULL;
}

/* fill(batch) -> array */
static int fill(lua_State *L) {
  batch *b = lua_touserdata(L, 1);
  lua_Number room = (lua_Number)omni_sink_ahead(b->sink);
  int n = 0;
  lua_createtable(L, (int)(room < b->max ? room : b->max), 0);
  for (const omni_item *item; n < b->max && (item = next_of(b)) != NULL; n++) {
    vm_decode_bytes(L, item->tag, item->data, item->len);
    lua_rawseti(L, 2, n + 1);
  }
  return 1;
}

/* _ready(): raises where a get cannot begin: not the consumer, or somebody waits already. */
static int sink_ready(lua_State *L) {
  check_sink(L);
  consumer *c = check_consumer(L);
  if (vm_waits(c->state, c->ticket))
    return vm_misuse(L, "another coroutine waits on this sink already: a sink has one consumer");
  return 0;
}

static int drain(lua_State *L) {
  omni_sink *sink = check_sink(L);
  consumer *c = check_consumer(L);
  /* An item must not be taken while another is being copied: a finalizer can run in between. */
  if (c->filling) return vm_misuse(L, "sink:get_batch: called by a finalizer while a batch was being made");
  batch b = {.sink = sink, .max = luaL_checknumber(L, 2), .more = omni_sink_ahead(sink) > 0};
  if (!omni_sink_fetch(sink)) return 0;
  lua_pushcfunction(L, fill);
  lua_pushlightuserdata(L, &b);
  c->filling = true;
  int failed = lua_pcall(L, 1, 1, 0);
  c->filling = false;
  omni_sink_settle(sink);
  return failed != 0 ? lua_error(L) : 1;
}

/* _drain(max) -> array | nil: what is there, at most max items, oldest first. */
static int sink_drain(lua_State *L) { return drain(L); }

/* _arm(max) -> array | nil | false: the next put rings; then drains once more. false: empty, and closed for good. */
static int sink_arm(lua_State *L) {
  omni_sink *sink = check_sink(L);
  omni_sink_arm(sink);
  int n = drain(L);
  if (n > 0 || !omni_sink_closed(sink)) return n;
  /* Puts that came before the close are still there. */
  n = drain(L);
  if (n == 0) lua_pushboolean(L, 0);
  return 1;
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

static const luaL_Reg methods[] = {
    {"bind", sink_bind},  {"put", sink_put},     {"_drain", sink_drain}, {"_ready", sink_ready}, {"_arm", sink_arm},
    {"_wait", sink_wait}, {"close", sink_close}, {"stats", sink_stats},  {"__hope", sink_hope},  {NULL, NULL}};

static const vm_class sink_class = {"omni.sink", ref, unref, methods};

int omni_open_sink(lua_State *L) {
  lua_newtable(L);
  lua_pushcfunction(L, sink_new);
  lua_setfield(L, -2, "new");
  vm_class_methods(L, &sink_class, "methods");
  return 1;
}
