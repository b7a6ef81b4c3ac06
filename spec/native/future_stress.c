/*
 * Runs and futures under races, with workers of plain C: four guests prepare, claim rightly and wrongly, give up, write
 * and are cancelled at random, over a pool too small for them; tools answer, ignore their cancel, or take their worker
 * down. Every call gets exactly one response, that of its own arguments; a future is in its run's table before its tool
 * runs; a read begun before a write is never delivered after it; in the end nothing holds a worker and no thread is
 * left.
 */
#include "core/future.h"
#include "core/sys.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GUESTS 4
#define ROUNDS 300
#define STEPS 20

#define CHECK(what)                                                                                                    \
  do {                                                                                                                 \
    if (!(what)) {                                                                                                     \
      fprintf(stderr, "future_stress: %s:%d: %s\n", __FILE__, __LINE__, #what);                                        \
      abort();                                                                                                         \
    }                                                                                                                  \
  } while (0)

/* READ echoes its arguments and the cell's value; WRITE sets the cell; SLOW waits for its cancel or a turn; DIE takes
 * its worker down; HOLD is told by a gate. */
enum { READ, WRITE, SLOW, DIE, LIMITED, TOOLS };

static atomic_uint cells[GUESTS]; /* one per guest: the store that it reads and writes */
static atomic_uint delivered, adopted, deaths;

static unsigned guest_of(const omni_blob *args) { return (unsigned)args->data[0]; }

static omni_blob *answer(const omni_blob *args) {
  omni_blob *response = omni_blob_alloc(args->len + sizeof(unsigned));
  CHECK(response != NULL);
  unsigned value = atomic_load(&cells[guest_of(args)]);
  memcpy(response->data, &value, sizeof value);
  memcpy(response->data + sizeof value, args->data, args->len);
  return response;
}

/* False: the worker ends with the job in hand. */
static bool run_tool(omni_worker *worker, const omni_job *job) {
  const omni_blob *args = omni_job_args(job);
  switch (omni_job_tool(job)) {
  case WRITE: atomic_fetch_add(&cells[guest_of(args)], 1); break;
  case SLOW:
    if (args->data[1] % 2 == 0) omni_worker_nap(worker, omni_sys_now() + 50000);
    for (int i = 0; i < 200 && omni_job_cancelled(job) == OMNI_CANCEL_NONE; i++)
      sched_yield();
    break;
  case DIE: atomic_fetch_add(&deaths, 1); return false;
  default: break;
  }
  omni_worker_finish(worker, answer(args));
  return true;
}

/* The next job, or NULL: stop. */
static omni_job *next_job(omni_worker *worker) {
  bool stop = false;
  for (;;) {
    omni_job *job = omni_worker_take(worker, &stop);
    if (job != NULL || stop) return job;
    omni_worker_rest(worker);
  }
}

static void worker_main(omni_worker *worker) {
  for (omni_job *job; (job = next_job(worker)) != NULL;)
    if (!run_tool(worker, job)) return;
}

/* ---- guests ---- */

typedef struct guest {
  unsigned id, seed;
  omni_pool *pool;
} guest;

typedef struct request {
  uint32_t tool, handle;
  unsigned char bytes[2];
} request;

static omni_blob *args_of(const request *r) { return omni_blob_new(r->bytes, sizeof r->bytes); }

/* What came back belongs to this request, and was read after the guest's last write. */
static void check_response(const guest *g, const request *r, const omni_blob *response, unsigned written) {
  if (response->len > 0 && response->data[0] == '{' && r->tool == DIE) return;
  unsigned value;
  CHECK(response->len == sizeof value + sizeof r->bytes);
  memcpy(&value, response->data, sizeof value);
  CHECK(memcmp(response->data + sizeof value, r->bytes, sizeof r->bytes) == 0);
  CHECK(value == written + (r->tool == WRITE ? 1 : 0));
  CHECK(r->bytes[0] == g->id);
}

static void resolve(guest *g, omni_run *run, const request *r, unsigned *written) {
  omni_blob *response = NULL;
  omni_err err = omni_run_resolve(run, r->handle, r->tool, args_of(r), 1, &response);
  CHECK(response != NULL);
  if (err == OMNI_OK) {
    check_response(g, r, response, *written);
    if (r->tool == WRITE) ++*written;
    atomic_fetch_add(&delivered, 1);
  } else {
    CHECK(err == OMNI_ECANCELED);
  }
  omni_blob_unref(response);
}

static void step(guest *g, omni_run *run, request *kept, unsigned *written) {
  static const uint32_t tools[] = {READ, READ, READ, LIMITED, SLOW, SLOW, READ, LIMITED, WRITE, DIE};
  request fresh = {tools[(unsigned)rand_r(&g->seed) % 10], 0, {(unsigned char)g->id, (unsigned char)rand_r(&g->seed)}};
  unsigned slot = (unsigned)rand_r(&g->seed) % 8;
  if (rand_r(&g->seed) % 2 == 0 && kept[slot].handle == 0) {
    kept[slot] = fresh;
    kept[slot].handle = omni_run_prepare(run, fresh.tool, args_of(&fresh), 1);
    CHECK(kept[slot].handle == 0 || (fresh.tool != WRITE && fresh.tool != DIE));
  } else if (kept[slot].handle != 0) {
    request r = kept[slot];
    kept[slot].handle = 0;
    unsigned how = (unsigned)rand_r(&g->seed) % 8;
    if (how == 0) {
      omni_run_cancel_handle(run, r.handle);
      return;
    }
    if (how == 1) r.bytes[1]++; /* a mismatch */
    resolve(g, run, &r, written);
  } else {
    resolve(g, run, &fresh, written);
  }
}

static void *canceller(void *run) {
  omni_run_cancel(run);
  omni_run_unref(run);
  return NULL;
}

static void one_run(guest *g, bool cancel) {
  omni_run *run = omni_run_open(g->pool, &(omni_run_options){.enabled = true, .pending = 6});
  CHECK(run != NULL);
  request kept[8] = {{0}};
  unsigned written = atomic_load(&cells[g->id]);
  omni_thread thread;
  if (cancel) CHECK(omni_thread_start(&thread, "canceller", canceller, omni_run_ref(run)) == 0);
  for (int i = 0; i < STEPS; i++)
    step(g, run, kept, &written);
  omni_run_close(run);
  if (cancel) omni_thread_join(thread);
  omni_run_stats stats;
  omni_run_read_stats(run, &stats);
  CHECK(stats.active == 0 && stats.pending == 0);
  atomic_fetch_add(&adopted, (unsigned)stats.adopted);
  omni_run_unref(run);
}

static void *guest_main(void *arg) {
  guest *g = arg;
  for (int i = 0; i < ROUNDS; i++)
    one_run(g, i % 5 == 4);
  return NULL;
}

/* ---- a future is registered before its tool can run ---- */

static omni_mutex seen_lock = PTHREAD_MUTEX_INITIALIZER;
static omni_cond seen_cond = PTHREAD_COND_INITIALIZER;
static unsigned seen; /* jobs taken so far */

static void tell_seen(void) {
  omni_mutex_lock(&seen_lock);
  seen++;
  omni_cond_signal(&seen_cond);
  omni_mutex_unlock(&seen_lock);
}

static void await_seen(unsigned count) {
  omni_mutex_lock(&seen_lock);
  while (seen < count)
    omni_cond_wait(&seen_cond, &seen_lock);
  seen -= count;
  omni_mutex_unlock(&seen_lock);
}

static omni_run *watched;

static void watching_main(omni_worker *worker) {
  for (omni_job *job; (job = next_job(worker)) != NULL;) {
    omni_run_stats stats;
    omni_run_read_stats(watched, &stats);
    CHECK(stats.pending == 1);
    tell_seen();
    omni_worker_finish(worker, answer(omni_job_args(job)));
  }
}

static const omni_tool tools[TOOLS] = {{"read", true, false, 0, 0},
                                       {"write", false, false, 0, 0},
                                       {"slow", true, false, 0, 0},
                                       {"die", false, false, 0, 0},
                                       {"limited", true, false, 0, 2}};

static void registered_first(void *owner) {
  static const omni_pool_ops ops = {watching_main, NULL};
  omni_pool *pool = omni_pool_new(tools, TOOLS, 4, &ops, NULL, owner);
  watched = omni_run_open(pool, &(omni_run_options){.enabled = true});
  omni_pool_release(pool);
  for (unsigned i = 0; i < 2000; i++) {
    request r = {READ, 0, {0, (unsigned char)i}};
    uint32_t handle = omni_run_prepare(watched, READ, args_of(&r), 1);
    CHECK(handle == i + 1);
    await_seen(1); /* it is claimed only after it ran: the worker must have seen it in the table */
    omni_blob *response = NULL;
    CHECK(omni_run_resolve(watched, handle, READ, args_of(&r), 1, &response) == OMNI_OK);
    omni_blob_unref(response);
  }
  omni_run_close(watched);
  omni_run_unref(watched);
}

/* ---- a run that nobody closes lets its workers go with its last user ---- */

static void napping_main(omni_worker *worker) {
  for (omni_job *job; (job = next_job(worker)) != NULL;) {
    tell_seen();
    CHECK(!omni_worker_nap(worker, omni_sys_now() + (uint64_t)1e12));
    omni_worker_finish(worker, answer(omni_job_args(job)));
  }
}

static void forgotten(void *owner) {
  static const omni_pool_ops ops = {napping_main, NULL};
  omni_pool *pool = omni_pool_new(tools, TOOLS, 4, &ops, NULL, owner);
  omni_run *run = omni_run_open(pool, &(omni_run_options){.enabled = true});
  request r = {READ, 0, {0, 0}};
  CHECK(omni_run_prepare(run, READ, args_of(&r), 1) == 1);
  await_seen(1);
  omni_run_unref(run);
  omni_pool_release(pool);
}

int main(void) {
  static const omni_pool_ops ops = {worker_main, NULL};
  int owner;
  omni_pool *pool = omni_pool_new(tools, TOOLS, 4, &ops, NULL, &owner);
  CHECK(pool != NULL);
  guest guests[GUESTS];
  omni_thread threads[GUESTS];
  for (unsigned i = 0; i < GUESTS; i++) {
    guests[i] = (guest){i, i + 1, pool};
    CHECK(omni_thread_start(&threads[i], "guest", guest_main, &guests[i]) == 0);
  }
  for (unsigned i = 0; i < GUESTS; i++)
    omni_thread_join(threads[i]);
  omni_pool_stats stats;
  omni_pool_read_stats(pool, &stats);
  CHECK(stats.queued == 0 && stats.idle == stats.workers && stats.died == atomic_load(&deaths));
  omni_pool_release(pool);
  registered_first(&owner);
  forgotten(&owner);
  omni_pool_join_owned(&owner);
  printf("future_stress: %u delivered, %u of them early, %u workers died\n", atomic_load(&delivered),
         atomic_load(&adopted), atomic_load(&deaths));
  return 0;
}
