/* The rules behind the seam, under the sanitizers: fails, holds, counts and resets while many threads call. */
#include "core/sys_hooks.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#define THREADS 4
#define CALLS 2000
#define LONG_ENOUGH (UINT64_C(20) * 1000000000)

#define CHECK(what)                                                                                                    \
  do {                                                                                                                 \
    if (!(what)) {                                                                                                     \
      fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #what);                                               \
      exit(1);                                                                                                         \
    }                                                                                                                  \
  } while (0)

static atomic_int failures, passed;

static void *stat_often(void *arg) {
  (void)arg;
  struct stat st;
  for (int i = 0; i < CALLS; i++)
    if (omni_sys_fstatat(AT_FDCWD, "/tmp", &st, 0) != 0 && errno == EACCES) atomic_fetch_add(&failures, 1);
  return NULL;
}

static void *pass_point(void *arg) {
  omni_sys_point(arg);
  atomic_fetch_add(&passed, 1);
  return NULL;
}

static void start_all(omni_thread *threads, void *(*fn)(void *), void *arg) {
  for (int i = 0; i < THREADS; i++)
    CHECK(omni_thread_start(&threads[i], "stress", fn, arg) == 0);
}

static void join_all(omni_thread *threads) {
  for (int i = 0; i < THREADS; i++)
    omni_thread_join(threads[i]);
}

static omni_sys_rule *add(omni_sys_rule_opts opts) {
  omni_sys_rule *rule = omni_sys_rule_add(&opts);
  CHECK(rule != NULL);
  return rule;
}

/* skip and times are exact, whatever the threads do. */
static void fails_exactly(void) {
  omni_thread threads[THREADS];
  omni_sys_rule *rule = add((omni_sys_rule_opts){
      .op = OMNI_SYS_FSTATAT, .match = "tmp", .skip = 100, .times = 77, .action = OMNI_SYS_FAIL, .errnum = EACCES});
  start_all(threads, stat_often, NULL);
  join_all(threads);
  CHECK(atomic_load(&failures) == 77);
  CHECK(omni_sys_rule_hits(rule) == 77);
  CHECK(omni_sys_count(OMNI_SYS_FSTATAT) == THREADS * CALLS);
  omni_sys_reset();
  CHECK(omni_sys_count(OMNI_SYS_FSTATAT) == 0);
  CHECK(!omni_sys_rule_active(rule));
  omni_sys_rule_unref(rule);
}

/* One is held, the others pass, and a release lets go exactly who is held. */
static void holds_one(void) {
  omni_thread threads[THREADS];
  omni_sys_rule *rule =
      add((omni_sys_rule_opts){.op = OMNI_SYS_POINT, .match = "gate", .times = 1, .action = OMNI_SYS_HOLD});
  atomic_store(&passed, 0);
  start_all(threads, pass_point, "stress:gate");
  CHECK(omni_sys_rule_wait(rule, LONG_ENOUGH));
  CHECK(omni_sys_rule_held(rule) == 1);
  CHECK(atomic_load(&passed) < THREADS);
  omni_sys_rule_release(rule);
  join_all(threads);
  CHECK(atomic_load(&passed) == THREADS);
  CHECK(omni_sys_rule_held(rule) == 0);
  omni_sys_rule_remove(rule);
  omni_sys_rule_remove(rule);
  omni_sys_rule_unref(rule);
}

/* A reset leaves nobody stuck, whoever was held before and after the call. */
static void reset_frees_all(void) {
  omni_thread threads[THREADS];
  omni_sys_rule *rule =
      add((omni_sys_rule_opts){.op = OMNI_SYS_POINT, .times = UINT64_MAX, .action = OMNI_SYS_HOLD, .after = true});
  start_all(threads, pass_point, "anything");
  CHECK(omni_sys_rule_wait(rule, LONG_ENOUGH));
  omni_sys_reset();
  join_all(threads);
  omni_sys_rule_unref(rule);
}

/* ---- a loop is told when somebody is held ---- */

static void release_rule(void *arg) {
  omni_sys_rule_release(arg);
  atomic_fetch_add(&failures, 1);
}

static void loop_is_told(void) {
  uv_loop_t loop;
  CHECK(uv_loop_init(&loop) == 0);
  omni_inbox *inbox = omni_inbox_new(&loop, NULL, NULL);
  CHECK(inbox != NULL);
  omni_sys_rule *rule =
      add((omni_sys_rule_opts){.op = OMNI_SYS_POINT, .match = "told", .times = 1, .action = OMNI_SYS_HOLD});
  atomic_store(&failures, 0);
  omni_sys_rule_bind(rule, inbox, release_rule, rule);
  omni_inbox_keep(inbox, true);
  omni_thread thread;
  CHECK(omni_thread_start(&thread, "told", pass_point, "told") == 0);
  while (atomic_load(&failures) == 0)
    uv_run(&loop, UV_RUN_ONCE);
  omni_thread_join(thread);
  omni_sys_rule_unbind(rule);
  omni_inbox_close(inbox);
  uv_run(&loop, UV_RUN_DEFAULT);
  CHECK(uv_loop_close(&loop) == 0);
  omni_inbox_unref(inbox);
  omni_sys_rule_remove(rule);
  omni_sys_rule_unref(rule);
}

/* ---- text, clock, death ---- */

static void text_is_checked(void) {
  CHECK(omni_sys_rules_parse("UNLINKAT,.lock,1,inf,fail,ENOSPC,before;POINT,x,,,hold") == OMNI_OK);
  CHECK(omni_sys_rules_parse("") == OMNI_OK);
  CHECK(omni_sys_rules_parse("NOSUCH") == OMNI_EINVAL);
  CHECK(omni_sys_rules_parse("CLOSE,,x") == OMNI_EINVAL);
  CHECK(omni_sys_rules_parse("CLOSE,,0,1,explode") == OMNI_EINVAL);
  CHECK(omni_sys_rules_parse("CLOSE,,0,1,fail,ENOTHING") == OMNI_EINVAL);
  CHECK(omni_sys_rules_parse("CLOSE,,0,1,hold,,during") == OMNI_EINVAL);
  CHECK(omni_sys_rules_parse("POINT,,0,1,fail") == OMNI_EINVAL);
  CHECK(omni_sys_unlinkat(AT_FDCWD, "/nowhere/a.lock", 0) == -1 && errno == ENOENT);
  CHECK(omni_sys_unlinkat(AT_FDCWD, "/nowhere/a.lock", 0) == -1 && errno == ENOSPC);
  omni_sys_reset();
}

static void clock_is_driven(void) {
  uint64_t before = omni_sys_now();
  omni_sys_advance(LONG_ENOUGH * 60);
  CHECK(omni_sys_now() - before >= LONG_ENOUGH * 60);
  omni_mutex mutex;
  omni_cond cond;
  omni_mutex_init(&mutex);
  omni_cond_init(&cond);
  omni_mutex_lock(&mutex);
  CHECK(!omni_cond_wait_until(&cond, &mutex, omni_sys_now() + 1000000));
  omni_mutex_unlock(&mutex);
  omni_cond_destroy(&cond);
  omni_mutex_destroy(&mutex);
}

/* The child is this program again, with a rule in its environment. */
static void child_dies_of_its_rules(const char *self) {
  pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) {
    setenv("OMNI_SYS_RULES", "POINT,main,0,1,kill", 1);
    execl(self, self, (char *)NULL);
    _exit(3);
  }
  int status = 0;
  CHECK(waitpid(pid, &status, 0) == pid);
  CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

int main(void) {
  omni_sys_point("main");
  fails_exactly();
  for (int round = 0; round < 50; round++) {
    holds_one();
    reset_frees_all();
    loop_is_told();
  }
  text_is_checked();
  clock_is_driven();
  child_dies_of_its_rules("/proc/self/exe");
  printf("sys: exact failures, holds, resets, text, clock and death\n");
  return 0;
}
