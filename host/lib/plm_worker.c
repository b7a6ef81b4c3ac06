/* Workers as states: a thread that runs omni.plm.worker until its pool is closed or a tool takes it down. */
#include "lib/plm.h"

#include <stdio.h>
#include <string.h>

typedef struct lua_worker {
  omni_worker *worker;
  vm_state *S;
  omni_job *job;    /* in hand; the worker's reference */
  vm_ticket ticket; /* of the wait for the next job */
  uv_timer_t timer; /* until the job's deadline */
} lua_worker;

static _Thread_local lua_worker *self;

/* On the worker's loop: a job, a cancel or a stop. */
static void on_woken(void *arg) {
  lua_worker *w = arg;
  if (w->job != NULL) plm_job_interrupt(w->job);
  vm_unpark(w->S, w->ticket);
}

static void watch_deadline(lua_worker *w);

/* The loop's clock has whole milliseconds, so the timer may be early. */
static void on_late(uv_timer_t *timer) {
  lua_worker *w = timer->data;
  if (w->job == NULL) return;
  omni_job_expire(w->job);
  if (omni_job_cancelled(w->job) == OMNI_CANCEL_NONE) watch_deadline(w);
}

static void watch_deadline(lua_worker *w) {
  uint64_t deadline = omni_job_deadline(w->job), now = omni_sys_now();
  if (deadline == 0) return;
  uv_update_time(vm_loop(w->S));
  uv_timer_start(&w->timer, on_late, deadline > now ? (deadline - now + 999999) / 1000000 : 0, 0);
}

static lua_worker *check_self(lua_State *L) {
  if (self == NULL || self->S != vm_of(L)) luaL_error(L, "this state is no tool worker");
  return self;
}

/* take() -> job | nil, stop */
static int worker_take(lua_State *L) {
  lua_worker *w = check_self(L);
  bool stop = false;
  omni_job *job = omni_worker_take(w->worker, &stop);
  if (job == NULL) {
    lua_pushnil(L);
    lua_pushboolean(L, stop);
    if (stop) vm_exit(w->S, 0);
    return 2;
  }
  if (plm_job_push(L, omni_job_ref(job)) == NULL) return luaL_error(L, "out of memory");
  w->job = job;
  watch_deadline(w);
  return 1;
}

static void count_active(uv_handle_t *handle, void *arg) { *(int *)arg += uv_is_active(handle) != 0; }

/* Nothing of this state can go on but the running task: it may block the thread, which is cheaper than its loop. Only
 * the bell may be active, and what runs this task; handles that keep no loop alive count as well. */
static bool alone(lua_worker *w) {
  vm_state *S = w->S;
  if (S->task_count > 1 || S->ready != NULL || S->current != S->main || vm_children_alive(S)) return false;
  uv_handle_t *more = (uv_handle_t *)&S->more, *timer = (uv_handle_t *)&w->timer;
  int active = 0;
  uv_walk(&S->loop, count_active, &active);
  if (active > 1 + (uv_is_active(more) != 0) + (uv_is_active(timer) != 0)) return false;
  omni_inbox_keep(S->inbox, false); /* requests, and handles that close */
  uv_unref(more);
  bool alive = uv_loop_alive(&S->loop) != 0;
  uv_ref(more);
  omni_inbox_keep(S->inbox, true);
  return !alive;
}

/* rest(): until there may be a job. */
static int worker_rest(lua_State *L) {
  lua_worker *w = check_self(L);
  if (alone(w)) {
    omni_worker_rest(w->worker);
    return 0;
  }
  w->ticket = vm_ticket_next(L, "a tool worker");
  return vm_park(L, "a tool worker", -1, 0);
}

/* nap(seconds) -> true | false: cancelled | nil: it has to be done by suspending. */
static int worker_nap(lua_State *L) {
  double seconds = luaL_checknumber(L, 1);
  if (self == NULL || self->S != vm_of(L) || self->job == NULL || seconds > 1e9 || !alone(self)) return 0;
  lua_pushboolean(L, omni_worker_nap(self->worker, omni_sys_now() + (uint64_t)(seconds * 1e9)));
  return 1;
}

/* setup() -> what the manifest has for its workers. */
static int worker_setup(lua_State *L) {
  vm_decode(L, omni_worker_setup(check_self(L)->worker));
  return 1;
}

void plm_worker_finish(omni_blob *response) {
  uv_timer_stop(&self->timer);
  self->job = NULL;
  omni_worker_finish(self->worker, response);
}

static int push_main(lua_State *L) {
  lua_getglobal(L, "require");
  lua_pushliteral(L, "omni.plm.worker");
  lua_call(L, 1, 1);
  return 1;
}

static void run(lua_worker *w) {
  lua_State *L = vm_main(w->S);
  lua_pushcfunction(L, push_main);
  if (lua_pcall(L, 0, 1, 0) != 0) {
    fprintf(stderr, "omnihost: tool worker: %s\n", lua_tostring(L, -1));
    return;
  }
  vm_state_start(w->S, 0);
  vm_state_run(w->S);
}

void plm_worker_main(omni_worker *worker) {
  lua_worker w = {.worker = worker};
  char name[VM_NAME_MAX];
  snprintf(name, sizeof name, "tool worker %u", omni_worker_number(worker));
  w.S = vm_state_new(name);
  if (w.S == NULL) return;
  self = &w;
  uv_timer_init(vm_loop(w.S), &w.timer);
  uv_unref((uv_handle_t *)&w.timer);
  w.timer.data = &w;
  omni_worker_listen(worker, vm_inbox(w.S), on_woken, &w);
  omni_inbox_keep(vm_inbox(w.S), true); /* a tool that waits for ever waits for its cancel */
  run(&w);
  omni_worker_listen(worker, NULL, NULL, NULL);
  uv_close((uv_handle_t *)&w.timer, NULL); /* before the state looks at the loop's handles, which it takes for luv's */
  vm_state_close(w.S);
  self = NULL;
}

void plm_worker_functions(lua_State *L) {
  static const luaL_Reg functions[] = {
      {"take", worker_take}, {"rest", worker_rest}, {"nap", worker_nap}, {"setup", worker_setup}, {NULL, NULL}};
  luaL_register(L, NULL, functions);
}
