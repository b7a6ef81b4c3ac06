/* omni.native.chunks: the steps of a chunk adapter; lua/omni/chunks.lua has the loops that suspend. */
#include "lib/chunks.h"
#include "lib/modules.h"
#include "vm/vm.h"

#include <stdlib.h>
#include <string.h>

/* A task that waits until its request may send. */
typedef struct credit_waiter {
  struct credit_waiter *next;
  vm_ticket ticket;
  uint64_t bytes; /* of the chunk it wants to send, 0 = unknown */
  char req[];
} credit_waiter;

/* The consumer's side of a handle, from the first suspension on. */
typedef struct consumer {
  vm_state *S;
  omni_chunks *a;
  vm_ticket wait;         /* of the task in wait(); 0 = nobody yet */
  credit_waiter *waiters; /* oldest first */
} consumer;

static const vm_class chunks_class;

static omni_chunks *check_chunks(lua_State *L) { return vm_object_check(L, 1, &chunks_class); }

/* ---- the consumer ---- */

/* Wakes those whose turn it is; drops those that wait no more. */
static void wake_creditors(consumer *c) {
  for (credit_waiter **at = &c->waiters; *at != NULL;) {
    credit_waiter *w = *at;
    if (vm_waits(c->S, w->ticket) && omni_chunks_credit_peek(c->a, w->req, w->bytes) == OMNI_EFULL) {
      at = &w->next;
      continue;
    }
    *at = w->next;
    vm_unpark(c->S, w->ticket);
    free(w);
  }
}

static void on_woken(void *arg) {
  consumer *c = arg;
  if (omni_chunks_pending(c->a) || omni_chunks_stopped(c->a)) vm_unpark(c->S, c->wait);
  wake_creditors(c);
}

static void release(vm_handle *handle) {
  consumer *c = handle->extra;
  omni_chunks_unbind(handle->object);
  while (c->waiters != NULL) {
    credit_waiter *next = c->waiters->next;
    free(c->waiters);
    c->waiters = next;
  }
  free(c);
  handle->extra = NULL;
}

/* The consumer of this handle; the first who waits becomes it. */
static consumer *get_consumer(lua_State *L) {
  vm_handle *handle = vm_handle_check(L, 1, &chunks_class);
  if (handle->extra != NULL) return handle->extra;
  consumer *c = calloc(1, sizeof *c);
  if (c == NULL) luaL_error(L, "out of memory");
  c->S = vm_of(L);
  c->a = handle->object;
  if (omni_chunks_bind(c->a, vm_inbox(c->S), on_woken, c) != OMNI_OK) {
    free(c);
    vm_misuse(L, "another handle of this adapter has waited before: only its state can wait and ask for credit");
  }
  handle->extra = c;
  handle->release = release;
  return c;
}

/* ---- new ---- */

static omni_shm *check_connector(lua_State *L, int idx) {
  vm_handle *handle = vm_handle_test(L, idx);
  if (handle == NULL || strcmp(handle->class->name, "omni.shm") != 0 || handle->object == NULL)
    vm_misuse(L, "chunks.new: key \"connector\" must be an open handle of omni.shm, not %s",
              handle != NULL ? handle->class->name : luaL_typename(L, idx));
  return handle->object;
}

/* new(connector, stage_id|nil, src_stage_id|nil, window, budget, put_timeout seconds, encoding, module|nil) */
static int chunks_new(lua_State *L) {
  static const char *const encodings[] = {"buffer", "json", "bytes", NULL};
  omni_chunks_opts opts = {.connector = check_connector(L, 1),
                           .stage_id = luaL_optstring(L, 2, NULL),
                           .src_stage_id = luaL_optstring(L, 3, NULL),
                           .window = (uint32_t)luaL_checknumber(L, 4),
                           .budget = (uint64_t)luaL_checknumber(L, 5),
                           .put_timeout = (uint64_t)(luaL_checknumber(L, 6) * 1e9)};
  int encoding = luaL_checkoption(L, 7, NULL, encodings);
  const char *module = luaL_optstring(L, 8, NULL);
  /* What save_async makes. With a builder that is a snapshot for another state of this build. */
  opts.tag = module != NULL ? CHUNKS_BUFFER : (uint32_t)encoding;
  if (module != NULL) {
    opts.build = chunks_builder_run;
    opts.build_free = chunks_builder_free;
    opts.build_ud = chunks_builder_new(module, (chunks_encoding)encoding);
    if (opts.build_ud == NULL) return luaL_error(L, "out of memory");
  }
  omni_chunks *a;
  omni_err err = omni_chunks_new(&opts, &a);
  if (err != OMNI_OK) {
    if (module != NULL) chunks_builder_free(opts.build_ud);
    if (err == OMNI_EINVAL)
      return vm_misuse(L,
                       "chunks.new: a stage id must be 1 to %d bytes without control "
                       "characters, quotes and backslashes",
                       OMNI_CHUNK_STAGE_MAX);
    return luaL_error(L, "%s", omni_err_text(err));
  }
  vm_handle_push(L, &chunks_class, a);
  return 1;
}

/* ---- sender ---- */

static const char *check_req(lua_State *L) {
  size_t len;
  if (lua_type(L, 2) != LUA_TSTRING) vm_misuse(L, "a request id must be a string, not a %s", luaL_typename(L, 2));
  const char *req = lua_tolstring(L, 2, &len);
  if (len == 0 || len > OMNI_CHUNK_REQ_MAX || strlen(req) != len)
    vm_misuse(L, "a request id must be 1 to %d bytes without NUL", OMNI_CHUNK_REQ_MAX);
  return req;
}

static int refused(lua_State *L, omni_err err) {
  if (err == OMNI_EINVAL)
    return vm_misuse(L, "this adapter has no %s: it cannot do that", "stage_id (to send) or src_stage_id (to receive)");
  if (err == OMNI_ECLOSED) return vm_fail(L, err, "the adapter is stopped");
  return vm_fail(L, err, NULL);
}

static int done(lua_State *L, omni_err err) {
  if (err != OMNI_OK) return refused(L, err);
  lua_pushboolean(L, 1);
  return 1;
}

/* save_async(req, value, is_final) -> true | nil, "ECODE: ...", "ECODE" */
static int chunks_save(lua_State *L) {
  omni_chunks *a = check_chunks(L);
  const char *req = check_req(L);
  if (!lua_isnoneornil(L, 4) && !lua_isboolean(L, 4))
    return vm_misuse(L, "chunks:save_async: is_final must be a boolean, not a %s", luaL_typename(L, 4));
  omni_blob *blob;
  lua_settop(L, 4);
  if (!chunks_encode(L, 3, (chunks_encoding)omni_chunks_tag(a), &blob))
    return vm_misuse(L, "chunks:save_async cannot carry this value: %s", lua_tostring(L, -1));
  omni_err err = omni_chunks_save(a, req, blob, lua_toboolean(L, 4));
  if (err != OMNI_OK) omni_blob_unref(blob);
  return done(L, err);
}

static int chunks_cancel_sender(lua_State *L) {
  omni_chunks_cancel_sender(check_chunks(L), check_req(L));
  return 0;
}

static int chunks_cleanup_sender(lua_State *L) {
  lua_pushnumber(L, (lua_Number)omni_chunks_cleanup_sender(check_chunks(L), check_req(L)));
  return 1;
}

/* _credit(req, bytes) -> true | false: not now | nil, "ECODE: ...", "ECODE" */
static int chunks_credit(lua_State *L) {
  omni_chunks *a = check_chunks(L);
  const char *req = check_req(L);
  omni_err err = omni_chunks_credit(a, req, (uint64_t)luaL_optnumber(L, 3, 0));
  if (err == OMNI_EFULL) {
    lua_pushboolean(L, 0);
    return 1;
  }
  if (err == OMNI_EPUT || err == OMNI_ERUN) return vm_fail(L, err, "the request's stream has failed before");
  return done(L, err);
}

/* _credit_wait(req, bytes, timeout | -1) -> true | false on timeout */
static int chunks_credit_wait(lua_State *L) {
  check_chunks(L);
  const char *req = check_req(L);
  consumer *c = get_consumer(L);
  double timeout = luaL_checknumber(L, 4);
  size_t len = strlen(req) + 1;
  vm_ticket ticket = vm_ticket_next(L, "chunks:credit");
  /* Credit that came before this state was bound rang nobody: only this look finds it. */
  if (omni_chunks_credit_peek(c->a, req, (uint64_t)luaL_checknumber(L, 3)) != OMNI_EFULL) {
    lua_pushboolean(L, 1);
    return 1;
  }
  credit_waiter *w = calloc(1, sizeof *w + len), **at = &c->waiters;
  if (w == NULL) return luaL_error(L, "out of memory");
  w->ticket = ticket;
  w->bytes = (uint64_t)luaL_checknumber(L, 3);
  memcpy(w->req, req, len);
  while (*at != NULL)
    at = &(*at)->next;
  *at = w;
  return vm_park(L, "chunks:credit", timeout, 1);
}

/* _credit_giveup(req): a wait for credit timed out. */
static int chunks_credit_giveup(lua_State *L) {
  omni_chunks *a = check_chunks(L);
  const char *req = check_req(L);
  consumer *c = get_consumer(L);
  bool others = false;
  for (credit_waiter **at = &c->waiters; *at != NULL;) {
    credit_waiter *w = *at;
    if (vm_waits(c->S, w->ticket)) {
      others |= strcmp(w->req, req) == 0;
      at = &w->next;
      continue;
    }
    *at = w->next;
    free(w);
  }
  if (!others) omni_chunks_credit_giveup(a, req);
  return 0;
}

/* ---- receiver ---- */

static int chunks_load_async(lua_State *L) {
  omni_chunks *a = check_chunks(L);
  return done(L, omni_chunks_load(a, check_req(L)));
}

static int chunks_cleanup_receiver(lua_State *L) {
  omni_chunks *a = check_chunks(L);
  omni_chunks_cleanup_receiver(a, check_req(L), lua_toboolean(L, 3));
  return 0;
}

static uint32_t check_count(lua_State *L) {
  lua_Number n = luaL_optnumber(L, 3, 1);
  if (!(n >= 0 && n <= UINT32_MAX)) vm_misuse(L, "a count of chunks must be 0 or more");
  return (uint32_t)n;
}

static int chunks_want(lua_State *L) {
  omni_chunks *a = check_chunks(L);
  omni_chunks_want(a, check_req(L), check_count(L));
  return 0;
}

static int chunks_consumed(lua_State *L) {
  omni_chunks *a = check_chunks(L);
  omni_chunks_consumed(a, check_req(L), check_count(L));
  return 0;
}

/* The rest of a polled list: what an error leaves is freed by its __gc. */
static int list_gc(lua_State *L) {
  omni_chunk **list = lua_touserdata(L, 1);
  while (*list != NULL) {
    omni_chunk *next = (*list)->next;
    omni_chunk_free(*list);
    *list = next;
  }
  return 0;
}

static omni_chunk **push_list(lua_State *L) {
  omni_chunk **list = lua_newuserdata(L, sizeof *list);
  *list = NULL;
  if (luaL_newmetatable(L, "omni.chunks.list")) {
    lua_pushcfunction(L, list_gc);
    lua_setfield(L, -2, "__gc");
  }
  lua_setmetatable(L, -2);
  return list;
}

/* Sets error, code and sender of the item on top of the stack. */
static void set_error(lua_State *L, omni_err err, const char *text, bool sender) {
  lua_pushfstring(L, "%s: %s", omni_err_name(err), text != NULL ? text : omni_err_text(err));
  lua_setfield(L, -2, "error");
  lua_pushstring(L, omni_err_name(err));
  lua_setfield(L, -2, "code");
  if (!sender) return;
  lua_pushboolean(L, 1);
  lua_setfield(L, -2, "sender");
}

/* Pushes what a poll shows of a chunk. Bytes that do not decode are the item's error, not the poll's. */
static void push_item(lua_State *L, omni_chunk *chunk) {
  lua_createtable(L, 0, 2);
  if (chunk->err != OMNI_OK) {
    set_error(L, chunk->err, chunk->text, chunk->sender);
    return;
  }
  lua_pushboolean(L, chunk->finished);
  lua_setfield(L, -2, "finished");
  if (chunk->data == NULL) return;
  if (chunk->data->tag == OMNI_CHUNK_BYTES) {
    lua_pushlstring(L, (const char *)chunk->data->data + chunk->at, chunk->data->len - chunk->at);
  } else {
    lua_pushcfunction(L, chunks_decode);
    lua_pushlightuserdata(L, chunk);
    if (lua_pcall(L, 1, 1, 0) != 0) {
      lua_insert(L, -2);
      set_error(L, OMNI_ECODEC, lua_tostring(L, -2), false);
      lua_remove(L, -2);
      return;
    }
  }
  lua_setfield(L, -2, "data");
}

/* Pushes result[req], made where it is missing. */
static void push_items_of(lua_State *L, int result, const char *req) {
  lua_getfield(L, result, req);
  if (!lua_isnil(L, -1)) return;
  lua_pop(L, 1);
  lua_createtable(L, 1, 0);
  lua_pushvalue(L, -1);
  lua_setfield(L, result, req);
}

/* poll_ready() -> {[req] = {{data=, finished=}, ...}, ...}: all that came since the last call. */
static int chunks_poll_ready(lua_State *L) {
  omni_chunks *a = check_chunks(L);
  lua_settop(L, 1);
  lua_newtable(L);
  if (!omni_chunks_pending(a)) return 1;
  omni_chunk **list = push_list(L);
  *list = omni_chunks_poll(a);
  const char *last = NULL;
  lua_pushnil(L); /* 4: the items of the request that came last */
  while (*list != NULL) {
    omni_chunk *chunk = *list;
    if (last == NULL || strcmp(last, chunk->req) != 0) {
      push_items_of(L, 2, chunk->req);
      lua_replace(L, 4);
    }
    push_item(L, chunk);
    lua_rawseti(L, 4, (int)lua_objlen(L, 4) + 1);
    *list = chunk->next;
    lua_pushstring(L, chunk->req);
    last = lua_tostring(L, -1);
    lua_replace(L, 1); /* keeps `last` alive; the handle is not needed any more */
    omni_chunk_free(chunk);
  }
  lua_settop(L, 2);
  return 1;
}

static int chunks_pending(lua_State *L) {
  lua_pushboolean(L, omni_chunks_pending(check_chunks(L)));
  return 1;
}

/* _wait(timeout | -1) -> true | false on timeout */
static int chunks_wait(lua_State *L) {
  check_chunks(L);
  consumer *c = get_consumer(L);
  double timeout = luaL_checknumber(L, 2);
  if (vm_waits(c->S, c->wait))
    return vm_misuse(L, "another coroutine waits on this adapter already: an adapter has one consumer");
  c->wait = vm_ticket_next(L, "chunks:wait");
  return vm_park(L, "chunks:wait", timeout, 1);
}

/* ---- both ---- */

static int chunks_hope(lua_State *L) {
  lua_pushboolean(L, omni_chunks_hopeful(check_chunks(L)));
  return 1;
}

static int chunks_stop(lua_State *L) {
  omni_chunks_stop(check_chunks(L));
  return 0;
}

static int chunks_stopped(lua_State *L) {
  lua_pushboolean(L, omni_chunks_stopped(check_chunks(L)));
  return 1;
}

static int chunks_stats(lua_State *L) {
  omni_chunks_stats stats;
  omni_chunks_read_stats(check_chunks(L), &stats);
  lua_createtable(L, 0, 16);
#define FIELD(name) (lua_pushnumber(L, (lua_Number)stats.name), lua_setfield(L, -2, #name))
  FIELD(saved), FIELD(sent), FIELD(sent_bytes), FIELD(received), FIELD(received_bytes), FIELD(skipped), FIELD(dropped),
      FIELD(stale), FIELD(put_retries), FIELD(put_failures), FIELD(credit_waits), FIELD(queued), FIELD(outstanding),
      FIELD(outstanding_bytes), FIELD(registered), FIELD(senders);
#undef FIELD
  return 1;
}

static void *ref(void *a) { return omni_chunks_ref(a); }
static void unref(void *a) { omni_chunks_unref(a); }

static const luaL_Reg methods[] = {{"save_async", chunks_save},
                                   {"cancel_sender", chunks_cancel_sender},
                                   {"cleanup_sender", chunks_cleanup_sender},
                                   {"_credit", chunks_credit},
                                   {"_credit_wait", chunks_credit_wait},
                                   {"_credit_giveup", chunks_credit_giveup},
                                   {"load_async", chunks_load_async},
                                   {"cleanup_receiver", chunks_cleanup_receiver},
                                   {"want", chunks_want},
                                   {"consumed", chunks_consumed},
                                   {"poll_ready", chunks_poll_ready},
                                   {"_pending", chunks_pending},
                                   {"_wait", chunks_wait},
                                   {"_stopped", chunks_stopped},
                                   {"stop", chunks_stop},
                                   {"close", chunks_stop},
                                   {"stats", chunks_stats},
                                   {"__hope", chunks_hope},
                                   {NULL, NULL}};

static const vm_class chunks_class = {"omni.chunks", ref, unref, methods};

int omni_open_chunks(lua_State *L) {
  lua_newtable(L);
  lua_pushcfunction(L, chunks_new);
  lua_setfield(L, -2, "new");
  vm_class_push(L, &chunks_class);
  lua_getfield(L, -1, "__index");
  lua_setfield(L, -3, "methods");
  lua_pop(L, 1);
  return 1;
}
