#include "watch_private.h"

#include <string.h>

#define POLL_NS 1000000u /* period for directories that cannot be watched */
#define NAP_NS 50000u    /* in a burst: pause in which events gather */
#define SHORT_NS 200000u /* a wait up to this long may be part of a burst */
#define BURST 3          /* waits in a row that make one */

void watch_wake(void) {
  if (!W.asleep || W.rung || W.bell < 0) return;
  W.rung = true;
  uint64_t one = 1;
  (void)!omni_sys_write(W.bell, &one, sizeof one);
}

/* After fn: the key leaves, or waits for what its name says now. */
static void settle(omni_watch_key *key, omni_watch_next next) {
  bool again = key->state & KEY_AGAIN, fenced = key->state & KEY_FENCED, leaving = key->state & KEY_LEAVING;
  key->state &= (unsigned char)~(KEY_RUNNING | KEY_AGAIN);
  if (leaving || (next == OMNI_WATCH_DONE && !again)) {
    watch_take_out(key);
    if (fenced) {
      omni_cond_broadcast(&W.settled);
    } else if (key->done != NULL) {
      omni_mutex_unlock(&W.service.lock);
      key->done(key);
      omni_mutex_lock(&W.service.lock);
    }
    return;
  }
  uint64_t hash = watch_hash(key->dir, key->name);
  if (hash != key->node.hash) {
    W.moved = true;
    omni_table_remove(&W.keys, &key->node);
    (void)omni_table_add(&W.keys, &key->node, hash); /* has slots: cannot fail */
  }
  if (next != OMNI_WATCH_RETRY) key->tries = 0;
  if (again || next == OMNI_WATCH_AGAIN)
    watch_due_now(key);
  else if (next == OMNI_WATCH_RETRY)
    watch_due_later(key);
}

static void run_key(omni_watch_key *key) {
  watch_due_clear(key);
  key->state |= KEY_RUNNING;
  key->gone = key->dir->gone;
  omni_mutex_unlock(&W.service.lock);
  omni_watch_next next = key->fn(key);
  omni_mutex_lock(&W.service.lock);
  settle(key, next);
}

/* Runs no more than were due when it began, so that events are read between two turns of a busy key. */
static void run_probes(void) {
  for (size_t turns = W.probes.len; turns > 0 && W.probes.head != NULL; turns--)
    run_key(W.probes.head);
}

static void collect_retries(void) {
  if (W.retries.head == NULL) return;
  uint64_t now = omni_sys_now();
  for (omni_watch_key *key = W.retries.head, *next; key != NULL; key = next) {
    next = key->due_next;
    if (key->retry_at > now) continue;
    W.stats.retries++;
    watch_due_now(key);
  }
}

/* All keys that wait (of one directory, if not NULL) are probed. */
static void probe_all(const watch_dir *of, bool polled) {
  for (omni_node *node = omni_table_each(&W.keys, NULL); node != NULL; node = omni_table_each(&W.keys, node)) {
    omni_watch_key *key = omni_container(node, omni_watch_key, node);
    if ((of == NULL || key->dir == of) && (!polled || watch_dir_polled(key->dir))) watch_due_now(key);
  }
}

/* Nanoseconds the thread may sleep; UINT64_MAX = until something happens. */
static uint64_t sleep_time(void) {
  if (W.probes.head != NULL) return 0;
  uint64_t at = UINT64_MAX, now = 0;
  for (const omni_watch_key *key = W.retries.head; key != NULL; key = key->due_next)
    if (key->retry_at < at) at = key->retry_at;
  if (at != UINT64_MAX) {
    now = omni_sys_now();
    at = at > now ? at - now : 0;
  }
  bool periodic = W.bell < 0 || (W.keys.count > 0 && watch_any_polled());
  return periodic && at > POLL_NS ? POLL_NS : at;
}

static void on_dir_event(watch_dir *dir, const struct inotify_event *event) {
  if (event->mask & (IN_IGNORED | IN_UNMOUNT)) {
    dir->wd = -1; /* the kernel's watch is gone with the directory */
    dir->mask = 0;
    dir->gone = true;
    probe_all(dir, false);
    return;
  }
  if (event->len == 0) return;
  omni_watch_what what = event->mask & IN_DELETE ? OMNI_WATCH_CONSUMED : OMNI_WATCH_PUBLISHED;
  for (omni_node *node = omni_table_first(&W.keys, watch_hash(dir, event->name)); node != NULL;
       node = omni_table_next(node)) {
    omni_watch_key *key = omni_container(node, omni_watch_key, node);
    if (key->dir == dir && key->what == what && strcmp(key->name, event->name) == 0) watch_due_now(key);
  }
}

static void on_event(const struct inotify_event *event) {
  W.stats.events++;
  if (event->mask & IN_Q_OVERFLOW) {
    /* Events were lost: probe what is waited for, not the directory. */
    W.stats.overflows++;
    probe_all(NULL, false);
    return;
  }
  for (watch_dir *dir = W.dirs; dir != NULL; dir = dir->next)
    if (dir->wd == event->wd) on_dir_event(dir, event);
}

static void read_events(void) {
  _Alignas(struct inotify_event) static char buf[32768]; /* the thread's alone */
  ssize_t n = omni_sys_read(W.inotify, buf, sizeof buf);
  for (ssize_t at = 0; at < n;) {
    const struct inotify_event *event = (const void *)(buf + at);
    at += (ssize_t)(sizeof *event + event->len);
    on_event(event);
  }
}

/* In a burst each event would wake us for one chunk, and its writer would pay for the wake (12 us across CPUs). So we
 * sleep a moment without listening, and find several. A chunk that comes alone is never kept waiting. */
static bool napping(void) {
  W.streak = W.moved ? W.streak + 1 : 0;
  W.moved = false;
  return W.streak > BURST && W.probes.head == NULL;
}

/* Sleeps without the lock until an event, the bell or the time. Returns what ppoll returned. */
static int sleep_until_something(uint64_t ns, bool listen) {
  struct timespec ts = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
  struct pollfd fds[2] = {{.fd = listen ? W.inotify : -1, .events = POLLIN}, {.fd = W.bell, .events = POLLIN}};
  uint64_t before = omni_sys_now();
  W.asleep = ns != 0;
  omni_mutex_unlock(&W.service.lock);
  int n = omni_sys_ppoll(fds, 2, ns == UINT64_MAX ? NULL : &ts);
  omni_mutex_lock(&W.service.lock);
  W.asleep = false;
  W.stats.wakes++;
  if (omni_sys_now() - before > SHORT_NS) W.streak = 0;
  return n;
}

static void wait_for_something(void) {
  bool nap = napping();
  uint64_t ns = sleep_time(), count;
  if (nap && ns > NAP_NS) ns = NAP_NS;
  int n = sleep_until_something(ns, !nap);
  if (W.rung) (void)!omni_sys_read(W.bell, &count, sizeof count);
  W.rung = false;
  if (W.inotify >= 0 && (nap || n > 0)) read_events();
  if (n == 0 && watch_any_polled()) probe_all(NULL, true);
}

static void close_fd(int *fd) {
  if (*fd >= 0) (void)omni_sys_close(*fd);
  *fd = -1;
}

void watch_run(void) {
  /* A key that was added just before the last user went still has its first probe, in which it leaves. */
  while (W.service.users > 0 || W.probes.len > 0) {
    wait_for_something();
    collect_retries();
    run_probes();
  }
  close_fd(&W.inotify);
  close_fd(&W.bell);
}

omni_err watch_open(void) {
  if (W.bell < 0) W.bell = omni_sys_eventfd();
  if (W.inotify < 0) W.inotify = omni_sys_inotify_init();
  W.complained = false;
  return OMNI_OK;
}
