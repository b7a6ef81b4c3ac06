/* The scheduler: tasks suspend by yielding a private sentinel and are resumed from the loop. */
#include "vm/state.h"

#include <luajit.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char sentinel; /* its address is what a suspending task yields */

static void task_free(vm_state *S, vm_task *task, bool reuse);

void *vm_sentinel(void) { return &sentinel; }

/* ---- slots ---- */

static vm_task *slot_new(vm_state *S) {
  if (S->free != NULL) {
    vm_task *task = S->free;
    S->free = task->ready;
    return task;
  }
  if (S->task_room >= VM_TASKS_MAX) return NULL;
  vm_task **tasks = realloc(S->tasks, (S->task_room + 1) * sizeof *tasks);
  if (tasks == NULL) return NULL;
  S->tasks = tasks;
  vm_task *task = calloc(1, sizeof *task);
  if (task == NULL) return NULL;
  task->index = (uint32_t)S->task_room;
  S->tasks[S->task_room++] = task;
  return task;
}

static vm_ticket ticket_of(const vm_task *task, uint32_t gen) { return ((vm_ticket)gen << 20) | (task->index + 1); }

static vm_task *task_of(vm_state *S, vm_ticket ticket) {
  size_t index = (size_t)(ticket & 0xfffff) - 1; /* ticket 0 wraps to a huge index */
  if (index >= S->task_room) return NULL;
  vm_task *task = S->tasks[index];
  return task->parked && task->gen == (uint32_t)(ticket >> 20) ? task : NULL;
}

/* ---- ready queue ---- */

static void on_more(uv_idle_t *idle) { vm_tasks_run_ready(idle->data); }

static void make_ready(vm_state *S, vm_task *task) {
  task->ready = NULL;
  if (S->ready_tail != NULL)
    S->ready_tail->ready = task;
  else
    S->ready = task;
  S->ready_tail = task;
  /* Where a callback is running its end runs the batch; the idle handle covers every other way in. */
  if (!uv_is_active((uv_handle_t *)&S->more)) uv_idle_start(&S->more, on_more);
}

static vm_task *take_ready(vm_state *S) {
  vm_task *task = S->ready;
  S->ready = task->ready;
  if (S->ready == NULL) S->ready_tail = NULL;
  return task;
}

/* The hook that turns a resume into an error at the place of the wait. */
static void raise_hook(lua_State *L, lua_Debug *ar) {
  (void)ar;
  vm_state *S = vm_of(L);
  lua_sethook(L, NULL, 0, 0);
  vm_task *task = S->current;
  if (task == NULL || task->raise == NULL) return;
  lua_pushstring(L, task->raise);
  free((void *)task->raise);
  task->raise = NULL;
  lua_error(L);
}

/* Resumes a task; true if it has ended (its slot is free then). Whoever was current is current again. */
static bool task_resume(vm_state *S, vm_task *task) {
  lua_State *co = task->co;
  int nargs = task->nargs;
  vm_task *outer = S->current;
  task->nargs = 0;
  S->current = task;
  if (task->raise != NULL) {
    /* The call that waited may continue right in compiled code, which sees no hook, and wait again there. */
    luaJIT_setmode(co, 0, LUAJIT_MODE_ENGINE | LUAJIT_MODE_FLUSH);
    lua_sethook(co, raise_hook, LUA_MASKCOUNT, 1);
  }
  int status = lua_resume(co, nargs);
  S->current = outer;
  if (status == LUA_YIELD) {
    bool suspended = lua_gettop(co) == 1 && lua_touserdata(co, 1) == &sentinel;
    lua_settop(co, 0);
    if (suspended) return false;
    lua_pushliteral(co, "coroutine.yield outside of a coroutine: only the function of coroutine.create or wrap can "
                        "yield");
  }
  if (status != 0) vm_report(S, lua_tostring(co, -1) != NULL ? lua_tostring(co, -1) : "error without a text");
  task_free(S, task, status == 0);
  return true;
}

void vm_tasks_run_ready(vm_state *S) {
  if (S->depth > 0 || S->current != NULL) return; /* the outermost callback's end does it */
  vm_task *last = S->ready_tail;
  while (S->ready != NULL && !S->exiting) {
    vm_task *task = take_ready(S);
    task_resume(S, task);
    if (task == last) break; /* one batch: tasks that wake each other must not starve the loop */
  }
  if (S->ready == NULL) uv_idle_stop(&S->more);
}

/* ---- life of a task ---- */

/* failed(text?): the guard of the running task caught an error. Without a value it ends the run silently, as busted
 * does to end with a code. */
int vm_task_failed(lua_State *L) {
  vm_state *S = vm_of(L);
  if (lua_isnil(L, 1))
    vm_exit(S, 1);
  else
    vm_report(S, luaL_checkstring(L, 1));
  return 0;
}

/* A task for the function and n arguments on top of L, moved to its coroutine; the guard runs it if asked for. */
static vm_task *task_new(vm_state *S, lua_State *L, int nargs, bool guarded) {
  vm_task *task = slot_new(S);
  if (task == NULL) return NULL;
  if (S->spare != NULL) {
    task->co = S->spare;
    task->ref = S->spare_ref;
    S->spare = NULL;
  } else {
    task->co = lua_newthread(L);
    task->ref = luaL_ref(L, LUA_REGISTRYINDEX);
  }
  if (guarded) lua_rawgeti(task->co, LUA_REGISTRYINDEX, S->guard);
  lua_xmove(L, task->co, nargs + 1);
  task->nargs = nargs + (guarded ? 1 : 0);
  task->parked = false;
  S->task_count++;
  return task;
}

vm_task *vm_task_spawn(vm_state *S, int nargs) {
  vm_task *task = task_new(S, S->L, nargs, true);
  if (task != NULL) make_ready(S, task);
  return task;
}

int vm_task_run(lua_State *L, int nargs) {
  vm_state *S = vm_of(L);
  vm_task *task = task_new(S, L, nargs, false);
  if (task == NULL) return luaL_error(L, "too many tasks, or out of memory");
  lua_pushboolean(L, task_resume(S, task));
  return 1;
}

static void timer_stop(vm_task *task) {
  if (task->timed) uv_timer_stop(&task->timer);
  task->timed = false;
}

static void hope_drop(vm_state *S, vm_task *task) {
  if (!task->hopes) return;
  task->hopes = false;
  lua_rawgeti(S->L, LUA_REGISTRYINDEX, S->hopes);
  lua_pushnil(S->L);
  lua_rawseti(S->L, -2, (int)task->index + 1);
  lua_pop(S->L, 1);
}

/* With reuse, the coroutine has returned and can run another function: kept for the next task. */
static void task_free(vm_state *S, vm_task *task, bool reuse) {
  timer_stop(task);
  hope_drop(S, task);
  free((void *)task->raise);
  task->raise = NULL;
  if (reuse && S->spare == NULL) {
    lua_settop(task->co, 0);
    S->spare = task->co;
    S->spare_ref = task->ref;
  } else {
    luaL_unref(S->L, LUA_REGISTRYINDEX, task->ref);
  }
  task->co = NULL;
  task->parked = false;
  task->ready = S->free;
  S->free = task;
  S->task_count--;
  if (task == S->main) {
    S->main = NULL;
    S->main_done = true;
  }
}

/* ---- suspension ---- */

vm_ticket vm_ticket_next(lua_State *L, const char *what) {
  vm_state *S = vm_of(L);
  if (S->current == NULL || !lua_isyieldable(L))
    vm_misuse(L,
              "%s cannot suspend here: a C function (require, table.sort, string.gsub, a luv callback ...) is on the "
              "stack; call it from a task of its own: omni.spawn(function() ... end)",
              what);
  return ticket_of(S->current, S->current->gen + 1);
}

static void on_timeout(uv_timer_t *timer) {
  vm_task *task = timer->data;
  vm_state *S = timer->loop->data;
  task->timed = false;
  if (!task->parked) return;
  task->parked = false;
  hope_drop(S, task);
  lua_pushboolean(task->co, 0);
  task->nargs = 1;
  /* Not run from here: a task that sleeps 0 would start a timer that libuv fires in the same sweep, for ever. The idle
   * handle runs it right after this sweep. */
  make_ready(S, task);
}

static void timer_start(vm_state *S, vm_task *task, double seconds) {
  if (!task->timer_made) {
    uv_timer_init(&S->loop, &task->timer);
    task->timer.data = task;
    task->timer_made = true;
  }
  /* The loop's clock stands since its last turn and counts whole milliseconds: counted from its value a timer would
   * fire early, by up to one of them. A wait of 0 is a turn of the loop. */
  uv_update_time(&S->loop);
  double past = (double)uv_hrtime() / 1e6 - (double)uv_now(&S->loop);
  double ms = seconds > 0 ? ceil(seconds * 1000 + past) : 0;
  uv_timer_start(&task->timer, on_timeout, ms > 1e15 ? (uint64_t)1e15 : (uint64_t)ms, 0);
  task->timed = true;
}

int vm_park(lua_State *L, const char *what, double timeout, int hope) {
  vm_ticket_next(L, what);
  vm_state *S = vm_of(L);
  vm_task *task = S->current;
  if (hope != 0 && !lua_isnoneornil(L, hope)) {
    lua_pushvalue(L, hope);
    lua_rawgeti(L, LUA_REGISTRYINDEX, S->hopes);
    lua_insert(L, -2);
    lua_rawseti(L, -2, (int)task->index + 1);
    lua_pop(L, 1);
    task->hopes = true;
  }
  task->gen++;
  task->parked = true;
  task->what = what;
  task->at = L;
  if (timeout >= 0) timer_start(S, task, timeout);
  lua_pushlightuserdata(L, &sentinel);
  return lua_yield(L, 1);
}

/* Unparks with n values from the top of L's stack behind `true`; they are popped. */
static bool unpark(vm_state *S, vm_ticket ticket, lua_State *L, int n) {
  vm_task *task = task_of(S, ticket);
  if (task == NULL || !lua_checkstack(task->co, n + 2)) {
    if (n > 0) lua_pop(L, n);
    return false;
  }
  task->parked = false;
  timer_stop(task);
  hope_drop(S, task);
  lua_pushboolean(task->co, 1);
  if (n > 0) lua_xmove(L, task->co, n);
  task->nargs = n + 1;
  make_ready(S, task);
  return true;
}

bool vm_unpark(vm_state *S, vm_ticket ticket) { return unpark(S, ticket, NULL, 0); }

bool vm_unpark_values(vm_state *S, vm_ticket ticket, lua_State *L, int n) { return unpark(S, ticket, L, n); }

bool vm_waits(vm_state *S, vm_ticket ticket) { return task_of(S, ticket) != NULL; }

bool vm_task_raise(vm_state *S, vm_task *task, const char *text) {
  if (task == NULL || !task->parked || task->raise != NULL) return false;
  task->raise = strdup(text);
  if (task->raise == NULL) return false;
  return unpark(S, ticket_of(task, task->gen), NULL, 0);
}

bool vm_task_interrupt(vm_state *S, vm_task *task, const char *text) {
  if (task->parked) return vm_task_raise(S, task, text);
  if (task->raise == NULL) task->raise = strdup(text);
  return task->raise != NULL;
}

/* ---- those that wait for ever ---- */

/* Pushes __hope(obj) of the hope at the top of the stack (popped), as a boolean. */
static bool hope_asks(lua_State *L) {
  bool hope = false;
  if (luaL_getmetafield(L, -1, "__hope")) {
    lua_pushvalue(L, -2);
    if (lua_pcall(L, 1, 1, 0) == 0) hope = lua_toboolean(L, -1);
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
  return hope;
}

bool vm_tasks_hope(vm_state *S) {
  for (size_t i = 0; i < S->task_room; i++) {
    if (!S->tasks[i]->hopes) continue;
    lua_rawgeti(S->L, LUA_REGISTRYINDEX, S->hopes);
    lua_rawgeti(S->L, -1, (int)i + 1);
    bool hope = hope_asks(S->L);
    lua_pop(S->L, 1);
    if (hope) return true;
  }
  return false;
}

int vm_tasks_report_stuck(vm_state *S) {
  int stuck = 0;
  for (size_t i = 0; i < S->task_room; i++) {
    vm_task *task = S->tasks[i];
    if (task->co == NULL || !task->parked) continue;
    if (stuck++ == 0) fprintf(stderr, "omnihost: nothing is left that could wake these coroutines:\n");
    char where[LUA_IDSIZE + 16];
    vm_place(task->at, where, sizeof where);
    fprintf(stderr, "  %s: waits in %s\n", where, task->what);
  }
  return stuck;
}

/* ---- open and close ---- */

void vm_tasks_open(vm_state *S) {
  uv_idle_init(&S->loop, &S->more);
  S->more.data = S;
  lua_newtable(S->L);
  S->hopes = luaL_ref(S->L, LUA_REGISTRYINDEX);
}

void vm_tasks_close(vm_state *S) {
  uv_close((uv_handle_t *)&S->more, NULL);
  for (size_t i = 0; i < S->task_room; i++)
    if (S->tasks[i]->timer_made) uv_close((uv_handle_t *)&S->tasks[i]->timer, NULL);
}

void vm_tasks_free(vm_state *S) {
  for (size_t i = 0; i < S->task_room; i++) {
    free((void *)S->tasks[i]->raise);
    free(S->tasks[i]);
  }
  free(S->tasks);
}
