/*
 * Rules behind the seam of sys.h: which call fails, where a thread is held, where the process dies. Only in builds with
 * OMNI_SYS_HOOKS.
 *
 * A rule looks at the calls of one operation whose detail contains `match`. It lets the first `skip` of them pass, acts
 * on the next `times`, and is silent afterwards. Rules are asked in the order in which they were added; the first that
 * acts decides.
 */
#ifndef OMNI_CORE_SYS_HOOKS_H
#define OMNI_CORE_SYS_HOOKS_H

#ifdef OMNI_SYS_HOOKS

#include "err.h"
#include "inbox.h"
#include "sys.h"

typedef enum omni_sys_action {
  OMNI_SYS_FAIL, /* the call is not made and fails with errnum */
  OMNI_SYS_HOLD, /* the thread waits until it is released */
  OMNI_SYS_DIE   /* SIGKILL for the whole process */
} omni_sys_action;

typedef struct omni_sys_rule_opts {
  omni_sys_op op;
  const char *match; /* substring of the path or name; NULL = every call of op. Copied */
  uint64_t skip;     /* matching calls that pass first */
  uint64_t times;    /* calls acted on; UINT64_MAX = no limit */
  omni_sys_action action;
  int errnum; /* of OMNI_SYS_FAIL */
  bool after; /* act when the call is done; not with OMNI_SYS_FAIL */
} omni_sys_rule_opts;

typedef struct omni_sys_rule omni_sys_rule;

/* Adds a rule; one reference is the caller's. NULL when memory is short or the options make no sense: a failure after
 * the call or at a point, or anything after THREAD and CLOCK, which are not told about. */
omni_sys_rule *omni_sys_rule_add(const omni_sys_rule_opts *opts);
/* One more reference; returns its argument. */
omni_sys_rule *omni_sys_rule_ref(omni_sys_rule *rule);
void omni_sys_rule_unref(omni_sys_rule *rule);

/* Takes it out of force and lets go who is held by it. Idempotent. */
void omni_sys_rule_remove(omni_sys_rule *rule);
/* Lets go who is held now; the rule stays in force for what it may still act on. */
void omni_sys_rule_release(omni_sys_rule *rule);

/* Calls that it acted on so far. */
uint64_t omni_sys_rule_hits(omni_sys_rule *rule);
/* Threads that it holds now. */
unsigned omni_sys_rule_held(omni_sys_rule *rule);
/* Whether it is in force. */
bool omni_sys_rule_active(omni_sys_rule *rule);

/* Blocks the calling thread until the rule holds somebody; false after so many real nanoseconds. */
bool omni_sys_rule_wait(omni_sys_rule *rule, uint64_t nanoseconds);

/* From now on woken(arg) runs on the inbox's loop whenever a thread begins to be held. Loop's thread, like unbind. */
void omni_sys_rule_bind(omni_sys_rule *rule, omni_inbox *inbox, void (*woken)(void *), void *arg);
/* When it returns woken does not run any more. */
void omni_sys_rule_unbind(omni_sys_rule *rule);

/* Adds the rules of a text "op,match,skip,times,action,errno,when;...": times may be "inf", empty fields stand for
 * every detail, 0, 1, fail, EIO, before. EINVAL for text that is none; the rules before the bad one stay. At its start
 * a process takes OMNI_SYS_RULES from its environment this way. */
omni_err omni_sys_rules_parse(const char *text);

/* Calls of an operation since the start or the last reset, failed ones included. */
uint64_t omni_sys_count(omni_sys_op op);
/* Removes all rules, lets go everybody held and sets the counts to 0. The clock stays: it never goes back. */
void omni_sys_reset(void);

/* The operation of this name; OMNI_SYS_OP_MAX if there is none. */
omni_sys_op omni_sys_op_named(const char *name);
/* The errno of this name ("ENOSPC"); 0 if there is none. */
int omni_sys_errno_named(const char *name);

/* Moves omni_sys_now() on by so many nanoseconds. Deadlines notice when they are next looked at. */
void omni_sys_advance(uint64_t nanoseconds);
/* How far omni_sys_now() is ahead of the system's clock. */
uint64_t omni_sys_ahead(void);

#endif
#endif
