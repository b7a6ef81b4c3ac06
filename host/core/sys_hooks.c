#include "core/sys_hooks.h"

#ifdef OMNI_SYS_HOOKS

#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* A hold that nobody releases is a broken test: better a dead process that says where than one that hangs. */
#define HOLD_LIMIT_SECONDS 60

struct omni_sys_rule {
  atomic_uint refs;
  omni_sys_rule *next; /* the list below; everything from here on is guarded by its lock */
  omni_sys_rule_opts opts;
  char *match;                 /* what opts.match points to */
  bool active;                 /* in the list */
  uint64_t seen, hits;         /* matching calls; calls acted on */
  unsigned held;               /* threads in hold() */
  uint64_t releases;           /* a held thread goes when this has changed */
  omni_inbox *inbox;           /* who is told about holds, or NULL */
  void (*woken)(void *), *arg; /* what it is told */
  omni_event event;            /* in the inbox it counts as one reference */
};

/* lock is a leaf: no other lock is taken and no hooked call is made under it. changed: somebody is held, or let go. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static omni_sys_rule *rules;
static atomic_uint rule_count; /* length of rules, so that calls without any rule take no lock */
static atomic_uint_fast64_t counts[OMNI_SYS_OP_MAX];
static atomic_uint_fast64_t ahead;
static _Thread_local bool inside; /* telling an inbox about a hold makes hooked calls itself: they pass */

/* ---- rules ---- */

static void told(omni_event *event) {
  omni_sys_rule *rule = (omni_sys_rule *)((char *)event - offsetof(omni_sys_rule, event));
  pthread_mutex_lock(&lock);
  void (*woken)(void *) = rule->woken;
  void *arg = rule->arg;
  pthread_mutex_unlock(&lock);
  if (woken != NULL) woken(arg);
  omni_sys_rule_unref(rule);
}

static void told_too_late(omni_event *event) {
  omni_sys_rule_unref((omni_sys_rule *)((char *)event - offsetof(omni_sys_rule, event)));
}

/* A point has nothing to fail, and after these two nobody calls omni_sys_leave. */
static bool sensible(const omni_sys_rule_opts *o) {
  if ((unsigned)o->op >= OMNI_SYS_OP_MAX) return false;
  if (o->action == OMNI_SYS_FAIL && (o->after || o->errnum == 0)) return false;
  if (o->action == OMNI_SYS_FAIL && (o->op == OMNI_SYS_POINT || o->op == OMNI_SYS_CLOCK)) return false;
  return !(o->after && (o->op == OMNI_SYS_THREAD || o->op == OMNI_SYS_CLOCK));
}

omni_sys_rule *omni_sys_rule_add(const omni_sys_rule_opts *opts) {
  if (!sensible(opts)) return NULL;
  omni_sys_rule *rule = calloc(1, sizeof *rule);
  char *match = opts->match != NULL ? strdup(opts->match) : NULL;
  if (rule == NULL || (opts->match != NULL && match == NULL)) {
    free(rule);
    free(match);
    return NULL;
  }
  atomic_init(&rule->refs, 2); /* the caller's and the list's */
  rule->opts = *opts;
  rule->match = match;
  rule->active = true;
  omni_event_init(&rule->event, told, told_too_late);
  pthread_mutex_lock(&lock);
  omni_sys_rule **last = &rules;
  while (*last != NULL)
    last = &(*last)->next;
  *last = rule;
  atomic_fetch_add_explicit(&rule_count, 1, memory_order_relaxed);
  pthread_mutex_unlock(&lock);
  return rule;
}

omni_sys_rule *omni_sys_rule_ref(omni_sys_rule *rule) {
  atomic_fetch_add_explicit(&rule->refs, 1, memory_order_relaxed);
  return rule;
}

void omni_sys_rule_unref(omni_sys_rule *rule) {
  if (rule == NULL || atomic_fetch_sub_explicit(&rule->refs, 1, memory_order_acq_rel) != 1) return;
  if (rule->inbox != NULL) omni_inbox_unref(rule->inbox);
  free(rule->match);
  free(rule);
}

void omni_sys_rule_remove(omni_sys_rule *rule) {
  pthread_mutex_lock(&lock);
  bool was_active = rule->active;
  if (was_active) {
    omni_sys_rule **at = &rules;
    while (*at != rule)
      at = &(*at)->next;
    *at = rule->next;
    rule->active = false;
    atomic_fetch_sub_explicit(&rule_count, 1, memory_order_relaxed);
  }
  rule->releases++;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
  if (was_active) omni_sys_rule_unref(rule);
}

void omni_sys_rule_release(omni_sys_rule *rule) {
  pthread_mutex_lock(&lock);
  rule->releases++;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
}

uint64_t omni_sys_rule_hits(omni_sys_rule *rule) {
  pthread_mutex_lock(&lock);
  uint64_t hits = rule->hits;
  pthread_mutex_unlock(&lock);
  return hits;
}

unsigned omni_sys_rule_held(omni_sys_rule *rule) {
  pthread_mutex_lock(&lock);
  unsigned held = rule->held;
  pthread_mutex_unlock(&lock);
  return held;
}

bool omni_sys_rule_active(omni_sys_rule *rule) {
  pthread_mutex_lock(&lock);
  bool active = rule->active;
  pthread_mutex_unlock(&lock);
  return active;
}

/* On the clock of `changed`, which is the default one: real time. */
static struct timespec real_time_in(uint64_t nanoseconds) {
  struct timespec at;
  clock_gettime(CLOCK_REALTIME, &at);
  nanoseconds += (uint64_t)at.tv_nsec;
  at.tv_sec += (time_t)(nanoseconds / 1000000000u);
  at.tv_nsec = (long)(nanoseconds % 1000000000u);
  return at;
}

bool omni_sys_rule_wait(omni_sys_rule *rule, uint64_t nanoseconds) {
  struct timespec at = real_time_in(nanoseconds);
  pthread_mutex_lock(&lock);
  while (rule->held == 0 && pthread_cond_timedwait(&changed, &lock, &at) == 0)
    ;
  bool reached = rule->held > 0;
  pthread_mutex_unlock(&lock);
  return reached;
}

void omni_sys_rule_bind(omni_sys_rule *rule, omni_inbox *inbox, void (*woken)(void *), void *arg) {
  omni_sys_rule_unbind(rule);
  pthread_mutex_lock(&lock);
  rule->inbox = omni_inbox_ref(inbox);
  rule->woken = woken;
  rule->arg = arg;
  pthread_mutex_unlock(&lock);
}

void omni_sys_rule_unbind(omni_sys_rule *rule) {
  pthread_mutex_lock(&lock);
  omni_inbox *inbox = rule->inbox;
  rule->inbox = NULL;
  rule->woken = NULL;
  pthread_mutex_unlock(&lock);
  if (inbox != NULL) omni_inbox_unref(inbox);
}

/* ---- calls ---- */

/* Tells the bound loop. Without the lock: posting makes calls of its own. */
static void tell(omni_sys_rule *rule, omni_inbox *inbox) {
  inside = true;
  omni_sys_rule_ref(rule);
  if (omni_inbox_post(inbox, &rule->event) != OMNI_POSTED) omni_sys_rule_unref(rule);
  omni_inbox_unref(inbox);
  inside = false;
}

static void held_too_long(const omni_sys_rule *rule, const char *detail) {
  fprintf(stderr, "omnihost: a rule on operation %d (%s) held a thread for %d s and nobody released it\n",
          (int)rule->opts.op, detail != NULL ? detail : "no detail", HOLD_LIMIT_SECONDS);
  abort();
}

/* Entered and left with the lock, which it gives up while it tells and waits. */
static void hold(omni_sys_rule *rule, const char *detail) {
  omni_sys_rule_ref(rule);
  uint64_t releases = rule->releases;
  rule->held++;
  pthread_cond_broadcast(&changed);
  if (rule->inbox != NULL) {
    omni_inbox *inbox = omni_inbox_ref(rule->inbox);
    pthread_mutex_unlock(&lock);
    tell(rule, inbox);
    pthread_mutex_lock(&lock);
  }
  struct timespec limit = real_time_in(HOLD_LIMIT_SECONDS * UINT64_C(1000000000));
  while (rule->releases == releases)
    if (pthread_cond_timedwait(&changed, &lock, &limit) == ETIMEDOUT) held_too_long(rule, detail);
  rule->held--;
  pthread_mutex_unlock(&lock);
  omni_sys_rule_unref(rule);
  pthread_mutex_lock(&lock);
}

/* Whether the rule acts on this call; counts it. */
static bool acts(omni_sys_rule *rule, omni_sys_op op, const char *detail, bool after) {
  if (rule->opts.op != op || rule->opts.after != after) return false;
  if (rule->match != NULL && (detail == NULL || strstr(detail, rule->match) == NULL)) return false;
  if (rule->seen++ < rule->opts.skip || rule->hits >= rule->opts.times) return false;
  rule->hits++;
  return true;
}

static int apply(omni_sys_op op, const char *detail, bool after) {
  int fault = 0, saved = errno;
  pthread_mutex_lock(&lock);
  omni_sys_rule *rule = rules;
  while (rule != NULL && !acts(rule, op, detail, after))
    rule = rule->next;
  if (rule != NULL) switch (rule->opts.action) {
    case OMNI_SYS_FAIL: fault = rule->opts.errnum; break;
    case OMNI_SYS_HOLD: hold(rule, detail); break;
    case OMNI_SYS_DIE: kill(getpid(), SIGKILL); break;
    }
  pthread_mutex_unlock(&lock);
  errno = saved;
  return fault;
}

/* A thread that was started, or told by other means, after a rule was added sees its count: relaxed is enough. */
static bool any_rules(void) { return atomic_load_explicit(&rule_count, memory_order_relaxed) != 0 && !inside; }

int omni_sys_enter(omni_sys_op op, const char *detail) {
  atomic_fetch_add_explicit(&counts[op], 1, memory_order_relaxed);
  return any_rules() ? apply(op, detail, false) : 0;
}

void omni_sys_leave(omni_sys_op op, const char *detail) {
  if (any_rules()) apply(op, detail, true);
}

uint64_t omni_sys_count(omni_sys_op op) { return atomic_load_explicit(&counts[op], memory_order_relaxed); }

void omni_sys_reset(void) {
  for (;;) {
    pthread_mutex_lock(&lock);
    omni_sys_rule *rule = rules != NULL ? omni_sys_rule_ref(rules) : NULL;
    pthread_mutex_unlock(&lock);
    if (rule == NULL) break;
    omni_sys_rule_remove(rule);
    omni_sys_rule_unref(rule);
  }
  for (int op = 0; op < OMNI_SYS_OP_MAX; op++)
    atomic_store_explicit(&counts[op], 0, memory_order_relaxed);
}

/* Before main, so that no call of the process escapes them. */
__attribute__((constructor)) static void rules_from_environment(void) {
  const char *text = getenv("OMNI_SYS_RULES");
  if (text == NULL || omni_sys_rules_parse(text) == OMNI_OK) return;
  fprintf(stderr, "omnihost: OMNI_SYS_RULES is not op,match,skip,times,action,errno,when;...: %s\n", text);
  _exit(2);
}

/* ---- the clock ---- */

uint64_t omni_sys_now(void) {
  (void)omni_sys_enter(OMNI_SYS_CLOCK, NULL);
  struct timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec + omni_sys_ahead();
}

void omni_sys_advance(uint64_t nanoseconds) { atomic_fetch_add_explicit(&ahead, nanoseconds, memory_order_relaxed); }

uint64_t omni_sys_ahead(void) { return atomic_load_explicit(&ahead, memory_order_relaxed); }

#endif
