/*
 * What bounds a guest: the allocator's cap, the count hook, charged work, and an alarm at the deadline.
 *
 * The alarm is a signal to the guest's own thread. Its handler moves the count hook to the next instruction; so the
 * deadline is seen after the one instruction, or the one step in C, that is running. The hook's mask never changes
 * while a guest is armed, so that a handler in the middle of lua_sethook, or of the VM's own handling of hooks, writes
 * what is there already. A hook that was set back by such a meeting is found again by the next look, 100 instructions
 * later.
 */
#include "vm/guest_private.h"

#include <luajit.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>

#define ALARM_SIGNAL SIGURG              /* ignored where nobody asks for it */
#define ALARM_AGAIN ((long)5000000)      /* ns between alarms, once the deadline has passed */
#define LOOK_CLOCK 16                    /* the hook reads the clock once in so many looks */
#define CHARGE_LOOK 10000                /* units charged between two looks */
#define ALLOC_NOTICE ((size_t)256 << 10) /* blocks from here on make the hook look at once */
#define MEMORY_SLACK ((size_t)64 << 10)  /* granted beyond the cap, so that the next instruction can raise in place */
#define REPORT_SLACK ((size_t)512 << 10) /* the same for the report of an error */

static _Thread_local vm_guest *self;

vm_guest *vm_guest_self(void) { return self; }

void *vm_guest_arg(void) { return self->arg; }

void guest_set_self(vm_guest *g) { self = g; }

static void on_count(lua_State *L, lua_Debug *ar);

/* Makes the hook run at the guest's next instruction. */
static void hook_now(vm_guest *g) { lua_sethook(g->L, on_count, LUA_MASKCOUNT, 1); }

static void trip(vm_guest *g, omni_err code, const char *text) {
  if (g->trip != OMNI_OK) return;
  g->trip = code;
  snprintf(g->trip_text, sizeof g->trip_text, "%s: %s", omni_err_name(code), text);
}

const char *guest_trip_message(vm_guest *g) { return g->trip_text; }

/* ---- memory ---- */

/* Whether the state may grow. Above its cap by a little: the limit is tripped, but the instruction can end. */
static bool may_grow(vm_guest *g, size_t more, size_t block) {
  if (block > GUEST_BLOCK_MAX) {
    trip(g, OMNI_EMEMORY, "one value needs more than 32 MiB");
    return false;
  }
  if (g->used + more <= g->limits.memory) return true;
  if (g->armed && !g->reporting) {
    char text[80];
    snprintf(text, sizeof text, "the program needs more than %zu bytes", g->limits.memory);
    trip(g, OMNI_EMEMORY, text);
  }
  size_t slack = g->reporting ? REPORT_SLACK : g->armed ? MEMORY_SLACK : 0;
  return g->used + more <= g->limits.memory + slack;
}

void *guest_alloc(void *ud, void *ptr, size_t osize, size_t nsize) {
  vm_guest *g = ud;
  size_t old = ptr != NULL ? osize : 0;
  if (nsize == 0) {
    g->used -= old;
    if (ptr != NULL) guest_heap_free(&g->heap, ptr, old);
    return NULL;
  }
  if (nsize > old) {
    if (!may_grow(g, nsize - old, nsize)) {
      if (g->armed) hook_now(g);
      return NULL;
    }
    g->fresh += nsize - old;
    if (g->armed && (nsize >= ALLOC_NOTICE || g->trip != OMNI_OK)) hook_now(g);
  }
  void *block = guest_heap_resize(&g->heap, ptr, old, nsize);
  if (block == NULL) return NULL;
  g->used += nsize - old;
  if (g->used > g->outcome.memory_peak) g->outcome.memory_peak = g->used;
  return block;
}

/* There is no emergency collection: it has to come before the cap is met. Stops for an alarm. */
static void collect(vm_guest *g, lua_State *L) {
  size_t half = g->limits.memory / 2;
  if (g->used <= half || g->fresh < g->limits.memory / 8) return;
  g->fresh = 0;
  for (int cycle = 0; cycle < 2 && g->used > half;
       cycle++) /* the one that runs does not see what died since it began */
    while (!atomic_load_explicit(&g->alarm, memory_order_relaxed) && lua_gc(L, LUA_GCSTEP, 16) == 0)
      ;
}

/* ---- limits ---- */

/* Looks at all limits; trips one that is reached. */
static void look(vm_guest *g, bool clock) {
  if (g->trip != OMNI_OK) return;
  bool alarm = atomic_exchange_explicit(&g->alarm, false, memory_order_relaxed);
  if (atomic_load_explicit(&g->cancelled, memory_order_relaxed)) {
    trip(g, OMNI_ECANCELED, "the run was cancelled");
  } else if (g->instructions > g->limits.instructions) {
    trip(g, OMNI_EINSTRUCTIONS, "the budget of instructions is used up");
  } else if ((clock || alarm) && g->limits.deadline != 0 && omni_sys_now() >= g->limits.deadline) {
    char text[80];
    snprintf(text, sizeof text, "the program ran longer than %.3g seconds", g->limits.seconds);
    trip(g, OMNI_EDEADLINE, text);
  }
}

/* Notes where the limit is raised first: the innermost frame of the guest's own code. */
static void note_place(vm_guest *g, lua_State *L) {
  lua_Debug ar;
  if (g->trip_place[0] != '\0') return;
  for (int level = 0; lua_getstack(L, level, &ar); level++) {
    lua_getinfo(L, "Sl", &ar);
    if (ar.currentline <= 0 || strncmp(ar.source, "@builtin/", 9) == 0) continue;
    snprintf(g->trip_place, sizeof g->trip_place, "%s:%d: ", ar.short_src, ar.currentline);
    return;
  }
}

/* Raises the tripped limit; every later instruction raises it again. */
static int raise_trip(vm_guest *g, lua_State *L) {
  note_place(g, L);
  if (g->armed) hook_now(g);
  lua_pushfstring(L, "%s%s", g->trip_place, g->trip_text);
  return lua_error(L);
}

static void on_count(lua_State *L, lua_Debug *ar) {
  vm_guest *g = self;
  if (g->trip != OMNI_OK) raise_trip(g, L);
  bool in_turn = lua_gethookcount(L) == GUEST_HOOK;
  if (in_turn) {
    g->instructions += GUEST_HOOK;
  } else {
    lua_sethook(L, on_count, LUA_MASKCOUNT, GUEST_HOOK);
    lua_getinfo(L, "l", ar);
    if (ar->currentline > 0) g->last_line = ar->currentline;
  }
  look(g, ++g->looks % LOOK_CLOCK == 0);
  if (g->trip != OMNI_OK) raise_trip(g, L);
  collect(g, L);
}

int vm_guest_trip(lua_State *L, omni_err code, const char *text) {
  vm_guest *g = self;
  trip(g, code, text);
  return raise_trip(g, L);
}

void vm_guest_charge(lua_State *L, size_t units) {
  vm_guest *g = self;
  g->unchecked += units;
  if (g->unchecked < CHARGE_LOOK) return;
  g->instructions += g->unchecked;
  g->unchecked = 0;
  if (!g->armed) return;
  look(g, true);
  if (g->trip != OMNI_OK) raise_trip(g, L);
}

bool vm_guest_expired(void) {
  vm_guest *g = self;
  if (!g->armed) return false;
  look(g, true);
  if (g->trip != OMNI_OK) hook_now(g);
  return g->trip != OMNI_OK;
}

void vm_guest_check_stack(lua_State *L) {
  char *here = __builtin_frame_address(0);
  if (here < self->stack_end) luaL_error(L, "C stack overflow");
}

int vm_guest_line(lua_State *L) {
  lua_Debug ar;
  for (int level = 1; lua_getstack(L, level, &ar); level++) {
    lua_getinfo(L, "Sl", &ar);
    if (ar.currentline > 0 && strncmp(ar.source, "@builtin/", 9) != 0) return ar.currentline;
  }
  return 0;
}

/* ---- the alarm ---- */

static void on_signal(int number) {
  (void)number;
  vm_guest *g = self;
  if (g == NULL || !g->armed) return;
  atomic_store_explicit(&g->alarm, true, memory_order_relaxed);
  hook_now(g);
}

void guest_alarm_install(void) {
  struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
  sigemptyset(&action.sa_mask);
  sigaction(ALARM_SIGNAL, &action, NULL);
}

static void mask_alarm(int how) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, ALARM_SIGNAL);
  pthread_sigmask(how, &set, NULL);
}

/* Without a timer the hook still sees the deadline, only later. */
static void start_timer(vm_guest *g) {
  if (g->limits.deadline == 0) return;
  struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = ALARM_SIGNAL};
  event._sigev_un._tid = (pid_t)syscall(SYS_gettid);
  g->timed = timer_create(CLOCK_MONOTONIC, &event, &g->timer) == 0;
  if (!g->timed) return;
  uint64_t now = omni_sys_now(), left = g->limits.deadline > now ? g->limits.deadline - now : 1;
  struct itimerspec when = {.it_interval = {0, ALARM_AGAIN},
                            .it_value = {(time_t)(left / 1000000000u), (long)(left % 1000000000u)}};
  timer_settime(g->timer, 0, &when, NULL);
}

void guest_arm(vm_guest *g, lua_State *L) {
  lua_sethook(L, on_count, LUA_MASKCOUNT, GUEST_HOOK);
  g->armed = true;
  mask_alarm(SIG_UNBLOCK);
  start_timer(g);
  omni_mutex_lock(&g->mutex);
  g->alive = true;
  bool cancelled = atomic_load(&g->cancelled);
  omni_mutex_unlock(&g->mutex);
  if (cancelled) hook_now(g);
}

void guest_disarm(vm_guest *g, lua_State *L) {
  omni_mutex_lock(&g->mutex);
  g->alive = false;
  omni_mutex_unlock(&g->mutex);
  if (g->timed) timer_delete(g->timer);
  g->timed = false;
  mask_alarm(SIG_BLOCK);
  g->armed = false;
  lua_sethook(L, NULL, 0, 0);
  g->instructions += g->unchecked;
  g->unchecked = 0;
}

void vm_guest_cancel(vm_guest *g) {
  atomic_store(&g->cancelled, true);
  omni_mutex_lock(&g->mutex);
  if (g->alive) pthread_kill(g->thread, ALARM_SIGNAL);
  omni_mutex_unlock(&g->mutex);
}
