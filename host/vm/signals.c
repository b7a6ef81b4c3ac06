#include "vm/signals.h"

#include "core/owner.h"
#include "core/sys.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

static const struct timespec GRACE = {1, 0}; /* what the second signal leaves for unwinding */

static char handler_key; /* registry key of the Lua handler */

static struct {
  omni_thread thread;
  bool running;
  int pipe[2];     /* the handler writes a byte a signal into it; 0 ends the thread */
  vm_state *state; /* read on its own loop's thread only */
  omni_inbox *inbox;
  omni_event event;
  atomic_int count, last;
  int delivered; /* signals the state was told of; its thread only */
} self;

/* Handlers, not a blocked mask and not SIG_IGN: programs that a script starts (io.popen too) inherit those two, but get
 * the default effect in place of a handler. */
static void on_sigpipe(int sig) { (void)sig; }

static void on_signal_sent(int sig) {
  int saved = errno;
  char byte = (char)sig;
  ssize_t n = write(self.pipe[1], &byte, 1);
  (void)n;
  errno = saved;
}

static void set_handler(int sig, void (*handler)(int)) {
  struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
  sigemptyset(&action.sa_mask);
  sigaction(sig, &action, NULL);
}

void vm_signals_prepare(void) {
  sigset_t none;
  sigemptyset(&none);
  pthread_sigmask(SIG_SETMASK, &none, NULL); /* a blocked SIGCHLD would hide every exit */
  set_handler(SIGPIPE, on_sigpipe);          /* a write to a dead worker's socket must not end the host */
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
  set_handler(sig, SIG_DFL);
  raise(sig);
}

/* Lua did not unwind (a loop in compiled code sees no hook): kill, sweep, leave. */
static void give_up(int sig) {
  omni_owner_emergency();
  _exit(128 + sig);
}

static void *signal_main(void *arg) {
  (void)arg;
  sigset_t none;
  sigemptyset(&none);
  pthread_sigmask(SIG_SETMASK, &none, NULL); /* so that the third one, raised here, has its effect */
  struct pollfd fd = {self.pipe[0], POLLIN, 0};
  for (;;) {
    int ready = omni_sys_ppoll(&fd, 1, atomic_load(&self.count) >= 2 ? &GRACE : NULL);
    if (ready == 0) give_up(atomic_load(&self.last));
    char sig;
    if (ready < 0 || omni_sys_read(self.pipe[0], &sig, 1) != 1) continue;
    if (sig == 0) return NULL;
    atomic_store(&self.last, sig);
    if (atomic_fetch_add(&self.count, 1) + 1 >= 3) default_effect(sig);
    omni_inbox_post(self.inbox, &self.event);
  }
}

bool vm_signals_start(vm_state *S) {
  if (pipe2(self.pipe, O_CLOEXEC) != 0) return false;
  self.state = S;
  self.inbox = omni_inbox_ref(vm_inbox(S));
  omni_event_init(&self.event, on_signal, on_dropped);
  self.running = omni_thread_start(&self.thread, "signals", signal_main, NULL) == 0;
  if (!self.running) {
    omni_sys_close(self.pipe[0]);
    omni_sys_close(self.pipe[1]);
    omni_inbox_unref(self.inbox);
    return false;
  }
  set_handler(SIGINT, on_signal_sent);
  set_handler(SIGTERM, on_signal_sent);
  return true;
}

void vm_signals_handler(lua_State *L) {
  lua_pushlightuserdata(L, &handler_key);
  lua_insert(L, -2);
  lua_rawset(L, LUA_REGISTRYINDEX);
}

void vm_signals_stop(void) {
  if (!self.running) return;
  self.running = false;
  set_handler(SIGINT, SIG_DFL);
  set_handler(SIGTERM, SIG_DFL);
  char end = 0;
  if (omni_sys_write(self.pipe[1], &end, 1) == 1) omni_thread_join(self.thread);
  omni_sys_close(self.pipe[0]);
  omni_sys_close(self.pipe[1]);
  omni_inbox_unref(self.inbox);
}
