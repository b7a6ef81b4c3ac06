#include "vm/child.h"

#include "core/owner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STOP_GRACE ((uint64_t)2000000000) /* ns that a thread gets to unwind when its parent ends */

static _Thread_local vm_child *self;

vm_child *vm_child_of(vm_state *S) { return self != NULL && self->state == S ? self : NULL; }

static void drop_passed(vm_child *child) {
  for (size_t i = 0; i < child->passed_count; i++)
    if (child->passed[i].object != NULL) child->passed[i].class->unref(child->passed[i].object);
  free(child->passed);
  child->passed = NULL;
  child->passed_count = 0;
}

void vm_child_unref(vm_child *child) {
  if (atomic_fetch_sub_explicit(&child->refs, 1, memory_order_acq_rel) != 1) return;
  omni_blob_unref(child->payload);
  omni_blob_unref(child->result);
  drop_passed(child);
  omni_inbox_unref(child->parent_inbox);
  omni_mutex_destroy(&child->mutex);
  omni_cond_destroy(&child->ended_cond);
  free(child);
}

void vm_child_finish(vm_child *child, bool ok, omni_blob *result) {
  omni_blob_unref(child->result);
  child->ok = ok;
  child->result = result;
}

bool vm_child_ended(vm_child *child) {
  omni_mutex_lock(&child->mutex);
  bool ended = child->ended;
  omni_mutex_unlock(&child->mutex);
  return ended;
}

/* ---- the thread ---- */

/* Under pcall: require "omni.thread", its entry, payload and passed handles; leaves them for vm_state_start. */
static int push_entry(lua_State *L) {
  vm_child *child = lua_touserdata(L, 1);
  lua_settop(L, 0);
  luaL_checkstack(L, (int)child->passed_count + 8, "too many handles");
  lua_getglobal(L, "require");
  lua_pushliteral(L, "omni.thread");
  lua_call(L, 1, 1);
  lua_getfield(L, -1, "entry");
  lua_remove(L, -2);
  vm_decode(L, child->payload);
  for (size_t i = 0; i < child->passed_count; i++) {
    vm_passed *passed = &child->passed[i];
    void *object = passed->object;
    passed->object = NULL;
    lua_getglobal(L, "require"); /* the Lua half of its methods */
    lua_pushstring(L, passed->class->name);
    if (lua_pcall(L, 1, 0, 0) != 0) lua_pop(L, 1);
    vm_handle_push(L, passed->class, object);
  }
  drop_passed(child);
  return lua_gettop(L);
}

static int run_state(vm_child *child, vm_state *S) {
  lua_State *L = vm_main(S);
  lua_pushcfunction(L, push_entry);
  lua_pushlightuserdata(L, child);
  if (lua_pcall(L, 1, LUA_MULTRET, 0) != 0) {
    vm_child_finish(child, false, vm_encode(L, -1));
    return 1;
  }
  vm_state_start(S, lua_gettop(L) - 1);
  return vm_state_run(S);
}

/* Under the mutex, once the state is there. */
static void post_stop(vm_child *child) {
  atomic_fetch_add(&child->refs, 1);
  if (omni_inbox_post(child->inbox, &child->stop) != OMNI_POSTED) atomic_fetch_sub(&child->refs, 1);
}

static void set_inbox(vm_child *child, vm_state *S) {
  omni_mutex_lock(&child->mutex);
  child->inbox = S != NULL ? vm_inbox(S) : NULL;
  child->state = S;
  if (S != NULL && child->stopping) post_stop(child); /* asked before there was a state to tell */
  omni_mutex_unlock(&child->mutex);
}

static void tell_parent(vm_child *child) {
  omni_mutex_lock(&child->mutex);
  child->ended = true;
  omni_cond_broadcast(&child->ended_cond);
  omni_mutex_unlock(&child->mutex);
  /* The thread's reference goes to the event, where it can be posted. */
  if (omni_inbox_post(child->parent_inbox, &child->done) != OMNI_POSTED) vm_child_unref(child);
}

static void *thread_main(void *arg) {
  vm_child *child = arg;
  self = child;
  vm_state *S = vm_state_new(child->name);
  if (S != NULL) {
    set_inbox(child, S);
    int code = run_state(child, S);
    if (code != 0 && child->ok) vm_child_finish(child, false, NULL);
    set_inbox(child, NULL);
    vm_state_close(S);
  } else {
    vm_child_finish(child, false, vm_encode_text("no state can be opened: memory or descriptors are short"));
  }
  tell_parent(child);
  return NULL;
}

/* ---- the parent ---- */

static vm_child *child_of_done(omni_event *event) { return (vm_child *)((char *)event - offsetof(vm_child, done)); }

static void join_thread(vm_child *child) {
  if (child->joined) return;
  child->joined = true;
  omni_thread_join(child->thread);
}

static void on_done(omni_event *event) {
  vm_child *child = child_of_done(event);
  join_thread(child);
  vm_unpark(child->parent, child->waiter);
  vm_children_collect(child->parent);
  vm_child_unref(child);
}

static void on_done_dropped(omni_event *event) { vm_child_unref(child_of_done(event)); }

/* On the child's loop. */
static void on_stop(omni_event *event) {
  vm_child *child = (vm_child *)((char *)event - offsetof(vm_child, stop));
  vm_exit(child->state, 0);
  vm_child_unref(child);
}

static void on_stop_dropped(omni_event *event) {
  vm_child_unref((vm_child *)((char *)event - offsetof(vm_child, stop)));
}

vm_child *vm_child_start(vm_state *parent, const char *name, omni_blob *payload, vm_passed *passed, size_t n) {
  vm_child *child = calloc(1, sizeof *child);
  if (child == NULL) return NULL;
  atomic_init(&child->refs, 3);
  snprintf(child->name, sizeof child->name, "%s", name);
  child->payload = payload;
  child->passed = passed;
  child->passed_count = n;
  child->parent = parent;
  child->parent_inbox = omni_inbox_ref(vm_inbox(parent));
  child->ok = true;
  omni_mutex_init(&child->mutex);
  omni_cond_init(&child->ended_cond);
  omni_event_init(&child->done, on_done, on_done_dropped);
  omni_event_init(&child->stop, on_stop, on_stop_dropped);
  if (omni_thread_start(&child->thread, name, thread_main, child) != 0) {
    atomic_store(&child->refs, 1);
    vm_child_unref(child);
    return NULL;
  }
  child->next = parent->children;
  parent->children = child;
  return child;
}

void vm_child_stop(vm_child *child) {
  omni_mutex_lock(&child->mutex);
  child->stopping = true;
  if (child->inbox != NULL) post_stop(child);
  omni_mutex_unlock(&child->mutex);
}

bool vm_children_alive(vm_state *S) {
  for (vm_child *child = S->children; child != NULL; child = child->next)
    if (!child->joined) return true;
  return false;
}

void vm_children_collect(vm_state *S) {
  for (vm_child **at = &S->children; *at != NULL;) {
    vm_child *child = *at;
    if (!child->joined || !(child->ok || child->seen)) {
      at = &child->next;
      continue;
    }
    *at = child->next;
    vm_child_unref(child);
  }
}

/* A thread whose failure nobody took: it must not pass in silence. */
static void report_unseen(vm_state *S, vm_child *child) {
  if (child->ok || child->seen) return;
  omni_blob *why = child->result;
  fprintf(stderr, "omnihost: thread %s failed and nobody joined it%s%.*s\n", child->name, why != NULL ? ": " : "",
          why != NULL ? (int)why->len : 0, why != NULL ? (const char *)why->data : "");
  if (S->code == 0) S->code = 1;
}

int vm_children_unseen(vm_state *S) {
  for (vm_child *child = S->children; child != NULL; child = child->next)
    if (child->joined) {
      report_unseen(S, child);
      child->seen = true;
    }
  return S->code;
}

static void await_end(vm_state *S, vm_child *child, uint64_t deadline) {
  omni_mutex_lock(&child->mutex);
  bool in_time = true;
  while (!child->ended && in_time)
    in_time = omni_cond_wait_until(&child->ended_cond, &child->mutex, deadline);
  bool ended = child->ended;
  omni_mutex_unlock(&child->mutex);
  if (ended) return;
  fprintf(stderr, "omnihost: thread %s does not stop: giving up the process\n", child->name);
  omni_owner_emergency();
  _exit(S->code != 0 ? S->code : 1);
}

void vm_children_stop(vm_state *S) {
  uint64_t deadline = omni_sys_now() + STOP_GRACE;
  for (vm_child *child = S->children; child != NULL; child = child->next)
    if (!child->joined) vm_child_stop(child);
  while (S->children != NULL) {
    vm_child *child = S->children;
    if (!child->joined) await_end(S, child, deadline);
    join_thread(child);
    S->children = child->next;
    vm_child_unref(child);
  }
}
