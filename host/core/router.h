/*
 * Router: results that come back over a shared channel find who waits for them.
 *
 *   caller:    1 register (before the request leaves)  2 send  3 done? take : asleep, suspend  4 unregister
 *   deliverer: 1 take the waiter out of the table, under the lock  2 write the result, state = done  3 asleep? ring
 * A key has at most one live waiter; whoever takes it out of the table owes it the one result, so nobody else can. The
 * waiter is referenced by table and caller, so neither pulls it from under the other.
 */
#ifndef OMNI_CORE_ROUTER_H
#define OMNI_CORE_ROUTER_H

#include "blob.h"
#include "err.h"
#include "inbox.h"

typedef struct omni_router omni_router;
typedef struct omni_waiter omni_waiter;

typedef struct omni_router_stats {
  uint64_t registered;   /* waiters made */
  uint64_t delivered;    /* results and errors that found one */
  uint64_t late_results; /* that found none */
  uint64_t waiting;      /* live now */
} omni_router_stats;

/* NULL when out of memory. One reference. */
omni_router *omni_router_new(void);
omni_router *omni_router_ref(omni_router *router);
void omni_router_unref(omni_router *router);
/* References of those who wait: each in addition to the reference that whoever uses the router has. */
omni_router *omni_router_ref_waiting(omni_router *router);
void omni_router_unref_waiting(omni_router *router);
/* References beside this one, without those of who waits. */
unsigned omni_router_others(omni_router *router);

/* Enters a waiter, which must be idle, for a key (compared as bytes). EEXIST: the key has a live one. ECANCELED:
 * fail_all has latched, see omni_router_fatal. ENOMEM. The waiter's own thread. */
omni_err omni_router_register(omni_router *router, omni_waiter *waiter, const void *key, size_t len);

/* What a waiter gets. */
typedef struct omni_answer {
  bool failed;      /* an error, not a result */
  uint32_t tag;     /* the deliverer's: which kind of value */
  const void *data; /* copied by deliver; to the caller it is the waiter's, until that is registered again */
  size_t len;
} omni_answer;

/* Hands a copy of the answer to the key's waiter. ENOENT, and late_results + 1, where nobody waits; ENOMEM. Any thread,
 * never waits. */
omni_err omni_router_deliver(omni_router *router, const void *key, size_t len, const omni_answer *answer);

/* Takes this waiter, and only this one, out of the table; false if it is not in it. */
bool omni_router_unregister(omni_router *router, omni_waiter *waiter);

/* Fails this waiter, and only this one; false where it is not in the table: its answer is there or on its way. */
bool omni_router_fail_waiter(omni_router *router, omni_waiter *waiter, const omni_answer *answer);

/* Every waiter fails with this error now, and every later register fails. The first error stays. */
void omni_router_fail_all(omni_router *router, omni_blob *error);

/* The latched error with a reference for the caller, or NULL. */
omni_blob *omni_router_fatal(omni_router *router);

void omni_router_read_stats(omni_router *router, omni_router_stats *stats);

/* ---- waiters: the caller's side; its own thread only ---- */

/* A waiter whose answers ring `inbox`; NULL when out of memory. It can wait for one key after the other. */
omni_waiter *omni_waiter_new(omni_inbox *inbox);
void omni_waiter_unref(omni_waiter *waiter);

/* Neither in a table nor in the hands of a deliverer or a bell: it can be registered. */
bool omni_waiter_idle(omni_waiter *waiter);

/* Whether this is the key that it was registered for last. */
bool omni_waiter_is_for(omni_waiter *waiter, const void *key, size_t len);

/* About to suspend: true, and woken(arg, token) will run once on the inbox's loop; false: the result is there. */
bool omni_waiter_sleep(omni_waiter *waiter, void (*woken)(void *arg, uint64_t token), void *arg, uint64_t token);

/* Whether the answer is there. */
bool omni_waiter_result(omni_waiter *waiter, omni_answer *answer);

#endif
