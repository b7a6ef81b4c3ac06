/* What pool, jobs, runs and calls know of each other. Everything here is guarded by the pool's lock, except where a
 * comment says otherwise. */
#ifndef OMNI_CORE_POOL_PRIVATE_H
#define OMNI_CORE_POOL_PRIVATE_H

#include "core/future.h"
#include "core/metrics.h"
#include "core/sys.h"
#include "core/table.h"

/* A ring of links; the object that is linked holds one per list. */
typedef struct omni_link {
  struct omni_link *prev, *next; /* both NULL while it is in no list */
} omni_link;

static inline void omni_list_init(omni_link *list) { list->prev = list->next = list; }
static inline bool omni_list_empty(const omni_link *list) { return list->next == list; }
static inline bool omni_linked(const omni_link *link) { return link->next != NULL; }
static inline void omni_list_insert(omni_link *before, omni_link *link) {
  link->prev = before->prev;
  link->next = before;
  before->prev->next = link;
  before->prev = link;
}
static inline void omni_list_remove(omni_link *link) {
  link->prev->next = link->next;
  link->next->prev = link->prev;
  link->prev = link->next = NULL;
}

/* Who is to be woken once the lock is given back: woken earlier, they would run into it. */
#define OMNI_RINGS 16
typedef struct omni_ring {
  omni_inbox *inbox;   /* a reference; NULL: a worker or a run is meant */
  omni_event *event;   /* with the reference of its object that deliver or drop gives back */
  omni_worker *worker; /* one that blocks: a reference, or NULL */
  omni_run *run;       /* whose callers block: a reference of its memory, or NULL */
} omni_ring;
typedef struct omni_rings {
  unsigned count;
  omni_ring at[OMNI_RINGS];
} omni_rings;
/* Notes a bell; the references are taken over, but for the inbox's. Rung at once where the notes are full. */
void omni_rings_add(omni_rings *rings, omni_ring ring);
/* Rings them; without the lock. */
void omni_rings_flush(omni_rings *rings);

typedef enum omni_job_state {
  JOB_QUEUED,   /* waits for a worker or a slot, or for the home to take it */
  JOB_ASSIGNED, /* a worker will take it */
  JOB_STARTED,  /* the tool runs */
  JOB_ENDED     /* holds nothing any more */
} omni_job_state;

struct omni_job {
  atomic_uint refs; /* run's list until ended, run's table, call, each event, home's taker */
  omni_run *run;    /* a reference of its memory */
  uint32_t tool, handle;
  uint64_t epoch;  /* the run's when it was made */
  omni_blob *args; /* immutable */
  atomic_int cancel;
  omni_job_state state;
  bool early;  /* nobody has claimed it: counts as early work */
  bool slot;   /* counted in its tool's in_flight */
  bool told;   /* its home was told of the cancel */
  bool done;   /* response is published */
  bool writes; /* its end is the end of a write */
  omni_blob *response;
  omni_worker *worker; /* while ASSIGNED or STARTED on one */
  unsigned number;     /* of the worker that ran it */
  uint64_t prepared, started, ended, deadline;
  void *user;      /* whoever runs it; its thread only */
  omni_call *call; /* who waits for it */
  omni_link queue; /* pool's queue, or home's, or home's running ones */
  omni_link work;  /* pool's early work that holds a worker or slot, oldest first */
  omni_link live;  /* run's jobs that have not ended */
  omni_node node;  /* run's table, while unclaimed */
};

struct omni_worker {
  atomic_uint refs; /* the pool's until it is joined, bells on their way */
  omni_pool *pool;  /* a reference */
  omni_thread thread;
  unsigned number;
  bool opened;       /* it has asked for a job: its state is up */
  bool stopped;      /* it was told to stop */
  omni_job *job;     /* ASSIGNED or STARTED */
  omni_link all;     /* pool's workers, or those that ended */
  omni_link idle;    /* pool's stack of those without a job */
  omni_cond cond;    /* for omni_worker_wait and its like */
  bool blocked;      /* in one of them: the cond wakes it, not the bell */
  omni_inbox *inbox; /* a reference while it listens */
  omni_event bell;
  void (*woken)(void *arg); /* set while it listens; its thread only */
  void *arg;
};

typedef struct pool_tool {
  omni_tool spec;
  unsigned in_flight; /* jobs that hold a slot */
  unsigned early;     /* of these, unclaimed early ones */
} pool_tool;

/* What a pool counts, with label pool="N". */
#define POOL_METRIC_MAP(X)                                                                                             \
  X(WORKERS, OMNI_GAUGE, "omni_plm_workers")                                                                           \
  X(STARTED, OMNI_COUNTER, "omni_plm_workers_started_total")                                                           \
  X(DIED, OMNI_COUNTER, "omni_plm_workers_died_total")                                                                 \
  X(JOBS, OMNI_COUNTER, "omni_plm_jobs_total")                                                                         \
  X(PREPARED, OMNI_COUNTER, "omni_plm_prepared_total")                                                                 \
  X(ADOPTED, OMNI_COUNTER, "omni_plm_adopted_total")                                                                   \
  X(PREEMPTED, OMNI_COUNTER, "omni_plm_preempted_total")

typedef enum pool_metric {
#define X(id, kind, name) POOL_##id,
  POOL_METRIC_MAP(X)
#undef X
      POOL_METRICS
} pool_metric;

struct omni_pool {
  atomic_uint refs; /* memory: users, workers, runs, the home's bell */
  omni_mutex mutex;
  unsigned users;
  bool closing; /* no user is left */
  pool_tool *tools;
  uint32_t tool_count;
  unsigned cap;
  omni_pool_ops ops;
  omni_blob *setup;
  void *owner;
  omni_link registered; /* all pools; under the registry's lock */
  omni_link workers, idle, ended;
  unsigned count, idle_count; /* threads that have not ended; of these, idle */
  unsigned early;             /* workers that early work holds */
  omni_cond gone;             /* a worker has ended */
  omni_link queue;            /* ordinary jobs, oldest first */
  unsigned queued;
  omni_link work; /* early jobs that hold something, oldest first */
  omni_inbox *home;
  void *home_arg;
  omni_event home_bell;
  omni_link home_queue, home_running;
  omni_metric *metrics[POOL_METRICS];
};

typedef struct run_record {
  omni_run_op op;
  uint32_t tool, handle;
  int line;
  const char *outcome;
  bool logical, failed;
  omni_blob *args; /* a reference */
  omni_job *job;   /* a reference, or NULL */
  uint64_t prepared, resolved;
} run_record;

struct omni_run {
  atomic_uint refs; /* memory: users, jobs, calls */
  unsigned users;
  omni_pool *pool; /* a reference of its memory, and a use until it is let go or the last user is gone */
  omni_run_options options;
  uint32_t next; /* last handle */
  bool cancelled, closed;
  bool let_go;        /* the pool's use was given back */
  omni_table futures; /* unclaimed, by handle */
  omni_link live;
  omni_cond cond;   /* callers that block: something is done, started, cancelled or quiet */
  unsigned blocked; /* how many of them */
  omni_inbox *quiet_inbox;
  omni_event quiet_bell; /* for who waits in close */
  void (*quiet_woken)(void *arg, uint64_t token);
  void *quiet_arg;
  uint64_t quiet_token;
  omni_run_stats stats;
  run_record *records;
  size_t record_count, record_room;
};

struct omni_call {
  atomic_uint refs;  /* the caller's, its bell's */
  omni_run *run;     /* a reference of its memory */
  omni_job *job;     /* a reference; NULL once settled */
  run_record record; /* what will be noted; args is a reference of the call's own */
  bool settled, taken;
  omni_err err;
  omni_blob *response;
  omni_inbox *inbox; /* a reference while it sleeps or has slept */
  omni_event bell;
  bool asleep;
  void (*woken)(void *arg, uint64_t token);
  void *arg;
  uint64_t token;
};

/* ---- pool.c ---- */
omni_pool *omni_pool_ref(omni_pool *pool);
void omni_pool_unref(omni_pool *pool);
void omni_worker_unref(omni_worker *worker);
/* A new thread for this job (or for none); false where none can be had. */
bool omni_pool_start_worker(omni_pool *pool, omni_job *job);
/* Joins threads that have ended. */
void omni_pool_reap(omni_pool *pool);

/* ---- dispatch.c ---- */
/* An early job gets a worker (or its place at the home) now; NULL, or why not. */
const char *omni_dispatch_early(omni_pool *pool, omni_job *job, omni_rings *rings);
/* An ordinary job gets one now or waits for it. */
void omni_dispatch(omni_pool *pool, omni_job *job, omni_rings *rings);
/* Gives what is free to those that wait. The bell of `self` is not rung: it looks by itself. */
void omni_pump(omni_pool *pool, const omni_worker *self, omni_rings *rings);
/* Its worker is without a job again. */
void omni_worker_free(omni_worker *worker);
void omni_ring_worker(omni_worker *worker, omni_rings *rings);
void omni_ring_home(omni_pool *pool, omni_rings *rings);

/* ---- job.c ---- */
omni_job *omni_job_new(omni_run *run, uint32_t tool, omni_blob *args);
/* The response is there (reference taken over; NULL = cancelled): wakes who waits. The first one counts. */
void omni_job_publish(omni_job *job, omni_blob *response, omni_rings *rings);
/* It holds nothing any more; gives back the run's list's reference. */
void omni_job_end(omni_job *job, omni_rings *rings);
/* It was claimed: ordinary work from now on. */
void omni_job_claim(omni_job *job);
/* It is not wanted any more. What has not started ends here. */
void omni_job_cancel(omni_job *job, omni_cancel why, omni_rings *rings);
void omni_job_start(omni_job *job, omni_rings *rings);
bool omni_job_pass(omni_job *job, uint64_t now, omni_rings *rings); /* expires it if it is late */

/* ---- future.c ---- */
omni_run *omni_run_ref_memory(omni_run *run);
void omni_run_unref_memory(omni_run *run);
/* The unclaimed future of a handle, or NULL. */
omni_job *omni_run_find(omni_run *run, uint32_t handle);
/* It leaves the table; the table's reference is the caller's. */
void omni_run_forget(omni_run *run, omni_job *job);
/* A write: what was read before is stale. */
void omni_run_written(omni_run *run, omni_rings *rings);
/* OMNI_OK, or why the run cannot go on. */
omni_err omni_run_over(const omni_run *run, uint64_t now);
void omni_run_wake_quiet(omni_run *run, omni_rings *rings);
/* Wakes callers that block. */
void omni_run_wake(omni_run *run, omni_rings *rings);

/* ---- call.c ---- */
void omni_call_ring(omni_call *call, omni_rings *rings);

/* ---- trace.c ---- */
void omni_run_record(omni_run *run, const run_record *record);
void omni_run_free_records(omni_run *run);

static inline void omni_pool_count(omni_pool *pool, pool_metric metric, int64_t delta) {
  omni_metric_add(pool->metrics[metric], delta);
}

static inline pool_tool *omni_job_spec(const omni_job *job) { return &job->run->pool->tools[job->tool]; }

#endif
