#include "vm/signals.h"

#include "core/owner.h"
#include "core/sys.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/signalfd.h>

static const struct timespec GRACE = {1, 0}; /* what the second signal leaves for unwinding */

static char handler_key; /* registry key of the Lua handler */

static struct {
  omni_thread thread;
  bool running;
  int signals, stop; /* signalfd; eventfd that ends the thread */
  vm_state *state;   /* read on its own loop's thread only */
  omni_inbox *inbox;
  omni_event event;
  atomic_int count, last;
  int delivered; /* signals the state was told of; its thread only */
} self;

static void watched(sigset_t *set) {
  sigemptyset(set);
  sigaddset(set, SIGINT);
  sigaddset(set, SIGTERM);
}

void vm_signals_prepare(void) {
  sigset_t set;
  watched(&set);
  pthread_sigmask(SIG_SETMASK, &set, NULL);
  signal(SIGPIPE, SIG_IGN); /* a write to a dead worker's socket must not end the host */
}

void vm_signals_default(void) {
  sigset_t set;
  sigemptyset(&set);
  pthread_sigmask(SIG_SETMASK, &set, NULL);
}

static void call_handler(vm_state *S, int sig, int count) {
  lua_State *L = vm_main(S);
  lua_pushlightuserdata(L, &handler_key);
  lua_rawget(L, LUA_REGISTRYINDEX);
  if (lua_isnil(L, -1)) {
    lua_pop(L, 1);
    vm_exit(S, 128 + sig);
    return;
  }
  lua_pushstring(L, sig == SIGINT ? "SIGINT" : "SIGTERM");
  lua_pushinteger(L, count);
  vm_callback(S, 2, "signal handler");
}

/* On the state's loop: one call a signal, also where two came at once. */
static void on_signal(omni_event *event) {
  (void)event;
  while (self.delivered < atomic_load(&self.count))
    call_handler(self.state, atomic_load(&self.last), ++self.delivered);
}

static void on_dropped(omni_event *event) { (void)event; }

static void default_effect(int sig) {
  signal(sig, SIG_DFL);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, sig);
  pthread_sigmask(SIG_UNBLOCK, &set, NULL);
  raise(sig);
}

/* Lua did not unwind (a loop in compiled code sees no hook): kill, sweep, leave. */
static void give_up(int sig) {
  omni_owner_emergency();
  _exit(128 + sig);
}

static void *signal_main(void *arg) {
  (void)arg;
  struct pollfd fds[2] = {{self.signals, POLLIN, 0}, {self.stop, POLLIN, 0}};
  for (;;) {
    int count = atomic_load(&self.count);
    int ready = omni_sys_ppoll(fds, 2, count >= 2 ? &GRACE : NULL);
    if (fds[1].revents != 0) return NULL;
    if (ready == 0) give_up(atomic_load(&self.last));
    struct signalfd_siginfo info;
    if (ready < 0 || omni_sys_read(self.signals, &info, sizeof info) != (ssize_t)sizeof info) continue;
    atomic_store(&self.last, (int)info.ssi_signo);
    if (atomic_fetch_add(&self.count, 1) + 1 >= 3) default_effect((int)info.ssi_signo);
    omni_inbox_post(self.inbox, &self.event);
  }
}

bool vm_signals_start(vm_state *S) {
  sigset_t set;
  watched(&set);
  self.signals = signalfd(-1, &set, SFD_CLOEXEC);
  self.stop = omni_sys_eventfd();
  self.state = S;
  self.inbox = omni_inbox_ref(vm_inbox(S));
  omni_event_init(&self.event, on_signal, on_dropped);
  self.running =
      self.signals >= 0 && self.stop >= 0 && omni_thread_start(&self.thread, "signals", signal_main, NULL) == 0;
  return self.running;
}

void vm_signals_handler(lua_State *L) {
  lua_pushlightuserdata(L, &handler_key);
  lua_insert(L, -2);
  lua_rawset(L, LUA_REGISTRYINDEX);
}

void vm_signals_stop(void) {
  if (!self.running) return;
  uint64_t one = 1;
  if (omni_sys_write(self.stop, &one, sizeof one) == (ssize_t)sizeof one) omni_thread_join(self.thread);
  omni_sys_close(self.signals);
  omni_sys_close(self.stop);
  omni_inbox_unref(self.inbox);
  self.running = false;
}
