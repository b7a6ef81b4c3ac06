/*
 * Tools and the workers that run them. A pool belongs to one manifest: its tools by number, a queue of ordinary calls,
 * and up to `cap` worker threads that are started on demand and reused last-in first-out.
 *
 *   caller:  1 job made, entered in its run's table   2 assigned to a free worker or queued   3 worker's bell
 *   worker:  1 takes the job   2 runs the tool   3 publishes the response   4 is free, takes the next of the queue
 *   cancel:  1 reason set in the job   2 worker's bell: the tool is woken where it waits
 * A job is published once, by whoever comes first (the worker, a timeout); its worker is held until the tool has ended.
 *
 * Early work must not make ordinary work wait: it never queues, holds at most cap - 1 workers and max_in_flight - 1
 * slots of its tool, and the oldest of it is cancelled for an ordinary call that finds none free.
 *
 * One lock per pool guards pool, runs and jobs. Nothing is called under it but inbox posts (lock order: pool, inbox).
 */
#ifndef OMNI_CORE_POOL_H
#define OMNI_CORE_POOL_H

#include "blob.h"
#include "err.h"
#include "inbox.h"

#include <stdbool.h>
#include <stdint.h>

#define OMNI_POOL_CAP 64 /* workers of a pool, where nothing else is said */

typedef struct omni_pool omni_pool;
typedef struct omni_worker omni_worker;
typedef struct omni_job omni_job;

/* What the pool needs to know of a tool. */
typedef struct omni_tool {
  const char *name; /* copied */
  bool early;       /* a read that may start before its place: result depends on arguments and earlier writes only */
  bool home;        /* runs as a task of the manifest's own loop, not on a worker */
  uint64_t timeout; /* nanoseconds from its start; 0 = none */
  unsigned max_in_flight; /* calls at once, of all runs; 0 = no limit */
} omni_tool;

/* How tools are run; the core knows no Lua. */
typedef struct omni_pool_ops {
  /* The worker's thread: opens what it needs, takes and finishes jobs until it is told to stop, puts things away. */
  void (*worker_main)(omni_worker *worker);
  /* On the home's loop: take jobs with omni_home_take, wake those that omni_home_cancelled gives. */
  void (*home)(void *arg);
} omni_pool_ops;

/* Why a job is not wanted any more. */
typedef enum omni_cancel {
  OMNI_CANCEL_NONE,    /* it is wanted */
  OMNI_CANCEL_RUN,     /* its run was cancelled or closed, or nobody can claim it any more */
  OMNI_CANCEL_STALE,   /* a write came before its claim */
  OMNI_CANCEL_MISS,    /* claimed with another request */
  OMNI_CANCEL_PREEMPT, /* an ordinary call needed its worker */
  OMNI_CANCEL_TIMEOUT, /* it took longer than its tool may, or its run had */
} omni_cancel;

/* A pool of these tools (copied), numbered from 0. setup is for the workers (a reference is taken over, may be NULL).
 * owner: whoever calls omni_pool_join_owned at its end. One user. NULL when out of memory. */
omni_pool *omni_pool_new(const omni_tool *tools, uint32_t count, unsigned cap, const omni_pool_ops *ops,
                         omni_blob *setup, void *owner);

/* One more user (any thread); returns its argument. */
omni_pool *omni_pool_use(omni_pool *pool);

/* One user less; after the last one the workers are told to stop. Never waits. */
void omni_pool_release(omni_pool *pool);

/* Where tools with `home` run: this loop's inbox (a reference is taken). Loop's thread; before the first run. */
void omni_pool_set_home(omni_pool *pool, omni_inbox *inbox, void *arg);

/* The home's loop ends: what waits there fails, and no more is sent. Loop's thread; idempotent. */
void omni_pool_home_gone(omni_pool *pool);

/* Waits until the workers of all pools of this owner that have no user any more are gone, and joins them. Names the
 * tools that do not stop once a second. */
void omni_pool_join_owned(void *owner);

/* Its tools. */
uint32_t omni_pool_tool_count(omni_pool *pool);
const omni_tool *omni_pool_tool(omni_pool *pool, uint32_t tool);

/* What the pool did so far. */
typedef struct omni_pool_stats {
  unsigned workers; /* threads now */
  unsigned idle;    /* of these, without a job */
  unsigned queued;  /* ordinary calls that wait for a worker or a slot */
  uint64_t started; /* threads ever started */
  uint64_t died;    /* workers that a tool took down */
  uint64_t jobs;    /* jobs ever run */
} omni_pool_stats;
void omni_pool_read_stats(omni_pool *pool, omni_pool_stats *stats);

/* ---- the worker's side: on its thread only ---- */

/* The blob given to omni_pool_new. */
const omni_blob *omni_worker_setup(const omni_worker *worker);

/* Its number in the pool, from 1; numbers are reused. */
unsigned omni_worker_number(const omni_worker *worker);

/* What rings from now on when there is a job, a cancel or a stop: woken(arg) on the inbox's loop. NULL before the loop
 * closes. */
void omni_worker_listen(omni_worker *worker, omni_inbox *inbox, void (*woken)(void *arg), void *arg);

/* Takes the job that was assigned, which starts now; NULL: none yet, sleep until the bell, or *stop: end. Its reference
 * stays the worker's. */
omni_job *omni_worker_take(omni_worker *worker, bool *stop);

/* The tool has ended: publishes its response (the reference is taken over), and the worker is free. */
void omni_worker_finish(omni_worker *worker, omni_blob *response);

/* Blocks its thread until there may be a job to take, or a stop: for workers whose loop has nothing else to do. */
void omni_worker_rest(omni_worker *worker);

/* Blocks its thread until this time on omni_sys_now's clock; false if the job in hand was cancelled before. */
bool omni_worker_nap(omni_worker *worker, uint64_t until);

/* ---- the home's side: on its loop only ---- */

/* The next job for a task of its own, which starts now (one reference for the caller), or NULL. */
omni_job *omni_home_take(omni_pool *pool);

/* A started job of the home that was cancelled and not told yet, or NULL; lives until it is finished. */
omni_job *omni_home_cancelled(omni_pool *pool);

/* The tool has ended: publishes (both references are taken over). */
void omni_home_finish(omni_job *job, omni_blob *response);

/* ---- jobs ---- */

omni_job *omni_job_ref(omni_job *job);
void omni_job_unref(omni_job *job);
omni_pool *omni_job_pool(const omni_job *job); /* lives as long as the job */
uint32_t omni_job_tool(const omni_job *job);
const char *omni_job_name(const omni_job *job);
const omni_blob *omni_job_args(const omni_job *job);
omni_cancel omni_job_cancelled(const omni_job *job); /* any thread */
/* When it has to be done, on omni_sys_now's clock; 0 = no limit. After its start. */
uint64_t omni_job_deadline(const omni_job *job);
/* Its deadline has passed: publishes a timeout and cancels it. Any thread. */
void omni_job_expire(omni_job *job);
/* A place for whoever runs it. */
void omni_job_set_user(omni_job *job, void *user);
void *omni_job_user(const omni_job *job);

/* {"code":"ECODE","error":"text"} as canonical JSON; NULL when out of memory. */
omni_blob *omni_error_response(const char *code, const char *text);

#endif
