#include "core/watch.h"

#include "core/log.h"
#include "core/service.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define POLL_NS 1000000u /* period for directories that cannot be watched */

/* Bits of omni_watch_key.state. */
enum {
  KEY_IN = 1,       /* in the table */
  KEY_PROBE = 2,    /* in the list of keys to run now */
  KEY_RETRY = 4,    /* in the list of keys to run at retry_at */
  KEY_RUNNING = 8,  /* fn runs */
  KEY_AGAIN = 16,   /* added or kicked while fn ran: run it once more */
  KEY_LEAVING = 32, /* dropped or removed while fn ran: takes effect when it returns */
  KEY_FENCED = 64   /* ... by a remove, which waits: done does not run */
};

/* A directory in which keys wait. */
typedef struct omni_watch_dir {
  struct omni_watch_dir *next;
  int wd;            /* -1: not watched. Two paths of one directory share it */
  uint32_t mask;     /* events asked for */
  bool gone;         /* removed: there is nothing to wait for */
  unsigned waits[2]; /* keys per omni_watch_what; freed when both are 0 */
  char path[];
} watch_dir;

/* Keys that are due, oldest first. */
typedef struct due_list {
  omni_watch_key *head, *tail;
  size_t len;
} due_list;

static omni_err watch_open(void);
static void watch_run(void);
static void watch_wake(void);

/* service.lock guards everything. It is a leaf for callers: no callback and no other lock of ours runs under it. */
static struct {
  omni_service service;
  omni_cond settled; /* a callback returned while a remove waited for it */
  int inotify, bell; /* -1: could not be had */
  bool asleep, rung; /* the thread is in ppoll, or about to be; its bell was rung since */
  watch_dir *dirs;   /* few: one per receiving replica that we read from or wait for */
  omni_table keys;   /* by directory and name */
  due_list probes, retries;
  bool complained; /* about watches that could not be had: said once */
  omni_watch_stats stats;
} W = {.service = OMNI_SERVICE_INIT("omni-recv", watch_open, watch_run, watch_wake),
       .settled = PTHREAD_COND_INITIALIZER,
       .inotify = -1,
       .bell = -1};

/* ---- due lists ---- */

static void due_push(due_list *list, omni_watch_key *key) {
  key->due_next = NULL;
  key->due_prev = list->tail;
  if (list->tail != NULL)
    list->tail->due_next = key;
  else
    list->head = key;
  list->tail = key;
  list->len++;
}

static void due_unlink(due_list *list, omni_watch_key *key) {
  if (key->due_prev != NULL)
    key->due_prev->due_next = key->due_next;
  else
    list->head = key->due_next;
  if (key->due_next != NULL)
    key->due_next->due_prev = key->due_prev;
  else
    list->tail = key->due_prev;
  list->len--;
}

static void due_clear(omni_watch_key *key) {
  if (key->state & KEY_PROBE) due_unlink(&W.probes, key);
  if (key->state & KEY_RETRY) due_unlink(&W.retries, key);
  key->state &= (unsigned char)~(KEY_PROBE | KEY_RETRY);
}

/* A key that is running comes back by KEY_AGAIN; it can be in no list. */
static void due_now(omni_watch_key *key) {
  if (key->state & KEY_RUNNING) {
    key->state |= KEY_AGAIN;
    return;
  }
  if (key->state & KEY_PROBE) return;
  due_clear(key);
  due_push(&W.probes, key);
  key->state |= KEY_PROBE;
}

static void due_later(omni_watch_key *key) {
  static const uint32_t after[] = {50000, 200000, 1000000, 5000000};
  key->retry_at = omni_sys_now() + after[key->tries];
  if (key->tries + 1u < sizeof after / sizeof *after) key->tries++;
  due_push(&W.retries, key);
  key->state |= KEY_RETRY;
}

/* ---- directories ---- */

static uint64_t key_hash(const watch_dir *dir, const char *name) {
  return omni_hash(name, strlen(name)) ^ (uint64_t)(uintptr_t)dir * UINT64_C(0x9e3779b97f4a7c15);
}

static uint32_t wanted(const watch_dir *dir) {
  return (dir->waits[OMNI_WATCH_PUBLISHED] > 0 ? IN_CLOSE_WRITE : 0u) |
         (dir->waits[OMNI_WATCH_CONSUMED] > 0 ? IN_DELETE : 0u);
}

/* What other paths of the same directory want: the kernel keeps one mask for all of them. */
static uint32_t wanted_beside(const watch_dir *dir) {
  uint32_t mask = 0;
  for (const watch_dir *d = W.dirs; dir->wd >= 0 && d != NULL; d = d->next)
    if (d != dir && d->wd == dir->wd) mask |= wanted(d);
  return mask;
}

static void complain(const char *path, int errnum) {
  if (W.complained) return;
  W.complained = true;
  omni_log(OMNI_LOG_WARN, "no inotify watch can be had for %s (errno %d): polling at 1 ms", path, errnum);
}

static void unwatch(watch_dir *dir) {
  if (dir->wd < 0) return;
  if (wanted_beside(dir) == 0) (void)omni_sys_inotify_rm(W.inotify, dir->wd);
  dir->wd = -1;
  dir->mask = 0;
}

/* Brings the watch in line with what is waited for. IN_MASK_ADD where we cannot know yet whether another path of the
 * same directory is watched. */
static void rewatch(watch_dir *dir) {
  uint32_t mask = wanted(dir);
  if (mask == 0) {
    unwatch(dir);
    return;
  }
  if (dir->wd >= 0 && mask == dir->mask) return;
  uint32_t flags = IN_ONLYDIR | (dir->wd < 0 ? (uint32_t)IN_MASK_ADD : wanted_beside(dir));
  int wd = W.inotify >= 0 ? omni_sys_inotify_add(W.inotify, dir->path, mask | flags) : (errno = EMFILE, -1);
  int errnum = errno;
  if (wd != dir->wd) unwatch(dir); /* the path names another directory by now */
  dir->wd = wd;
  dir->mask = wd >= 0 ? mask : 0;
  dir->gone = wd < 0 && (errnum == ENOENT || errnum == ENOTDIR);
  if (wd < 0 && !dir->gone) complain(dir->path, errnum);
}

static watch_dir *dir_get(const char *path) {
  for (watch_dir *dir = W.dirs; dir != NULL; dir = dir->next)
    if (strcmp(dir->path, path) == 0) return dir;
  size_t len = strlen(path) + 1;
  watch_dir *dir = calloc(1, sizeof *dir + len);
  if (dir == NULL) return NULL;
  memcpy(dir->path, path, len);
  dir->wd = -1;
  dir->next = W.dirs;
  W.dirs = dir;
  return dir;
}

static void dir_leave(watch_dir *dir, omni_watch_what what) {
  if (--dir->waits[what] > 0) return;
  rewatch(dir);
  if (dir->waits[OMNI_WATCH_PUBLISHED] + dir->waits[OMNI_WATCH_CONSUMED] > 0) return;
  watch_dir **at = &W.dirs;
  while (*at != dir)
    at = &(*at)->next;
  *at = dir->next;
  free(dir);
}

/* ---- keys in and out ---- */

static void take_out(omni_watch_key *key) {
  due_clear(key);
  omni_table_remove(&W.keys, &key->node);
  W.stats.keys--;
  dir_leave(key->dir, key->what);
  key->dir = NULL;
  key->state = 0;
}

static void wake_thread(void) {
  if (!W.asleep || W.rung || W.bell < 0) return;
  W.rung = true;
  uint64_t one = 1;
  (void)!omni_sys_write(W.bell, &one, sizeof one);
}

static omni_err put_in(const char *path, omni_watch_key *key) {
  watch_dir *dir = dir_get(path);
  if (dir == NULL) return OMNI_ENOMEM;
  dir->waits[key->what]++;
  if (!omni_table_add(&W.keys, &key->node, key_hash(dir, key->name))) {
    dir_leave(dir, key->what);
    return OMNI_ENOMEM;
  }
  key->dir = dir;
  key->state = KEY_IN;
  key->tries = 0;
  key->gone = false;
  W.stats.keys++;
  rewatch(dir); /* the watch first, then the probe */
  due_now(key);
  return OMNI_OK;
}

omni_err omni_watch_add(const char *path, omni_watch_key *key) {
  omni_mutex_lock(&W.service.lock);
  omni_err err;
  if (key->state & KEY_IN) {
    key->state &= (unsigned char)~KEY_LEAVING;
    due_now(key);
    err = OMNI_EEXIST;
  } else if (W.service.users == 0) {
    err = OMNI_ECLOSED;
  } else {
    err = put_in(path, key);
  }
  wake_thread();
  omni_mutex_unlock(&W.service.lock);
  return err;
}

void omni_watch_kick(omni_watch_key *key) {
  omni_mutex_lock(&W.service.lock);
  if (key->state & KEY_IN) {
    due_now(key);
    wake_thread();
  }
  omni_mutex_unlock(&W.service.lock);
}

void omni_watch_remove(omni_watch_key *key) {
  omni_mutex_lock(&W.service.lock);
  if (key->state & KEY_RUNNING) {
    key->state |= KEY_LEAVING | KEY_FENCED;
    while (key->state & KEY_RUNNING)
      omni_cond_wait(&W.settled, &W.service.lock);
  } else if (key->state & KEY_IN) {
    take_out(key);
  }
  omni_mutex_unlock(&W.service.lock);
}

void omni_watch_drop(omni_watch_key *key) {
  omni_mutex_lock(&W.service.lock);
  bool out = false;
  if (key->state & KEY_RUNNING) {
    key->state |= KEY_LEAVING;
  } else if (key->state & KEY_IN) {
    take_out(key);
    out = true;
  }
  omni_mutex_unlock(&W.service.lock);
  if (out && key->done != NULL) key->done(key);
}

/* ---- the thread ---- */

/* After fn: the key leaves, or waits for what its name says now. */
static void settle(omni_watch_key *key, omni_watch_next next) {
  bool again = key->state & KEY_AGAIN, fenced = key->state & KEY_FENCED, leaving = key->state & KEY_LEAVING;
  key->state &= (unsigned char)~(KEY_RUNNING | KEY_AGAIN);
  if (leaving || (next == OMNI_WATCH_DONE && !again)) {
    take_out(key);
    if (fenced) {
      omni_cond_broadcast(&W.settled);
    } else if (key->done != NULL) {
      omni_mutex_unlock(&W.service.lock);
      key->done(key);
      omni_mutex_lock(&W.service.lock);
    }
    return;
  }
  uint64_t hash = key_hash(key->dir, key->name);
  if (hash != key->node.hash) {
    omni_table_remove(&W.keys, &key->node);
    (void)omni_table_add(&W.keys, &key->node, hash); /* has slots: cannot fail */
  }
  if (next != OMNI_WATCH_RETRY) key->tries = 0;
  if (again || next == OMNI_WATCH_AGAIN)
    due_now(key);
  else if (next == OMNI_WATCH_RETRY)
    due_later(key);
}

static void run_key(omni_watch_key *key) {
  due_clear(key);
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
    due_now(key);
  }
}

static bool dir_polled(const watch_dir *dir) { return dir->wd < 0 && !dir->gone; }

static bool any_polled(void) {
  for (const watch_dir *dir = W.dirs; dir != NULL; dir = dir->next)
    if (dir_polled(dir)) return true;
  return false;
}

/* All keys that wait (of one directory, if not NULL) are probed. */
static void probe_all(const watch_dir *of, bool polled) {
  for (omni_node *node = omni_table_each(&W.keys, NULL); node != NULL; node = omni_table_each(&W.keys, node)) {
    omni_watch_key *key = omni_container(node, omni_watch_key, node);
    if ((of == NULL || key->dir == of) && (!polled || dir_polled(key->dir))) due_now(key);
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
  bool periodic = W.bell < 0 || (W.keys.count > 0 && any_polled());
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
  for (omni_node *node = omni_table_first(&W.keys, key_hash(dir, event->name)); node != NULL;
       node = omni_table_next(node)) {
    omni_watch_key *key = omni_container(node, omni_watch_key, node);
    if (key->dir == dir && key->what == what && strcmp(key->name, event->name) == 0) due_now(key);
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

/* Sleeps without the lock until an event, the bell or the time. */
static void wait_for_something(void) {
  uint64_t ns = sleep_time();
  struct timespec ts = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
  struct pollfd fds[2] = {{.fd = W.inotify, .events = POLLIN}, {.fd = W.bell, .events = POLLIN}};
  W.asleep = ns != 0;
  omni_mutex_unlock(&W.service.lock);
  int n = omni_sys_ppoll(fds, 2, ns == UINT64_MAX ? NULL : &ts);
  omni_mutex_lock(&W.service.lock);
  W.asleep = false;
  W.stats.wakes++;
  uint64_t count;
  if (W.rung) (void)!omni_sys_read(W.bell, &count, sizeof count);
  W.rung = false;
  if (n > 0 && (fds[0].revents & POLLIN)) read_events();
  if (n == 0 && any_polled()) probe_all(NULL, true);
}

static void close_fd(int *fd) {
  if (*fd >= 0) (void)omni_sys_close(*fd);
  *fd = -1;
}

static void watch_run(void) {
  /* A key that was added just before the last user went still has its first probe, in which it leaves. */
  while (W.service.users > 0 || W.probes.len > 0) {
    wait_for_something();
    collect_retries();
    run_probes();
  }
  close_fd(&W.inotify);
  close_fd(&W.bell);
}

static omni_err watch_open(void) {
  if (W.bell < 0) W.bell = omni_sys_eventfd();
  if (W.inotify < 0) W.inotify = omni_sys_inotify_init();
  W.complained = false;
  return OMNI_OK;
}

static void watch_wake(void) { wake_thread(); }

omni_err omni_watch_start(void) { return omni_service_use(&W.service); }

void omni_watch_release(void) { omni_service_release(&W.service); }

void omni_watch_join(void) { omni_service_join(&W.service); }

void omni_watch_stop(void) {
  omni_watch_release();
  omni_watch_join();
}

void omni_watch_read_stats(omni_watch_stats *stats) {
  omni_mutex_lock(&W.service.lock);
  *stats = W.stats;
  stats->watches = 0;
  stats->polling = any_polled();
  for (const watch_dir *dir = W.dirs; dir != NULL; dir = dir->next)
    if (dir->wd >= 0) stats->watches++;
  omni_mutex_unlock(&W.service.lock);
}
