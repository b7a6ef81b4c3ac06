/*
 * The connector's protocol taken apart: a death, a failure and a foreign act at each step of each operation. The steps
 * are the calls that the engine makes to the system, counted by its seam; so a step that is added is tested too.
 */
#include "core/sys_hooks.h"
#include "shm_check.h"

#include <sched.h>
#include <stdatomic.h>
#include <sys/wait.h>

#if defined(__SANITIZE_THREAD__)
#define WITH_PROCESSES 0
#else
#define WITH_PROCESSES 1
#endif

static const omni_sys_op ops[] = {OMNI_SYS_POINT,  OMNI_SYS_OPENAT,  OMNI_SYS_FLOCK, OMNI_SYS_FSTAT, OMNI_SYS_FSTATAT,
                                  OMNI_SYS_PREADV, OMNI_SYS_PWRITEV, OMNI_SYS_MMAP,  OMNI_SYS_CLOSE, OMNI_SYS_UNLINKAT};
#define OPS (sizeof ops / sizeof *ops)

static omni_shm *handle;
static unsigned steps; /* taken so far, for the report */

/* ---- operations on key 0; each returns the number that it delivered, or NONE ---- */

#define NONE UINT64_MAX

typedef uint64_t (*operation)(void);

static omni_err last_err; /* of the operation's put, or of a get that failed */

static uint64_t put_2(void) {
  last_err = put_value(handle, 0, 2);
  return NONE;
}

static uint64_t get(void) {
  omni_shm_got got;
  uint64_t number = get_value(handle, 0, &got);
  last_err = got == OMNI_SHM_FAILED ? OMNI_EIO : OMNI_OK;
  return number;
}

static uint64_t view(void) {
  omni_shm_view *mapped;
  omni_err err = OMNI_OK;
  omni_shm_got got = omni_shm_get_view(handle, "key_0", 5, &mapped, &err);
  last_err = got == OMNI_SHM_FAILED ? err : OMNI_OK;
  if (got != OMNI_SHM_GOT) return NONE;
  size_t len;
  const void *data = omni_shm_view_data(mapped, &len);
  uint64_t number = check_value(data, len);
  omni_shm_view_close(mapped);
  return number;
}

static uint64_t discard(void) {
  last_err = omni_shm_discard(handle, "key_0", 5);
  return last_err == OMNI_OK ? 1 : NONE;
}

static uint64_t cleanup(void) { return omni_shm_cleanup_prefix(handle, "key_0", 5) == 1 ? 1 : NONE; }

static void put_1(void) { CHECK(put_value(handle, 0, 1) == OMNI_OK); }

/* ---- a death at each step ---- */

#if WITH_PROCESSES
/* False when the operation is over before it comes to the step. */
static bool dies_at(operation operate, omni_sys_op op, unsigned skip, bool after) {
  pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) {
    omni_sys_rule_add(
        &(omni_sys_rule_opts){.op = op, .skip = skip, .times = 1, .action = OMNI_SYS_DIE, .after = after});
    (void)operate();
    _exit(0);
  }
  int status;
  CHECK(waitpid(pid, &status, 0) == pid);
  CHECK(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
  steps++;
  return WIFSIGNALED(status);
}

/* Until it unlinks something, an operation that dies has taken nothing away. */
static void check_after_death(operation operate, bool old, omni_sys_op op, unsigned skip) {
  omni_shm_got got;
  uint64_t number = get_value(handle, 0, &got);
  CHECK(got != OMNI_SHM_BUSY && got != OMNI_SHM_FAILED);
  CHECK(number == NONE || number == 1 || (number == 2 && operate == put_2));
  bool early = op == OMNI_SYS_FSTAT || (op == OMNI_SYS_FLOCK && skip == 0) || (op == OMNI_SYS_OPENAT && skip == 0);
  if (old && early) CHECK(number == 1);
  check_key_works(handle, 0);
  check_nothing_left();
}

static void death_at_each_step(operation operate, bool old) {
  for (size_t i = 0; i < OPS; i++)
    for (unsigned turn = 0;; turn++) {
      if (old) put_1();
      bool died = dies_at(operate, ops[i], turn / 2, turn % 2);
      if (died || operate != put_2) check_after_death(operate, old && died, ops[i], turn / 2);
      if (!died) (void)get();
      if (!died) break;
    }
}
#endif

/* ---- a failure at each step ---- */

/* False when the operation never came to the step. */
static bool fails_at(operation operate, omni_sys_op op, unsigned skip, int errnum, uint64_t *delivered) {
  omni_sys_rule *rule = omni_sys_rule_add(
      &(omni_sys_rule_opts){.op = op, .skip = skip, .times = 1, .action = OMNI_SYS_FAIL, .errnum = errnum});
  CHECK(rule != NULL);
  *delivered = operate();
  bool hit = omni_sys_rule_hits(rule) > 0;
  omni_sys_rule_remove(rule);
  omni_sys_rule_unref(rule);
  steps++;
  return hit;
}

/* A put that failed leaves nothing, or what was there before; one that succeeded has put. */
static void check_failed_put(bool old) {
  omni_err err = last_err;
  uint64_t number = get();
  if (err == OMNI_OK)
    CHECK(number == 2);
  else
    CHECK(number == NONE || (old && number == 1));
  check_nothing_left();
}

/* A get that failed has consumed nothing. */
static void check_failed_get(uint64_t delivered) {
  if (last_err != OMNI_OK) {
    CHECK(delivered == NONE);
    CHECK(get() == 1);
  } else {
    CHECK(delivered == 1);
    CHECK(get() == NONE);
  }
  check_key_works(handle, 0);
  check_nothing_left();
}

static void failure_at_each_step(operation operate, bool old, int errnum) {
  for (size_t i = 0; i < OPS; i++) {
    /* Nothing fails at a point, and a close that does not close only makes the test leak. */
    bool applies = ops[i] != OMNI_SYS_POINT && ops[i] != OMNI_SYS_CLOSE;
    for (unsigned skip = 0; applies; skip++) {
      uint64_t delivered;
      if (old) put_1();
      applies = fails_at(operate, ops[i], skip, errnum, &delivered);
      if (errnum == EINTR && ops[i] != OMNI_SYS_FSTAT && ops[i] != OMNI_SYS_UNLINKAT && ops[i] != OMNI_SYS_MMAP)
        CHECK(last_err == OMNI_OK);
      if (operate == put_2)
        check_failed_put(old);
      else
        check_failed_get(delivered);
    }
  }
}

/* ---- somebody else's act at each step ---- */

typedef struct actor {
  operation operate;
  uint64_t delivered;
  omni_err err;
  atomic_bool done;
} actor;

static void *act(void *arg) {
  actor *a = arg;
  a->delivered = a->operate();
  a->err = last_err;
  atomic_store(&a->done, true);
  return NULL;
}

/* What was seen in one run: by the actor, by the other meanwhile, and by a get when all is over. */
typedef struct seen {
  uint64_t actor, other, last;
} seen;

/* Holds the actor at the step, lets the other act, lets the actor go. False when the actor never came there. */
static bool meets_at(operation operate, operation other, omni_sys_op op, unsigned skip, bool after, seen *s) {
  actor a = {.operate = operate};
  omni_thread thread;
  omni_sys_rule *rule = omni_sys_rule_add(
      &(omni_sys_rule_opts){.op = op, .skip = skip, .times = 1, .action = OMNI_SYS_HOLD, .after = after});
  CHECK(rule != NULL && omni_thread_start(&thread, "actor", act, &a) == 0);
  while (omni_sys_rule_held(rule) == 0 && !atomic_load(&a.done))
    sched_yield();
  bool held = !atomic_load(&a.done);
  if (!held) omni_sys_rule_remove(rule); /* else it would catch the other */
  s->other = other();
  bool busy = other == put_2 && last_err == OMNI_EBUSY;
  omni_sys_rule_remove(rule);
  omni_sys_rule_unref(rule);
  omni_thread_join(thread);
  s->actor = a.delivered;
  if (busy) (void)put_2();
  /* What came too early is tried again, as it is in life. */
  if (operate == put_2 && a.err == OMNI_EBUSY) (void)put_2();
  s->last = get();
  steps++;
  return held;
}

/* A re-put meets a reader: the new value arrives once, the old one at most once, before it. */
static void check_reput(const seen *s) {
  CHECK(s->actor == 1 || s->actor == 2 || s->actor == NONE);
  CHECK(s->last == (s->actor == 2 ? NONE : 2));
}

/* A reader meets a writer: the same from the other side. */
static void check_reader(const seen *s) {
  CHECK(s->other == 1 || s->other == 2 || s->other == NONE);
  CHECK(s->last == (s->other == 2 ? NONE : 2));
}

/* Two readers, or a reader and who removes: one of them has it. */
static void check_once(const seen *s) { CHECK((s->actor == 1) + (s->other == 1) + (s->last == 1) == 1); }

/* Two writers: one of the two values is there. */
static void check_writers(const seen *s) { CHECK(s->last == 2); }

static void meeting_at_each_step(operation operate, operation other, void (*check)(const seen *)) {
  for (size_t i = 0; i < OPS; i++)
    for (unsigned turn = 0;; turn++) {
      seen s;
      put_1();
      bool held = meets_at(operate, other, ops[i], turn / 2, turn % 2, &s);
      check(&s);
      check_key_works(handle, 0);
      check_nothing_left();
      if (!held) break;
    }
}

int main(void) {
  begin_namespace();
  handle = open_handle(NULL);
#if WITH_PROCESSES
  death_at_each_step(put_2, false);
  death_at_each_step(put_2, true);
  death_at_each_step(get, true);
  death_at_each_step(view, true);
  death_at_each_step(discard, true);
  death_at_each_step(cleanup, true);
#endif
  unsigned deaths = steps;
  static const int errors[] = {EIO, ENOSPC, EDQUOT, EINTR, ENOMEM, EMFILE};
  for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
    failure_at_each_step(put_2, false, errors[i]);
    failure_at_each_step(put_2, true, errors[i]);
    failure_at_each_step(get, true, errors[i]);
    failure_at_each_step(view, true, errors[i]);
  }
  unsigned failures = steps - deaths;
  meeting_at_each_step(get, put_2, check_reput);
  meeting_at_each_step(view, put_2, check_reput);
  meeting_at_each_step(put_2, get, check_reader);
  meeting_at_each_step(put_2, put_2, check_writers);
  meeting_at_each_step(get, get, check_once);
  meeting_at_each_step(get, view, check_once);
  meeting_at_each_step(cleanup, get, check_once);
  meeting_at_each_step(get, cleanup, check_once);
  meeting_at_each_step(discard, get, check_once);
  meeting_at_each_step(get, discard, check_once);
  omni_shm_unref(handle);
  check_nothing_left();
  printf("shm_steps: %u deaths, %u failures, %u meetings\n", deaths, failures, steps - deaths - failures);
  return 0;
}
