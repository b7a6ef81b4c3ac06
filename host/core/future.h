/*
 * Runs and futures: reads that start early and are claimed where the program calls.
 *
 *   prepare: 1 refused? 0   2 the future enters the run's table   3 its job is given to a free worker
 *   resolve: 1 the future leaves the table   2 tool, arguments and write epoch are compared   3 equal: wait for its
 * job, else cancel it and make the ordinary call Each handle is claimed at most once and means something in its run
 * only. A call of a tool that is not `early` is a write: it bumps the run's epoch and cancels all that is pending.
 * Budgets are charged at resolve, never at prepare.
 *
 * A response is canonical JSON: {"n":2,"ok":["a",null]} (n values; null stands for nil) or {"code":"ECODE","error":
 * "text"}. Arguments are a JSON array, in which null stands for nil.
 *
 * Functions take the pool's lock. All may be called from any thread; those that wait, not from a loop's thread.
 */
#ifndef OMNI_CORE_FUTURE_H
#define OMNI_CORE_FUTURE_H

#include "core/pool.h"

#define OMNI_PENDING 64 /* unclaimed futures of a run, where nothing else is said */

typedef struct omni_run omni_run;
typedef struct omni_call omni_call;

/* How a run is opened. */
typedef struct omni_run_options {
  bool enabled;      /* prepare does something */
  unsigned pending;  /* unclaimed futures at once; 0 = OMNI_PENDING */
  uint64_t calls;    /* logical calls allowed; 0 = no limit */
  uint64_t deadline; /* on omni_sys_now's clock; 0 = none */
} omni_run_options;

/* A run of this pool's tools; NULL when out of memory. One reference. Uses the pool until it is gone. */
omni_run *omni_run_open(omni_pool *pool, const omni_run_options *options);
omni_run *omni_run_ref(omni_run *run);
/* The last reference closes it without waiting. */
void omni_run_unref(omni_run *run);
/* A run that is closed and quiet needs its pool no more: a reference that is kept for its figures, or that the garbage
 * collector has not seen to, keeps no worker. Idempotent. */
void omni_run_let_go(omni_run *run);
omni_pool *omni_run_pool(omni_run *run);

/* Starts a read early. args: canonical JSON array (a reference is taken over). line: of the call, for the trace. 0 =
 * not prepared. Never waits. */
uint32_t omni_run_prepare(omni_run *run, uint32_t tool, omni_blob *args, int line);

/* Delivers a call's response (one reference for the caller), waiting for it. args: reference taken over. handle 0: an
 * ordinary call. OMNI_OK: what the tool gave, value or error. Otherwise the run cannot go on and response says so too:
 * OMNI_ECANCELED, OMNI_EDEADLINE, OMNI_ECALLS (budget), OMNI_ECLOSED; OMNI_ENOMEM leaves response NULL. */
omni_err omni_run_resolve(omni_run *run, uint32_t handle, uint32_t tool, omni_blob *args, int line,
                          omni_blob **response);

/* Nobody will claim this future: it leaves the table and its work is cancelled. Unknown handles are ignored. */
void omni_run_cancel_handle(omni_run *run, uint32_t handle);

/* An error was delivered to the program: these later handles of its group can never be claimed. */
void omni_run_error_delivered(omni_run *run, const uint32_t *later, size_t count);

/* Everything that is pending or running is cancelled; who waits gets ECANCELED, and so does who comes later. */
void omni_run_cancel(omni_run *run);

/* Cancels what is left and waits until no worker holds a job of this run. Names the tools that ignore their cancel
 * once a second. Idempotent. */
void omni_run_close(omni_run *run);

/* ---- the same without waiting, for loops ---- */

/* The first half of resolve: claims or starts. NULL when out of memory. One reference. */
omni_call *omni_call_begin(omni_run *run, uint32_t handle, uint32_t tool, omni_blob *args, int line);
/* True once it is settled: err and response as for omni_run_resolve. Ask once. */
bool omni_call_take(omni_call *call, omni_err *err, omni_blob **response);
/* About to suspend: true, and woken(arg, token) will run once on the inbox's loop, at the latest when *until (0 = no
 * limit) has to be looked at by the caller's own timer; false: it is settled. */
bool omni_call_sleep(omni_call *call, omni_inbox *inbox, void (*woken)(void *arg, uint64_t token), void *arg,
                     uint64_t token, uint64_t *until);
/* True while a worker, or a task not yet started, can still settle it. */
bool omni_call_hope(omni_call *call);
/* Given up before it was taken: the work is cancelled. */
void omni_call_unref(omni_call *call);

/* The first half of close. */
void omni_run_shut(omni_run *run);
/* True once no worker holds a job of this run. */
bool omni_run_quiet(omni_run *run);
/* About to suspend until it is quiet: as omni_call_sleep. One waiter at a time. */
bool omni_run_sleep(omni_run *run, omni_inbox *inbox, void (*woken)(void *arg, uint64_t token), void *arg,
                    uint64_t token);
/* The names of the tools that still run, comma by comma. */
void omni_run_names(omni_run *run, char *text, size_t size);

/* ---- counters and trace ---- */

typedef struct omni_run_stats {
  uint64_t calls;     /* logical calls: resolved or ordinary, as charged */
  uint64_t prepared;  /* futures made */
  uint64_t refused;   /* prepares that gave 0 */
  uint64_t adopted;   /* futures delivered */
  uint64_t mismatch;  /* futures claimed with another request */
  uint64_t stale;     /* futures that a write overtook */
  uint64_t preempted; /* futures cancelled for an ordinary call */
  uint64_t cancelled; /* futures cancelled otherwise: never claimed */
  uint64_t unknown;   /* claims of handles that are not there */
  uint64_t epoch;     /* writes seen */
  uint64_t pending;   /* unclaimed futures now */
  uint64_t active;    /* jobs that hold a worker or a place in a queue now */
  uint64_t lost;      /* events that were not kept: there are too many */
} omni_run_stats;
void omni_run_read_stats(omni_run *run, omni_run_stats *stats);

typedef enum omni_run_op { OMNI_OP_PREPARE, OMNI_OP_RESOLVE, OMNI_OP_CALL, OMNI_OP_CANCEL } omni_run_op;

/* One step of a run, in the order in which the host saw them. Times on omni_sys_now's clock, 0 = did not happen. */
typedef struct omni_run_event {
  omni_run_op op;
  uint32_t tool;
  uint32_t handle; /* 0 = none */
  int line;
  const char *outcome; /* prepared, adopted, called, mismatch, stale, cancelled, unknown, …, or why it was refused */
  bool logical;        /* a call that the program made: part of the logical trace */
  bool failed;         /* its response is an error */
  unsigned worker;     /* number of the worker that ran it; 0 = none or the home */
  const omni_blob *args; /* lives until the visit returns */
  uint64_t prepared, started, ended, resolved;
} omni_run_event;
/* Calls visit for each event so far, without the lock. */
void omni_run_visit(omni_run *run, void (*visit)(void *arg, const omni_run_event *event), void *arg);

#endif
