#include "core/sys.h"
#include "core/sys_hooks.h"

#include <signal.h>
#include <string.h>

#define THREAD_STACK ((size_t)8 << 20)

#ifndef OMNI_SYS_HOOKS
uint64_t omni_sys_now(void) {
  struct timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}
#endif

/* Signals are the signal thread's; synchronous ones must never be blocked, or a crash would kill silently. */
static void thread_mask(sigset_t *mask) {
  static const int never[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS};
  sigfillset(mask);
  for (size_t i = 0; i < sizeof never / sizeof *never; i++)
    sigdelset(mask, never[i]);
}

int omni_thread_start_sized(omni_thread *thread, const char *name, size_t stack, void *(*fn)(void *), void *arg) {
#ifdef OMNI_SYS_HOOKS
  int fault = omni_sys_enter(OMNI_SYS_THREAD, name);
  if (fault != 0) return fault;
#endif
  pthread_attr_t attr;
  int err = pthread_attr_init(&attr);
  if (err != 0) return err;
  pthread_attr_setstacksize(&attr, stack);
  sigset_t mask, old;
  thread_mask(&mask);
  pthread_sigmask(SIG_SETMASK, &mask, &old);
  err = pthread_create(thread, &attr, fn, arg);
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  pthread_attr_destroy(&attr);
  if (err == 0) {
    char shortened[16] = {0};
    strncpy(shortened, name, sizeof shortened - 1);
    pthread_setname_np(*thread, shortened);
  }
  return err;
}

int omni_thread_start(omni_thread *thread, const char *name, void *(*fn)(void *), void *arg) {
  return omni_thread_start_sized(thread, name, THREAD_STACK, fn, arg);
}

void omni_thread_join(omni_thread thread) { pthread_join(thread, NULL); }

void omni_mutex_init(omni_mutex *mutex) { pthread_mutex_init(mutex, NULL); }

void omni_mutex_destroy(omni_mutex *mutex) { pthread_mutex_destroy(mutex); }

void omni_cond_init(omni_cond *cond) {
  pthread_condattr_t attr;
  pthread_condattr_init(&attr);
  pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
  pthread_cond_init(cond, &attr);
  pthread_condattr_destroy(&attr);
}

void omni_cond_destroy(omni_cond *cond) { pthread_cond_destroy(cond); }

void omni_cond_wait(omni_cond *cond, omni_mutex *mutex) { pthread_cond_wait(cond, mutex); }

bool omni_cond_wait_until(omni_cond *cond, omni_mutex *mutex, uint64_t deadline) {
#ifdef OMNI_SYS_HOOKS
  /* The deadline is on the driven clock, the condition on the system's. */
  deadline -= deadline < omni_sys_ahead() ? deadline : omni_sys_ahead();
#endif
  struct timespec ts = {.tv_sec = (time_t)(deadline / 1000000000u), .tv_nsec = (long)(deadline % 1000000000u)};
  return pthread_cond_timedwait(cond, mutex, &ts) == 0;
}
