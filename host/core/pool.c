/* Life of pools and of their workers. */
#include "core/pool.h"

#include "core/log.h"
#include "core/pool_private.h"

#include <stdlib.h>
#include <string.h>

#define NAME_EVERY ((uint64_t)1000000000) /* ns between two lines about a tool that does not stop */

/* All pools, so that their owner finds those that wait to be joined. Lock order: registry, then pool. */
static omni_mutex registry = PTHREAD_MUTEX_INITIALIZER;
static omni_link pools = {&pools, &pools};

/* ---- memory ---- */

omni_pool *omni_pool_ref(omni_pool *pool) {
  atomic_fetch_add_explicit(&pool->refs, 1, memory_order_relaxed);
  return pool;
}

static void free_tools(omni_pool *pool) {
  for (uint32_t i = 0; i < pool->tool_count; i++)
    free((char *)pool->tools[i].spec.name);
  free(pool->tools);
}

void omni_pool_unref(omni_pool *pool) {
  if (atomic_fetch_sub_explicit(&pool->refs, 1, memory_order_acq_rel) != 1) return;
  omni_mutex_lock(&registry);
  omni_list_remove(&pool->registered);
  omni_mutex_unlock(&registry);
  for (int i = 0; i < POOL_METRICS; i++)
    omni_metric_unref(pool->metrics[i]);
  free_tools(pool);
  omni_blob_unref(pool->setup);
  omni_inbox_unref(pool->home);
  omni_mutex_destroy(&pool->mutex);
  omni_cond_destroy(&pool->gone);
  free(pool);
}

static bool copy_tools(omni_pool *pool, const omni_tool *tools, uint32_t count) {
  pool->tools = calloc(count > 0 ? count : 1, sizeof *pool->tools);
  if (pool->tools == NULL) return false;
  for (; pool->tool_count < count; pool->tool_count++) {
    pool_tool *tool = &pool->tools[pool->tool_count];
    tool->spec = tools[pool->tool_count];
    tool->spec.name = strdup(tool->spec.name);
    if (tool->spec.name == NULL) return false;
  }
  return true;
}

static void make_metrics(omni_pool *pool) {
  static atomic_uint ids;
  char label[32];
  snprintf(label, sizeof label, "pool=\"%u\"", atomic_fetch_add(&ids, 1) + 1);
#define X(id, kind, name) pool->metrics[POOL_##id] = omni_metric_new(kind, name, label);
  POOL_METRIC_MAP(X)
#undef X
}

/* On the home's loop. */
static void on_home_bell(omni_event *event) {
  omni_pool *pool = omni_container(event, omni_pool, home_bell);
  if (pool->home_arg != NULL) pool->ops.home(pool->home_arg);
  omni_pool_unref(pool);
}

static void on_home_dropped(omni_event *event) { omni_pool_unref(omni_container(event, omni_pool, home_bell)); }

static void reap_owned(void *owner);

omni_pool *omni_pool_new(const omni_tool *tools, uint32_t count, unsigned cap, const omni_pool_ops *ops,
                         omni_blob *setup, void *owner) {
  reap_owned(owner);
  omni_pool *pool = calloc(1, sizeof *pool);
  if (pool == NULL || !copy_tools(pool, tools, count)) {
    if (pool != NULL) free_tools(pool);
    free(pool);
    omni_blob_unref(setup);
    return NULL;
  }
  atomic_init(&pool->refs, 1);
  pool->users = 1;
  omni_mutex_init(&pool->mutex);
  omni_cond_init(&pool->gone);
  pool->cap = cap > 0 ? cap : OMNI_POOL_CAP;
  pool->ops = *ops;
  pool->setup = setup;
  pool->owner = owner;
  omni_link *lists[] = {&pool->workers, &pool->idle,       &pool->ended,       &pool->queue,
                        &pool->work,    &pool->home_queue, &pool->home_running};
  for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
    omni_list_init(lists[i]);
  omni_event_init(&pool->home_bell, on_home_bell, on_home_dropped);
  make_metrics(pool);
  omni_mutex_lock(&registry);
  omni_list_insert(&pools, &pool->registered);
  omni_mutex_unlock(&registry);
  return pool;
}

/* ---- users ---- */

omni_pool *omni_pool_use(omni_pool *pool) {
  omni_mutex_lock(&pool->mutex);
  pool->users++;
  omni_mutex_unlock(&pool->mutex);
  return omni_pool_ref(pool);
}

void omni_pool_release(omni_pool *pool) {
  omni_mutex_lock(&pool->mutex);
  pool->closing = --pool->users == 0;
  /* Rung one by one under the lock, for there may be more than the notes take. */
  for (omni_link *link = pool->workers.next; pool->closing && link != &pool->workers; link = link->next) {
    omni_rings rings = {0};
    omni_ring_worker(omni_container(link, omni_worker, all), &rings);
    omni_rings_flush(&rings);
  }
  omni_mutex_unlock(&pool->mutex);
  omni_pool_unref(pool);
}

void omni_pool_set_home(omni_pool *pool, omni_inbox *inbox, void *arg) {
  omni_mutex_lock(&pool->mutex);
  pool->home = omni_inbox_ref(inbox);
  pool->home_arg = arg;
  omni_mutex_unlock(&pool->mutex);
}

void omni_pool_home_gone(omni_pool *pool) {
  omni_rings rings = {0};
  omni_mutex_lock(&pool->mutex);
  omni_inbox *home = pool->home;
  pool->home = NULL;
  pool->home_arg = NULL;
  while (!omni_list_empty(&pool->home_queue)) {
    omni_job *job = omni_container(pool->home_queue.next, omni_job, queue);
    omni_job_publish(job, omni_error_response("ECLOSED", "the script that this tool belongs to has ended"), &rings);
    omni_job_end(job, &rings);
  }
  omni_mutex_unlock(&pool->mutex);
  omni_rings_flush(&rings);
  omni_inbox_unref(home);
}

/* ---- workers ---- */

void omni_worker_unref(omni_worker *worker) {
  if (atomic_fetch_sub_explicit(&worker->refs, 1, memory_order_acq_rel) != 1) return;
  omni_pool *pool = worker->pool;
  omni_cond_destroy(&worker->cond);
  free(worker);
  omni_pool_unref(pool);
}

static void on_bell(omni_event *event) {
  omni_worker *worker = omni_container(event, omni_worker, bell);
  if (worker->woken != NULL) worker->woken(worker->arg);
  omni_worker_unref(worker);
}

static void on_dropped(omni_event *event) { omni_worker_unref(omni_container(event, omni_worker, bell)); }

/* What the ending worker still had in hand. A job that did not start goes to another worker, unless workers cannot
 * even be opened: then early work counts as never begun, and ordinary calls are told. */
static void drop_job(omni_worker *worker, omni_rings *rings) {
  omni_pool *pool = worker->pool;
  omni_job *job = worker->job;
  worker->job = NULL;
  if (job->state == JOB_ASSIGNED && job->early) {
    int none = OMNI_CANCEL_NONE;
    atomic_compare_exchange_strong(&job->cancel, &none, OMNI_CANCEL_PREEMPT);
  } else if (job->state == JOB_ASSIGNED && worker->opened) {
    job->state = JOB_QUEUED;
    job->worker = NULL;
    job->slot = false;
    omni_job_spec(job)->in_flight--;
    omni_list_insert(pool->queue.next, &job->queue);
    pool->queued++;
    return;
  } else {
    char text[160];
    const char *why = worker->opened ? "ended its worker" : "has no worker: none could be opened";
    snprintf(text, sizeof text, "tool %s %s", omni_job_name(job), why);
    omni_job_publish(job, omni_error_response("EWORKER", text), rings);
  }
  omni_job_end(job, rings);
}

static void worker_gone(omni_worker *worker) {
  omni_pool *pool = worker->pool;
  omni_rings rings = {0};
  omni_mutex_lock(&pool->mutex);
  pool->count--;
  omni_pool_count(pool, POOL_WORKERS, -1);
  if (!worker->stopped) omni_pool_count(pool, POOL_DIED, 1);
  omni_list_remove(&worker->all);
  if (omni_linked(&worker->idle)) {
    omni_list_remove(&worker->idle);
    pool->idle_count--;
  }
  if (worker->job != NULL) drop_job(worker, &rings);
  omni_pump(pool, NULL, &rings);
  omni_list_insert(&pool->ended, &worker->all); /* last: who starts a worker joins these, and none can join itself */
  omni_cond_broadcast(&pool->gone);
  omni_mutex_unlock(&pool->mutex);
  omni_rings_flush(&rings);
}

static void *worker_thread(void *arg) {
  omni_worker *worker = arg;
  worker->pool->ops.worker_main(worker);
  worker_gone(worker); /* the pool joins it and frees it: nothing of it may be touched from here on */
  return NULL;
}

/* The lowest number that no worker has. */
static unsigned free_number(omni_pool *pool) {
  for (unsigned number = 1;; number++) {
    omni_link *link = pool->workers.next;
    while (link != &pool->workers && omni_container(link, omni_worker, all)->number != number)
      link = link->next;
    if (link == &pool->workers) return number;
  }
}

/* Under the lock, which those that have ended need no more. */
static void join_ended(omni_pool *pool) {
  while (!omni_list_empty(&pool->ended)) {
    omni_worker *worker = omni_container(pool->ended.next, omni_worker, all);
    omni_list_remove(&worker->all);
    omni_thread_join(worker->thread);
    omni_worker_unref(worker);
  }
}

bool omni_pool_start_worker(omni_pool *pool, omni_job *job) {
  join_ended(pool);
  omni_worker *worker = calloc(1, sizeof *worker);
  if (worker == NULL) return false;
  atomic_init(&worker->refs, 1);
  worker->pool = omni_pool_ref(pool);
  worker->number = free_number(pool);
  omni_cond_init(&worker->cond);
  omni_event_init(&worker->bell, on_bell, on_dropped);
  worker->job = job;
  omni_list_insert(&pool->workers, &worker->all);
  pool->count++;
  char name[16];
  snprintf(name, sizeof name, "tool-%u", worker->number % 10000);
  if (omni_thread_start(&worker->thread, name, worker_thread, worker) != 0) {
    omni_list_remove(&worker->all);
    pool->count--;
    omni_worker_unref(worker);
    return false;
  }
  job->state = JOB_ASSIGNED;
  job->worker = worker;
  job->number = worker->number;
  omni_pool_count(pool, POOL_WORKERS, 1);
  omni_pool_count(pool, POOL_STARTED, 1);
  return true;
}

/* ---- the end ---- */

void omni_pool_reap(omni_pool *pool) {
  omni_mutex_lock(&pool->mutex);
  join_ended(pool);
  omni_mutex_unlock(&pool->mutex);
}

/* The next pool of this owner after one (whose reference is given back), with a reference. */
static omni_pool *next_owned(void *owner, omni_pool *after) {
  omni_pool *found = NULL;
  omni_mutex_lock(&registry);
  omni_link *link = after != NULL ? after->registered.next : pools.next;
  for (; link != &pools && found == NULL; link = link->next) {
    omni_pool *pool = omni_container(link, omni_pool, registered);
    unsigned refs = pool->owner == owner ? atomic_load(&pool->refs) : 0;
    /* Without references it is on its way out of this list. */
    while (refs > 0 && !atomic_compare_exchange_weak(&pool->refs, &refs, refs + 1))
      ;
    if (refs > 0) found = pool;
  }
  omni_mutex_unlock(&registry);
  if (after != NULL) omni_pool_unref(after);
  return found;
}

static void reap_owned(void *owner) {
  for (omni_pool *pool = next_owned(owner, NULL); pool != NULL; pool = next_owned(owner, pool))
    omni_pool_reap(pool);
}

/* Under the lock. */
static void name_busy(omni_pool *pool) {
  for (omni_link *link = pool->workers.next; link != &pool->workers; link = link->next) {
    const omni_worker *worker = omni_container(link, omni_worker, all);
    if (worker->job != NULL) omni_log(OMNI_LOG_WARN, "tool %s ignores its cancel", omni_job_name(worker->job));
  }
}

static void await_gone(omni_pool *pool) {
  omni_mutex_lock(&pool->mutex);
  while (pool->closing && pool->count > 0)
    if (!omni_cond_wait_until(&pool->gone, &pool->mutex, omni_sys_now() + NAME_EVERY)) name_busy(pool);
  omni_mutex_unlock(&pool->mutex);
  omni_pool_reap(pool);
}

void omni_pool_join_owned(void *owner) {
  for (omni_pool *pool = next_owned(owner, NULL); pool != NULL; pool = next_owned(owner, pool))
    await_gone(pool);
}

/* ---- reading ---- */

uint32_t omni_pool_tool_count(omni_pool *pool) { return pool->tool_count; }

const omni_tool *omni_pool_tool(omni_pool *pool, uint32_t tool) { return &pool->tools[tool].spec; }

void omni_pool_read_stats(omni_pool *pool, omni_pool_stats *stats) {
  omni_mutex_lock(&pool->mutex);
  *stats = (omni_pool_stats){.workers = pool->count,
                             .idle = pool->idle_count,
                             .queued = pool->queued,
                             .started = (uint64_t)omni_metric_value(pool->metrics[POOL_STARTED]),
                             .died = (uint64_t)omni_metric_value(pool->metrics[POOL_DIED]),
                             .jobs = (uint64_t)omni_metric_value(pool->metrics[POOL_JOBS])};
  omni_mutex_unlock(&pool->mutex);
}
