/* Who gets a worker: early work only what is free, ordinary work in its order. All of it under the pool's lock, but for
 * the worker's and the home's own calls at the end. */
#include "core/pool_private.h"

#include <stdlib.h>

/* ---- bells ---- */

void omni_ring_worker(omni_worker *worker, omni_rings *rings) {
  if (!worker->blocked && worker->inbox == NULL) return; /* not up yet: it looks before it sleeps */
  atomic_fetch_add(&worker->refs, 1);
  if (worker->blocked)
    omni_rings_add(rings, (omni_ring){.worker = worker});
  else
    omni_rings_add(rings, (omni_ring){.inbox = worker->inbox, .event = &worker->bell});
}

void omni_ring_home(omni_pool *pool, omni_rings *rings) {
  if (pool->home == NULL) return;
  omni_rings_add(rings, (omni_ring){.inbox = pool->home, .event = &omni_pool_ref(pool)->home_bell});
}

/* ---- giving ---- */

static bool has_slot(const pool_tool *tool) {
  return tool->spec.max_in_flight == 0 || tool->in_flight < tool->spec.max_in_flight;
}

static bool has_worker(const omni_pool *pool) { return pool->idle_count > 0 || pool->count < pool->cap; }

static void take_slot(omni_job *job) {
  job->slot = true;
  omni_job_spec(job)->in_flight++;
}

static void give(omni_worker *worker, omni_job *job) {
  job->state = JOB_ASSIGNED;
  job->worker = worker;
  job->number = worker->number;
  worker->job = job;
}

/* The worker that ended last has its caches warm. */
static omni_worker *pop_idle(omni_pool *pool) {
  omni_worker *worker = omni_container(pool->idle.prev, omni_worker, idle);
  omni_list_remove(&worker->idle);
  pool->idle_count--;
  return worker;
}

void omni_worker_free(omni_worker *worker) {
  omni_list_insert(&worker->pool->idle, &worker->idle);
  worker->pool->idle_count++;
}

/* To an idle worker or a new one; false where no thread can be had. */
static bool to_worker(omni_pool *pool, omni_job *job, const omni_worker *self, omni_rings *rings) {
  if (pool->idle_count == 0) return omni_pool_start_worker(pool, job);
  omni_worker *worker = pop_idle(pool);
  give(worker, job);
  if (worker != self) omni_ring_worker(worker, rings);
  return true;
}

static void to_home(omni_pool *pool, omni_job *job, omni_rings *rings) {
  omni_list_insert(&pool->home_queue, &job->queue);
  omni_ring_home(pool, rings);
}

/* ---- early work ---- */

static const char *early_refused(const omni_pool *pool, const pool_tool *tool) {
  unsigned max = tool->spec.max_in_flight;
  if (max != 0 && (tool->in_flight >= max || tool->early + 1 >= max)) return "in_flight";
  if (tool->spec.home) return pool->home == NULL ? "closed" : NULL;
  if (!has_worker(pool) || pool->early + 1 >= pool->cap) return "busy";
  return NULL;
}

const char *omni_dispatch_early(omni_pool *pool, omni_job *job, omni_rings *rings) {
  pool_tool *tool = omni_job_spec(job);
  const char *why = early_refused(pool, tool);
  if (why != NULL) return why;
  if (tool->spec.home)
    to_home(pool, job, rings);
  else if (!to_worker(pool, job, NULL, rings))
    return "busy";
  job->early = true;
  omni_list_insert(&pool->work, &job->work);
  take_slot(job);
  tool->early++;
  if (!tool->spec.home) pool->early++;
  return NULL;
}

/* Cancels the oldest early work that holds what this job needs: a slot of its tool, or else a worker. */
static void preempt(omni_pool *pool, const omni_job *job, omni_rings *rings) {
  bool slot = !has_slot(omni_job_spec(job));
  for (omni_link *link = pool->work.next; link != &pool->work; link = link->next) {
    omni_job *early = omni_container(link, omni_job, work);
    bool helps = slot ? early->tool == job->tool : !omni_job_spec(early)->spec.home;
    if (!helps || omni_job_cancelled(early) != OMNI_CANCEL_NONE) continue;
    early->run->stats.preempted++;
    omni_pool_count(pool, POOL_PREEMPTED, 1);
    omni_job_cancel(early, OMNI_CANCEL_PREEMPT, rings);
    return;
  }
}

/* ---- ordinary work ---- */

/* True if it got what it needs, or failed for good. */
static bool try_start(omni_pool *pool, omni_job *job, const omni_worker *self, omni_rings *rings) {
  pool_tool *tool = omni_job_spec(job);
  if (!has_slot(tool)) return false;
  if (tool->spec.home) {
    take_slot(job);
    to_home(pool, job, rings);
    return true;
  }
  if (!has_worker(pool)) return false;
  if (!to_worker(pool, job, self, rings)) {
    if (pool->count > 0) return false; /* another thread cannot be had, but one will be free */
    job->writes = false;               /* it wrote nothing */
    omni_job_publish(job, omni_error_response("EWORKER", "no thread can be started for a worker"), rings);
    omni_job_end(job, rings);
    return true;
  }
  take_slot(job);
  return true;
}

void omni_dispatch(omni_pool *pool, omni_job *job, omni_rings *rings) {
  if (try_start(pool, job, NULL, rings)) return;
  omni_list_insert(&pool->queue, &job->queue);
  pool->queued++;
  preempt(pool, job, rings);
}

void omni_pump(omni_pool *pool, const omni_worker *self, omni_rings *rings) {
  for (omni_link *link = pool->queue.next, *next; link != &pool->queue; link = next) {
    omni_job *job = omni_container(link, omni_job, queue);
    next = link->next;
    omni_list_remove(link);
    if (try_start(pool, job, self, rings))
      pool->queued--;
    else
      omni_list_insert(next, link);
  }
}

/* ---- the worker's side ---- */

const omni_blob *omni_worker_setup(const omni_worker *worker) { return worker->pool->setup; }
unsigned omni_worker_number(const omni_worker *worker) { return worker->number; }

void omni_worker_listen(omni_worker *worker, omni_inbox *inbox, void (*woken)(void *), void *arg) {
  omni_mutex_lock(&worker->pool->mutex);
  omni_inbox *before = worker->inbox;
  worker->inbox = inbox != NULL ? omni_inbox_ref(inbox) : NULL;
  worker->woken = inbox != NULL ? woken : NULL;
  worker->arg = arg;
  omni_mutex_unlock(&worker->pool->mutex);
  omni_inbox_unref(before);
}

/* Under the lock: the job in hand starts. */
static omni_job *take(omni_worker *worker, bool *stop, omni_rings *rings) {
  omni_pool *pool = worker->pool;
  worker->opened = true;
  if (worker->job != NULL && worker->job->state == JOB_ASSIGNED) {
    omni_job_start(worker->job, rings);
    return worker->job;
  }
  *stop = worker->stopped = pool->closing;
  return NULL;
}

omni_job *omni_worker_take(omni_worker *worker, bool *stop) {
  omni_rings rings = {0};
  *stop = false;
  omni_mutex_lock(&worker->pool->mutex);
  omni_job *job = take(worker, stop, &rings);
  omni_mutex_unlock(&worker->pool->mutex);
  omni_rings_flush(&rings);
  return job;
}

/* Under the lock: blocks until the bell, or until the deadline (0 = none). */
static void block(omni_worker *worker, uint64_t deadline) {
  worker->blocked = true;
  if (deadline == 0)
    omni_cond_wait(&worker->cond, &worker->pool->mutex);
  else
    omni_cond_wait_until(&worker->cond, &worker->pool->mutex, deadline);
  worker->blocked = false;
}

void omni_worker_rest(omni_worker *worker) {
  omni_mutex_lock(&worker->pool->mutex);
  worker->opened = true;
  while (worker->job == NULL && !worker->pool->closing)
    block(worker, 0);
  omni_mutex_unlock(&worker->pool->mutex);
}

bool omni_worker_nap(omni_worker *worker, uint64_t until) {
  omni_rings rings = {0};
  omni_mutex_lock(&worker->pool->mutex);
  omni_job *job = worker->job;
  for (uint64_t now; omni_job_cancelled(job) == OMNI_CANCEL_NONE && (now = omni_sys_now()) < until;)
    if (!omni_job_pass(job, now, &rings))
      block(worker, job->deadline != 0 && job->deadline < until ? job->deadline : until);
  bool slept = omni_job_cancelled(job) == OMNI_CANCEL_NONE;
  omni_mutex_unlock(&worker->pool->mutex);
  omni_rings_flush(&rings);
  return slept;
}

void omni_worker_finish(omni_worker *worker, omni_blob *response) {
  omni_rings rings = {0};
  omni_pool *pool = worker->pool;
  omni_mutex_lock(&pool->mutex);
  omni_job *job = worker->job;
  worker->job = NULL;
  omni_job_pass(job, omni_sys_now(), &rings); /* what comes too late has timed out, whether or not somebody looked */
  omni_job_publish(job, response, &rings);
  omni_worker_free(worker);
  omni_job_end(job, &rings);
  omni_pump(pool, worker, &rings);
  omni_mutex_unlock(&pool->mutex);
  omni_rings_flush(&rings);
}

/* ---- the home's side ---- */

omni_job *omni_home_take(omni_pool *pool) {
  omni_rings rings = {0};
  omni_job *job = NULL;
  omni_mutex_lock(&pool->mutex);
  if (!omni_list_empty(&pool->home_queue)) {
    job = omni_job_ref(omni_container(pool->home_queue.next, omni_job, queue));
    omni_list_remove(&job->queue);
    omni_list_insert(&pool->home_running, &job->queue);
    omni_job_start(job, &rings);
  }
  omni_mutex_unlock(&pool->mutex);
  omni_rings_flush(&rings);
  return job;
}

omni_job *omni_home_cancelled(omni_pool *pool) {
  omni_job *found = NULL;
  omni_mutex_lock(&pool->mutex);
  for (omni_link *link = pool->home_running.next; link != &pool->home_running && found == NULL; link = link->next) {
    omni_job *job = omni_container(link, omni_job, queue);
    if (omni_job_cancelled(job) == OMNI_CANCEL_NONE || job->told) continue;
    job->told = true;
    found = job;
  }
  omni_mutex_unlock(&pool->mutex);
  return found;
}

void omni_home_finish(omni_job *job, omni_blob *response) {
  omni_rings rings = {0};
  omni_pool *pool = omni_pool_ref(job->run->pool);
  omni_mutex_lock(&pool->mutex);
  omni_job_pass(job, omni_sys_now(), &rings);
  omni_job_publish(job, response, &rings);
  omni_job_end(job, &rings);
  omni_pump(pool, NULL, &rings);
  omni_mutex_unlock(&pool->mutex);
  omni_rings_flush(&rings);
  omni_job_unref(job);
  omni_pool_unref(pool);
}
