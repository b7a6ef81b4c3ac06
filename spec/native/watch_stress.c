/* The watch under the sanitizers: events find their keys, a remove is a fence, drops and kicks race with callbacks,
 * overflow, directories that go, no watch to be had, and silence while nothing happens. */
#include "core/sys_hooks.h"
#include "core/watch.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define KEYS 64
#define SECOND UINT64_C(1000000000)

#define CHECK(what)                                                                                                    \
  do {                                                                                                                 \
    if (!(what)) {                                                                                                     \
      fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #what);                                               \
      exit(1);                                                                                                         \
    }                                                                                                                  \
  } while (0)

static char dir[64];

/* A key that looks whether its file is there. */
typedef struct probe {
  omni_watch_key key;
  atomic_uint calls, done;
  atomic_bool seen, gone, open; /* open: fn may run */
  omni_watch_next answer;
} probe;

static omni_watch_next look(omni_watch_key *key) {
  probe *p = omni_container(key, probe, key);
  CHECK(atomic_load(&p->open));
  atomic_fetch_add(&p->calls, 1);
  char path[128];
  snprintf(path, sizeof path, "%s/%s", dir, key->name);
  bool there = access(path, F_OK) == 0;
  if (there == (key->what == OMNI_WATCH_PUBLISHED)) atomic_store(&p->seen, true);
  if (key->gone) atomic_store(&p->gone, true);
  return p->answer;
}

static void on_done(omni_watch_key *key) { atomic_fetch_add(&omni_container(key, probe, key)->done, 1); }

static void prepare(probe *p, unsigned n, omni_watch_what what) {
  memset(p, 0, sizeof *p);
  snprintf(p->key.name, sizeof p->key.name, "k%u.lock", n);
  p->key.what = what;
  p->key.fn = look;
  p->key.done = on_done;
  p->answer = OMNI_WATCH_STAY;
  atomic_store(&p->open, true);
}

static void publish(unsigned n) {
  char path[128];
  snprintf(path, sizeof path, "%s/k%u.lock", dir, n);
  int fd = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  CHECK(fd >= 0);
  close(fd);
}

static void consume(unsigned n) {
  char path[128];
  snprintf(path, sizeof path, "%s/k%u.lock", dir, n);
  CHECK(unlink(path) == 0);
}

static void wait_for(atomic_bool *flag) {
  uint64_t deadline = omni_sys_now() + 10 * SECOND;
  while (!atomic_load(flag)) {
    CHECK(omni_sys_now() < deadline);
    sched_yield();
  }
}

static void wait_calls(probe *p, unsigned n) {
  uint64_t deadline = omni_sys_now() + 10 * SECOND;
  while (atomic_load(&p->calls) < n) {
    CHECK(omni_sys_now() < deadline);
    sched_yield();
  }
}

static void make_dir(void) {
  snprintf(dir, sizeof dir, "/tmp/omni-watch-XXXXXX");
  CHECK(mkdtemp(dir) != NULL);
}

static probe probes[KEYS];

/* Each event reaches its key, of what it waits for and of nothing else; the mask follows. */
static void events_find_keys(void) {
  CHECK(omni_watch_start() == OMNI_OK);
  for (unsigned i = 0; i < KEYS; i++) {
    prepare(&probes[i], i, OMNI_WATCH_PUBLISHED);
    CHECK(omni_watch_add(dir, &probes[i].key) == OMNI_OK);
  }
  for (unsigned i = 0; i < KEYS; i++)
    publish(i);
  for (unsigned i = 0; i < KEYS; i++) {
    wait_for(&probes[i].seen);
    CHECK(atomic_load(&probes[i].calls) <= 2);
    omni_watch_remove(&probes[i].key);
    atomic_store(&probes[i].open, false);
  }
  for (unsigned i = 0; i < KEYS; i++) {
    prepare(&probes[i], i, OMNI_WATCH_CONSUMED);
    CHECK(omni_watch_add(dir, &probes[i].key) == OMNI_OK);
    consume(i);
    wait_for(&probes[i].seen);
    omni_watch_drop(&probes[i].key);
  }
  for (unsigned i = 0; i < KEYS; i++)
    CHECK(atomic_load(&probes[i].done) == 1 || atomic_load(&probes[i].calls) > 0);
  omni_watch_stats stats;
  omni_watch_stop();
  omni_watch_read_stats(&stats);
  CHECK(stats.keys == 0 && stats.watches == 0 && !stats.polling);
}

/* A key that moves on to the next name from within fn loses nothing. */
static omni_watch_next follow(omni_watch_key *key) {
  probe *p = omni_container(key, probe, key);
  char path[128];
  for (;;) {
    snprintf(path, sizeof path, "%s/%s", dir, key->name);
    if (unlink(path) != 0) return OMNI_WATCH_STAY;
    snprintf(key->name, sizeof key->name, "k%u.lock", atomic_fetch_add(&p->calls, 1) + 1);
  }
}

static void names_change(void) {
  CHECK(omni_watch_start() == OMNI_OK);
  prepare(&probes[0], 0, OMNI_WATCH_PUBLISHED);
  probes[0].key.fn = follow;
  CHECK(omni_watch_add(dir, &probes[0].key) == OMNI_OK);
  for (unsigned i = 0; i < 5000; i++)
    publish(i);
  wait_calls(&probes[0], 5000);
  omni_watch_remove(&probes[0].key);
  omni_watch_stop();
}

/* remove waits for a callback that is held; afterwards it may be freed. drop does not wait. */
static omni_watch_next held(omni_watch_key *key) {
  omni_sys_point("watch_stress.held");
  return look(key);
}

static void *remove_it(void *arg) {
  probe *p = arg;
  omni_watch_remove(&p->key);
  atomic_store(&p->open, false); /* from here on a callback would be too late */
  return NULL;
}

static void remove_is_a_fence(void) {
  CHECK(omni_watch_start() == OMNI_OK);
  probe *p = malloc(sizeof *p);
  prepare(p, 1, OMNI_WATCH_PUBLISHED);
  p->key.fn = held;
  omni_sys_rule_opts opts = {.op = OMNI_SYS_POINT, .match = "watch_stress.held", .times = 1, .action = OMNI_SYS_HOLD};
  omni_sys_rule *rule = omni_sys_rule_add(&opts);
  CHECK(omni_watch_add(dir, &p->key) == OMNI_OK);
  CHECK(omni_sys_rule_wait(rule, 10 * SECOND));
  omni_thread remover;
  CHECK(omni_thread_start(&remover, "remover", remove_it, p) == 0);
  omni_watch_kick(&p->key); /* would run it once more */
  for (uint64_t until = omni_sys_now() + SECOND / 20; omni_sys_now() < until; sched_yield())
    CHECK(atomic_load(&p->open)); /* remove has not returned: fn is held */
  omni_sys_rule_remove(rule);
  omni_thread_join(remover);
  unsigned calls = atomic_load(&p->calls);
  publish(1);
  CHECK(atomic_load(&p->calls) == calls && atomic_load(&p->done) == 0);
  consume(1);
  free(p);
  omni_sys_rule_unref(rule);
  omni_watch_stop();
}

static void drop_does_not_wait(void) {
  CHECK(omni_watch_start() == OMNI_OK);
  prepare(&probes[2], 2, OMNI_WATCH_PUBLISHED);
  probes[2].key.fn = held;
  omni_sys_rule_opts opts = {.op = OMNI_SYS_POINT, .match = "watch_stress.held", .times = 1, .action = OMNI_SYS_HOLD};
  omni_sys_rule *rule = omni_sys_rule_add(&opts);
  CHECK(omni_watch_add(dir, &probes[2].key) == OMNI_OK);
  CHECK(omni_sys_rule_wait(rule, 10 * SECOND));
  omni_watch_drop(&probes[2].key);
  CHECK(atomic_load(&probes[2].done) == 0);
  omni_watch_release();
  omni_sys_rule_remove(rule);
  omni_sys_rule_unref(rule);
  omni_watch_join();
  CHECK(atomic_load(&probes[2].done) == 1);
}

/* Asked for, retries come by themselves; not asked for, nothing runs. */
static void retries(void) {
  CHECK(omni_watch_start() == OMNI_OK);
  prepare(&probes[3], 3, OMNI_WATCH_PUBLISHED);
  probes[3].answer = OMNI_WATCH_RETRY;
  uint64_t before = omni_sys_now();
  CHECK(omni_watch_add(dir, &probes[3].key) == OMNI_OK);
  wait_calls(&probes[3], 6);
  CHECK(omni_sys_now() - before >= 50000 + 200000 + 1000000 + 2 * 5000000);
  omni_watch_remove(&probes[3].key);
  omni_watch_stop();
}

static void silence(void) {
  CHECK(omni_watch_start() == OMNI_OK);
  for (unsigned i = 0; i < KEYS; i++) {
    prepare(&probes[i], i, OMNI_WATCH_PUBLISHED);
    CHECK(omni_watch_add(dir, &probes[i].key) == OMNI_OK);
    wait_calls(&probes[i], 1);
  }
  uint64_t deadline = omni_sys_now() + SECOND / 10;
  omni_watch_stats stats, later;
  omni_watch_read_stats(&stats);
  uint64_t calls = omni_sys_count(OMNI_SYS_PPOLL) + omni_sys_count(OMNI_SYS_READ);
  while (omni_sys_now() < deadline)
    usleep(20000);
  omni_watch_read_stats(&later);
  CHECK(later.wakes <= stats.wakes + 1); /* the thread may just have been on its way to sleep */
  CHECK(omni_sys_count(OMNI_SYS_PPOLL) + omni_sys_count(OMNI_SYS_READ) <= calls + 1);
  for (unsigned i = 0; i < KEYS; i++)
    omni_watch_remove(&probes[i].key);
  omni_watch_stop();
}

/* More events than the kernel keeps while the thread is held: what waits is probed. */
static void overflow(void) {
  CHECK(omni_watch_start() == OMNI_OK);
  omni_sys_rule_opts opts = {.op = OMNI_SYS_POINT, .match = "watch_stress.held", .times = 1, .action = OMNI_SYS_HOLD};
  omni_sys_rule *rule = omni_sys_rule_add(&opts);
  prepare(&probes[0], 40000, OMNI_WATCH_PUBLISHED);
  prepare(&probes[1], 1, OMNI_WATCH_PUBLISHED);
  probes[0].key.fn = held;
  CHECK(omni_watch_add(dir, &probes[1].key) == OMNI_OK);
  wait_calls(&probes[1], 1);
  CHECK(omni_watch_add(dir, &probes[0].key) == OMNI_OK);
  CHECK(omni_sys_rule_wait(rule, 10 * SECOND));
  for (unsigned i = 0; i < 20000; i++) /* two names in turn, or the kernel merges equal events */
    publish(2 + i % 2);
  publish(1);
  omni_sys_rule_remove(rule);
  omni_sys_rule_unref(rule);
  wait_for(&probes[1].seen);
  omni_watch_stats stats;
  omni_watch_read_stats(&stats);
  CHECK(stats.overflows == 1);
  for (unsigned i = 1; i < 4; i++)
    consume(i);
  omni_watch_remove(&probes[0].key);
  omni_watch_remove(&probes[1].key);
  omni_watch_stop();
}

/* No watch and no instance to be had: slower, but nothing is missed. */
static void without_watches(omni_sys_op op, int errnum) {
  omni_sys_rule_opts opts = {.op = op, .times = UINT64_MAX, .action = OMNI_SYS_FAIL, .errnum = errnum};
  omni_sys_rule *rule = omni_sys_rule_add(&opts);
  CHECK(omni_watch_start() == OMNI_OK);
  prepare(&probes[4], 4, OMNI_WATCH_PUBLISHED);
  CHECK(omni_watch_add(dir, &probes[4].key) == OMNI_OK);
  wait_calls(&probes[4], 1);
  omni_watch_stats stats;
  omni_watch_read_stats(&stats);
  CHECK(stats.polling);
  publish(4);
  wait_for(&probes[4].seen);
  consume(4);
  omni_watch_remove(&probes[4].key);
  omni_watch_stop();
  omni_sys_rule_remove(rule);
  omni_sys_rule_unref(rule);
}

static void directory_goes(void) {
  char old[64];
  memcpy(old, dir, sizeof old);
  CHECK(omni_watch_start() == OMNI_OK);
  make_dir();
  prepare(&probes[5], 5, OMNI_WATCH_PUBLISHED);
  CHECK(omni_watch_add(dir, &probes[5].key) == OMNI_OK);
  wait_calls(&probes[5], 1);
  CHECK(rmdir(dir) == 0);
  wait_for(&probes[5].gone);
  omni_watch_remove(&probes[5].key);
  prepare(&probes[6], 6, OMNI_WATCH_PUBLISHED);
  CHECK(omni_watch_add(dir, &probes[6].key) == OMNI_OK);
  wait_for(&probes[6].gone);
  omni_watch_remove(&probes[6].key);
  memcpy(dir, old, sizeof dir);
  omni_watch_stop();
}

/* Four threads add, kick, drop and remove keys of their own while files come and go. */
static omni_watch_next answer_at_random(omni_watch_key *key) {
  probe *p = omni_container(key, probe, key);
  static const omni_watch_next answers[] = {OMNI_WATCH_STAY, OMNI_WATCH_AGAIN, OMNI_WATCH_RETRY, OMNI_WATCH_DONE};
  return answers[atomic_fetch_add(&p->calls, 1) * 7 % 4];
}

static void *juggle(void *arg) {
  unsigned seed = (unsigned)(uintptr_t)arg, base = seed * 8;
  probe mine[8];
  memset(mine, 0, sizeof mine);
  for (unsigned i = 0; i < 3000; i++) {
    seed = seed * 1103515245u + 12345u;
    probe *p = &mine[seed >> 16 & 7];
    if (p->key.fn == NULL) {
      prepare(p, base + (unsigned)(p - mine), seed & 1 ? OMNI_WATCH_PUBLISHED : OMNI_WATCH_CONSUMED);
      p->key.fn = answer_at_random;
      p->key.done = NULL;
    }
    switch (seed >> 8 & 3) {
    case 0: omni_watch_kick(&p->key); break;
    case 1: omni_watch_remove(&p->key); break;
    case 2: publish(base + (unsigned)(p - mine)); break;
    default: (void)omni_watch_add(dir, &p->key);
    }
  }
  for (unsigned i = 0; i < 8; i++) {
    char path[128];
    omni_watch_remove(&mine[i].key);
    snprintf(path, sizeof path, "%s/k%u.lock", dir, base + i);
    (void)unlink(path);
  }
  return NULL;
}

static void jugglers(void) {
  omni_thread threads[4];
  CHECK(omni_watch_start() == OMNI_OK);
  for (uintptr_t i = 0; i < 4; i++)
    CHECK(omni_thread_start(&threads[i], "juggler", juggle, (void *)(i + 1)) == 0);
  for (unsigned i = 0; i < 4; i++)
    omni_thread_join(threads[i]);
  omni_watch_stop();
  omni_watch_stats stats;
  omni_watch_read_stats(&stats);
  CHECK(stats.keys == 0 && stats.watches == 0);
}

int main(void) {
  make_dir();
  events_find_keys();
  names_change();
  remove_is_a_fence();
  drop_does_not_wait();
  retries();
  silence();
  overflow();
  without_watches(OMNI_SYS_INOTIFY_INIT, EMFILE);
  without_watches(OMNI_SYS_INOTIFY_ADD, ENOSPC);
  without_watches(OMNI_SYS_EVENTFD, EMFILE);
  directory_goes();
  jugglers();
  CHECK(rmdir(dir) == 0);
  printf("watch_stress: events find their keys, removal is a fence, silence costs nothing\n");
  return 0;
}
