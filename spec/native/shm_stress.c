/*
 * The connector under threads and under processes that die: a few keys are put and got again and again.
 *
 * Every value carries a number and a pattern made of it. Nothing torn is ever delivered, nothing twice; without deaths
 * nothing is lost; after the deaths every key works as if it were new, and nothing is left.
 */
#include "core/shm.h"
#include "core/sys_hooks.h"
#include "shm_check.h"

#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define KEYS 4
#define CAREFUL 1000  /* values per key, one after the other */
#define VALUES 200000 /* numbers that are handed out */
#define PROCESSES 6
#define RUN_NS UINT64_C(2000000000)

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define __SANITIZE_THREAD__ 1
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define WITH_PROCESSES 0 /* its runtime does not support children of a process that had threads */
#else
#define WITH_PROCESSES 1
#endif

/* Shared by all threads and processes. */
typedef struct board {
  atomic_uint next;              /* number of the next value */
  atomic_uint delivered[VALUES]; /* how often each arrived */
  atomic_uint arrivals;
  atomic_bool stop;
} board;

static board *shared;
static omni_shm *handle;

/* ---- what threads and processes do ---- */

static void put_number(unsigned key, unsigned number) {
  char name[16];
  unsigned char *value = make_value(number);
  struct iovec pieces[2] = {{value, 8}, {value + 8, value_size(number) - 8}};
  omni_err err = OMNI_EBUSY;
  for (int tries = 0; err == OMNI_EBUSY && tries < 100; tries++) {
    if (tries > 0) sched_yield();
    err = omni_shm_put(handle, name, key_name(name, key), pieces, 2);
  }
  CHECK(err == OMNI_OK || err == OMNI_EBUSY);
  free(value);
}

static bool get_any(unsigned key) {
  char name[16];
  omni_blob *blob;
  omni_err err = OMNI_OK;
  size_t len = key_name(name, key);
  omni_shm_got got = omni_shm_get(handle, name, len, &blob, &err);
  CHECK(got != OMNI_SHM_FAILED);
  if (got != OMNI_SHM_GOT) return false;
  uint64_t number = check_value(blob->data, blob->len);
  CHECK(number < VALUES);
  CHECK(atomic_fetch_add(&shared->delivered[number], 1) == 0);
  atomic_fetch_add(&shared->arrivals, 1);
  omni_blob_unref(blob);
  return true;
}

/* A view holds what it held, whatever happens to the names. */
static void view_any(unsigned key) {
  char name[16];
  omni_shm_view *view;
  omni_err err = OMNI_OK;
  if (omni_shm_get_view(handle, name, key_name(name, key), &view, &err) != OMNI_SHM_GOT) return;
  size_t len;
  const void *data = omni_shm_view_data(view, &len);
  sched_yield();
  CHECK(atomic_fetch_add(&shared->delivered[check_value(data, len)], 1) == 0);
  atomic_fetch_add(&shared->arrivals, 1);
  omni_shm_view_close(view);
}

static void writer(unsigned seed, unsigned limit) {
  for (unsigned number; (number = atomic_fetch_add(&shared->next, 1)) < limit && !atomic_load(&shared->stop);)
    put_number(next_random(&seed) % KEYS, number);
}

static void reader(unsigned seed) {
  while (!atomic_load(&shared->stop)) {
    unsigned what = next_random(&seed);
    if (what % 5 == 0)
      view_any(what / 5 % KEYS);
    else
      get_any(what / 5 % KEYS);
  }
}

/* ---- threads ---- */

static void *writer_thread(void *arg) {
  writer((unsigned)(uintptr_t)arg, VALUES / 100);
  return NULL;
}

static void *reader_thread(void *arg) {
  reader((unsigned)(uintptr_t)arg);
  return NULL;
}

static void *tidier_thread(void *arg) {
  (void)arg;
  while (!atomic_load(&shared->stop)) {
    omni_shm_stats stats;
    char name[16];
    (void)omni_shm_cleanup_prefix(handle, "key_3", 5);
    (void)omni_shm_discard(handle, name, key_name(name, 2));
    omni_shm_read_stats(handle, &stats);
    CHECK(stats.live_segments <= KEYS);
    sched_yield();
  }
  return NULL;
}

/* Everybody at once on the same keys of one handle. */
static void threads_at_random(void) {
  omni_thread writers[2], others[3];
  for (uintptr_t i = 0; i < 2; i++)
    CHECK(omni_thread_start(&writers[i], "writer", writer_thread, (void *)(i + 1)) == 0);
  for (uintptr_t i = 0; i < 2; i++)
    CHECK(omni_thread_start(&others[i], "reader", reader_thread, (void *)(i + 11)) == 0);
  CHECK(omni_thread_start(&others[2], "tidier", tidier_thread, NULL) == 0);
  for (int i = 0; i < 2; i++)
    omni_thread_join(writers[i]);
  atomic_store(&shared->stop, true);
  for (int i = 0; i < 3; i++)
    omni_thread_join(others[i]);
}

/* One writer per key puts the next value when the last is consumed; two readers take them: all arrive, once each. */
static void *careful_thread(void *arg) {
  unsigned key = (unsigned)(uintptr_t)arg;
  char name[16];
  size_t len = key_name(name, key);
  for (unsigned i = 0; i < CAREFUL; i++) {
    unsigned number = i * KEYS + key;
    unsigned char *value = make_value(number);
    struct iovec piece = {value, value_size(number)};
    while (omni_shm_put(handle, name, len, &piece, 1) == OMNI_EBUSY)
      sched_yield();
    free(value);
    while (omni_shm_unconsumed(handle, name, len))
      sched_yield();
  }
  return NULL;
}

static void threads_one_by_one(void) {
  omni_thread writers[KEYS], readers[2];
  for (uintptr_t i = 0; i < 2; i++)
    CHECK(omni_thread_start(&readers[i], "reader", reader_thread, (void *)(i + 21)) == 0);
  for (uintptr_t i = 0; i < KEYS; i++)
    CHECK(omni_thread_start(&writers[i], "writer", careful_thread, (void *)i) == 0);
  for (int i = 0; i < KEYS; i++)
    omni_thread_join(writers[i]);
  atomic_store(&shared->stop, true);
  for (int i = 0; i < 2; i++)
    omni_thread_join(readers[i]);
  CHECK(atomic_load(&shared->arrivals) == CAREFUL * KEYS);
}

/* ---- processes ---- */

#if WITH_PROCESSES
/* Dies by itself at a random call, unless the parent is quicker. */
static void die_somewhere(unsigned *seed) {
  static const omni_sys_op ops[] = {OMNI_SYS_OPENAT, OMNI_SYS_FLOCK,    OMNI_SYS_FSTAT, OMNI_SYS_FSTATAT,
                                    OMNI_SYS_PREADV, OMNI_SYS_UNLINKAT, OMNI_SYS_CLOSE, OMNI_SYS_PWRITEV};
  omni_sys_rule_opts opts = {.op = ops[next_random(seed) % (sizeof ops / sizeof *ops)],
                             .skip = next_random(seed) % 60,
                             .times = 1,
                             .action = OMNI_SYS_DIE,
                             .after = next_random(seed) % 2 == 0};
  omni_sys_rule_unref(omni_sys_rule_add(&opts));
}

static pid_t start_child(unsigned seed) {
  pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid > 0) return pid;
  die_somewhere(&seed);
  if (seed % 2 == 0)
    writer(seed, VALUES);
  else
    reader(seed);
  _exit(0);
}

static void kill_and_replace(pid_t *children, unsigned *seed) {
  unsigned victim = next_random(seed) % PROCESSES;
  struct timespec pause = {.tv_nsec = (long)(next_random(seed) % 2000000)};
  nanosleep(&pause, NULL);
  int status;
  bool die = next_random(seed) % 2 == 0;
  if (die) kill(children[victim], SIGKILL);
  if (waitpid(children[victim], &status, die ? 0 : WNOHANG) != children[victim]) return;
  CHECK(!WIFEXITED(status) || WEXITSTATUS(status) == 0);
  children[victim] = start_child(next_random(seed));
}
#endif

/* Readers and writers are killed wherever they are. */
static unsigned processes_that_die(void) {
  unsigned deaths = 0;
#if WITH_PROCESSES
  pid_t children[PROCESSES];
  unsigned seed = (unsigned)getpid();
  for (int i = 0; i < PROCESSES; i++)
    children[i] = start_child(next_random(&seed));
  for (uint64_t end = omni_sys_now() + RUN_NS; omni_sys_now() < end; deaths++)
    kill_and_replace(children, &seed);
  for (int i = 0; i < PROCESSES; i++) {
    int status;
    kill(children[i], SIGKILL);
    CHECK(waitpid(children[i], &status, 0) == children[i] && (!WIFEXITED(status) || WEXITSTATUS(status) == 0));
  }
#endif
  return deaths;
}

/* ---- afterwards ---- */

static void begin(void) {
  memset(shared, 0, sizeof *shared);
  handle = open_handle(NULL);
}

/* The dust has settled: locks of the dead are free, a fresh value of each key arrives, nothing is left. */
static unsigned end(void) {
  atomic_store(&shared->stop, true);
  for (unsigned key = 0; key < KEYS; key++)
    check_key_works(handle, key);
  omni_shm_stats stats;
  omni_shm_read_stats(handle, &stats);
  CHECK(stats.live_segments == 0 && stats.live_views == 0 && stats.view_bytes == 0);
  omni_shm_unref(handle);
  check_nothing_left();
  return atomic_load(&shared->arrivals);
}

int main(void) {
  begin_namespace();
  shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(shared != MAP_FAILED);
  begin();
  unsigned deaths = processes_that_die(); /* before there are threads: a fork copies only one */
  unsigned survived = end();
  begin();
  threads_at_random();
  unsigned at_random = end();
  begin();
  threads_one_by_one();
  unsigned one_by_one = end();
  munmap(shared, sizeof *shared);
  printf("shm_stress: %u + %u values between threads, %u between processes with %u turns of killing\n", at_random,
         one_by_one, survived, deaths);
  return 0;
}
