/* Jobs: one execution of a tool each. */
#include "core/buf.h"
#include "core/pool_private.h"

#include <stdlib.h>
#include <string.h>

/* ---- bells ---- */

static void ring_now(const omni_ring *ring) {
  if (ring->worker != NULL) {
    omni_cond_signal(&ring->worker->cond);
    omni_worker_unref(ring->worker);
  } else if (ring->run != NULL) {
    omni_cond_broadcast(&ring->run->cond);
    omni_run_unref_memory(ring->run);
  } else if (omni_inbox_post(ring->inbox, ring->event) != OMNI_POSTED) {
    ring->event->drop(ring->event); /* a delivery on its way serves this one too: only the reference goes back */
  }
}

void omni_rings_add(omni_rings *rings, omni_ring ring) {
  if (rings->count == OMNI_RINGS) {
    ring_now(&ring);
    return;
  }
  if (ring.inbox != NULL) omni_inbox_ref(ring.inbox);
  rings->at[rings->count++] = ring;
}

void omni_rings_flush(omni_rings *rings) {
  for (unsigned i = 0; i < rings->count; i++) {
    ring_now(&rings->at[i]);
    omni_inbox_unref(rings->at[i].inbox);
  }
  rings->count = 0;
}

/* ---- responses ---- */

omni_blob *omni_error_response(const char *code, const char *text) {
  omni_buf message = {0}, out = {0};
  omni_buf_puts(&message, code);
  omni_buf_puts(&message, ": ");
  omni_buf_puts(&message, text);
  omni_buf_puts(&out, "{\"code\":");
  omni_buf_json(&out, code, strlen(code));
  omni_buf_puts(&out, ",\"error\":");
  omni_buf_json(&out, message.data, message.len);
  omni_buf_putc(&out, '}');
  omni_blob *blob = message.failed || out.failed ? NULL : omni_blob_new(out.data, out.len);
  omni_buf_free(&message);
  omni_buf_free(&out);
  return blob;
}

/* ---- life ---- */

omni_job *omni_job_new(omni_run *run, uint32_t tool, omni_blob *args) {
  omni_job *job = calloc(1, sizeof *job);
  if (job == NULL) return NULL;
  atomic_init(&job->refs, 1);
  atomic_init(&job->cancel, OMNI_CANCEL_NONE);
  job->run = omni_run_ref_memory(run);
  job->tool = tool;
  job->args = omni_blob_ref(args);
  job->epoch = run->stats.epoch;
  job->state = JOB_QUEUED;
  omni_list_insert(&run->live, &job->live);
  run->stats.active++;
  return job;
}

omni_job *omni_job_ref(omni_job *job) {
  atomic_fetch_add_explicit(&job->refs, 1, memory_order_relaxed);
  return job;
}

void omni_job_unref(omni_job *job) {
  if (job == NULL || atomic_fetch_sub_explicit(&job->refs, 1, memory_order_acq_rel) != 1) return;
  omni_blob_unref(job->args);
  omni_blob_unref(job->response);
  omni_run_unref_memory(job->run);
  free(job);
}

void omni_job_publish(omni_job *job, omni_blob *response, omni_rings *rings) {
  if (job->done) {
    omni_blob_unref(response);
    return;
  }
  job->done = true;
  if (job->started != 0) job->ended = omni_sys_now();
  job->response = response;
  if (job->call != NULL) omni_call_ring(job->call, rings);
}

/* Early work no more: by its claim, or by its end. */
void omni_job_claim(omni_job *job) {
  if (!job->early) return;
  job->early = false;
  if (!omni_linked(&job->work)) return;
  omni_list_remove(&job->work);
  pool_tool *tool = omni_job_spec(job);
  tool->early--;
  if (!tool->spec.home) job->run->pool->early--;
}

void omni_job_end(omni_job *job, omni_rings *rings) {
  omni_run *run = job->run;
  omni_job_claim(job);
  job->state = JOB_ENDED;
  job->worker = NULL;
  if (omni_linked(&job->queue)) omni_list_remove(&job->queue);
  if (job->slot) omni_job_spec(job)->in_flight--;
  job->slot = false;
  if (!job->done) omni_job_publish(job, omni_error_response("ECANCELED", "cancelled before it ended"), rings);
  omni_list_remove(&job->live);
  if (--run->stats.active == 0) omni_run_wake_quiet(run, rings);
  if (job->writes) omni_run_written(run, rings);
  omni_job_unref(job);
}

void omni_job_start(omni_job *job, omni_rings *rings) {
  const omni_tool *spec = &omni_job_spec(job)->spec;
  job->state = JOB_STARTED;
  job->started = omni_sys_now();
  job->deadline = job->run->options.deadline;
  if (spec->timeout != 0 && (job->deadline == 0 || job->started + spec->timeout < job->deadline)) {
    job->deadline = job->started + spec->timeout;
    if (job->call != NULL) omni_call_ring(job->call, rings); /* it has to wake earlier than it thought */
  }
  omni_pool_count(job->run->pool, POOL_JOBS, 1);
}

/* ---- cancel ---- */

/* Nobody has begun with it: it ends here, and what it held is free. */
static void cancel_waiting(omni_job *job, omni_rings *rings) {
  omni_pool *pool = job->run->pool;
  omni_worker *worker = job->worker;
  if (job->state == JOB_QUEUED && omni_linked(&job->queue) && !job->slot) pool->queued--;
  if (worker != NULL) {
    worker->job = NULL;
    omni_worker_free(worker);
  }
  omni_job_end(job, rings);
  omni_pump(pool, NULL, rings);
}

void omni_job_cancel(omni_job *job, omni_cancel why, omni_rings *rings) {
  int none = OMNI_CANCEL_NONE;
  if (why != OMNI_CANCEL_TIMEOUT && job->call == NULL) { /* nobody will have it: the trace alone keeps the job */
    omni_blob_unref(job->response);
    job->response = NULL;
  }
  if (job->state == JOB_ENDED || !atomic_compare_exchange_strong(&job->cancel, &none, (int)why)) return;
  if (job->state != JOB_STARTED)
    cancel_waiting(job, rings);
  else if (job->worker != NULL)
    omni_ring_worker(job->worker, rings);
  else
    omni_ring_home(job->run->pool, rings);
}

bool omni_job_pass(omni_job *job, uint64_t now, omni_rings *rings) {
  if (job->state != JOB_STARTED || job->deadline == 0 || now < job->deadline) return false;
  char text[160];
  snprintf(text, sizeof text, "tool %s did not end in time", omni_job_name(job));
  bool run_over = job->deadline == job->run->options.deadline;
  omni_job_publish(job, omni_error_response(run_over ? "EDEADLINE" : "ETIMEDOUT", text), rings);
  omni_job_cancel(job, OMNI_CANCEL_TIMEOUT, rings);
  return true;
}

void omni_job_expire(omni_job *job) {
  omni_rings rings = {0};
  omni_mutex *mutex = &job->run->pool->mutex;
  omni_mutex_lock(mutex);
  omni_job_pass(job, omni_sys_now(), &rings);
  omni_mutex_unlock(mutex);
  omni_rings_flush(&rings);
}

/* ---- reading ---- */

omni_pool *omni_job_pool(const omni_job *job) { return job->run->pool; }
uint32_t omni_job_tool(const omni_job *job) { return job->tool; }
const char *omni_job_name(const omni_job *job) { return omni_job_spec(job)->spec.name; }
const omni_blob *omni_job_args(const omni_job *job) { return job->args; }
omni_cancel omni_job_cancelled(const omni_job *job) { return (omni_cancel)atomic_load(&job->cancel); }
uint64_t omni_job_deadline(const omni_job *job) { return job->deadline; }
void omni_job_set_user(omni_job *job, void *user) { job->user = user; }
void *omni_job_user(const omni_job *job) { return job->user; }
