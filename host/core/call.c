/* Resolve: a future is claimed, or an ordinary call made, and its response delivered. */
#include "core/pool_private.h"

#include <stdlib.h>
#include <string.h>

/* ---- life ---- */

static void call_unref(omni_call *call) {
  if (atomic_fetch_sub_explicit(&call->refs, 1, memory_order_acq_rel) != 1) return;
  omni_blob_unref(call->response);
  omni_blob_unref(call->record.args);
  omni_inbox_unref(call->inbox);
  omni_run_unref_memory(call->run);
  free(call);
}

static void on_bell(omni_event *event) {
  omni_call *call = omni_container(event, omni_call, bell);
  call->woken(call->arg, call->token);
  call_unref(call);
}

static void on_dropped(omni_event *event) { call_unref(omni_container(event, omni_call, bell)); }

static omni_call *call_new(omni_run *run, uint32_t handle, uint32_t tool, omni_blob *args, int line) {
  omni_call *call = calloc(1, sizeof *call);
  if (call == NULL) {
    omni_blob_unref(args);
    return NULL;
  }
  atomic_init(&call->refs, 1);
  call->run = omni_run_ref_memory(run);
  omni_event_init(&call->bell, on_bell, on_dropped);
  call->record = (run_record){.op = handle != 0 ? OMNI_OP_RESOLVE : OMNI_OP_CALL,
                              .tool = tool,
                              .handle = handle,
                              .line = line,
                              .outcome = "called",
                              .args = args,
                              .logical = true};
  return call;
}

void omni_call_ring(omni_call *call, omni_rings *rings) {
  omni_run_wake(call->run, rings);
  if (!call->asleep) return;
  call->asleep = false;
  atomic_fetch_add(&call->refs, 1);
  omni_rings_add(rings, (omni_ring){.inbox = call->inbox, .event = &call->bell});
}

/* ---- settling: under the lock ---- */

/* The call's job is the call's no more; what was begun for it goes on only if it is done. */
static void let_go(omni_call *call, omni_cancel why, omni_rings *rings) {
  omni_job *job = call->job;
  call->job = NULL;
  if (job == NULL) return;
  job->call = NULL;
  if (!job->done) omni_job_cancel(job, why, rings);
  omni_job_unref(job);
}

static bool is_error(const omni_blob *response) {
  return response == NULL || (response->len > 8 && memcmp(response->data, "{\"code\":", 8) == 0);
}

/* Takes over the response. */
static void settle(omni_call *call, omni_err err, omni_blob *response, omni_rings *rings) {
  call->settled = true;
  call->err = err;
  call->response = response;
  call->record.job = call->job;
  call->record.failed = is_error(response);
  call->record.resolved = omni_sys_now();
  omni_run_record(call->run, &call->record);
  let_go(call, OMNI_CANCEL_RUN, rings);
}

/* The run itself ended, or its budget: no call of the program. */
static void settle_over(omni_call *call, omni_err err, omni_rings *rings) {
  call->record.logical = false;
  call->record.outcome = err == OMNI_ECALLS ? "budget" : "over";
  settle(call, err, omni_error_response(omni_err_name(err), omni_err_text(err)), rings);
}

static void settle_error(omni_call *call, const char *outcome, const char *code, const char *text, omni_rings *rings) {
  call->record.outcome = outcome;
  settle(call, OMNI_OK, omni_error_response(code, text), rings);
}

/* Looks whether it is settled by now. */
static bool look(omni_call *call, omni_rings *rings) {
  if (call->settled) return true;
  uint64_t now = omni_sys_now();
  omni_err over = omni_run_over(call->run, now);
  bool cut = over != OMNI_OK && omni_job_cancelled(call->job) == OMNI_CANCEL_RUN; /* by the run's end */
  /* What was done in time is delivered, whenever the caller comes to look. */
  if ((call->job->done && !cut) || (over == OMNI_OK && omni_job_pass(call->job, now, rings))) {
    omni_blob *response = call->job->response;
    call->job->response = NULL; /* delivered once: nobody else can ask for it */
    settle(call, response != NULL ? OMNI_OK : OMNI_ENOMEM, response, rings);
  } else if (over != OMNI_OK) {
    settle_over(call, over, rings);
  }
  return call->settled;
}

/* ---- claim ---- */

static const char *compare(const omni_call *call, const omni_job *job) {
  const omni_blob *a = call->record.args, *b = job->args;
  if (job->epoch != call->run->stats.epoch) return "stale";
  if (job->tool != call->record.tool || a->len != b->len || memcmp(a->data, b->data, a->len) != 0) return "mismatch";
  omni_cancel cancel = omni_job_cancelled(job);
  /* A tool that took too long early is too slow in place as well: an early failure is never retried. */
  return cancel == OMNI_CANCEL_NONE || cancel == OMNI_CANCEL_TIMEOUT ? "adopted" : "preempted";
}

static void count(omni_run *run, const char *outcome) {
  if (outcome[0] == 'a') run->stats.adopted++;
  if (outcome[0] == 'm') run->stats.mismatch++;
  if (outcome[0] == 's') run->stats.stale++;
}

/* True if the future is the call's now. */
static bool claim(omni_call *call, omni_job *job, omni_rings *rings) {
  omni_run_forget(call->run, job);
  call->record.outcome = compare(call, job);
  call->record.prepared = job->prepared;
  count(call->run, call->record.outcome);
  if (call->record.outcome[0] != 'a') {
    omni_job_cancel(job, OMNI_CANCEL_MISS, rings);
    omni_job_unref(job);
    return false;
  }
  omni_job_claim(job);
  omni_pool_count(call->run->pool, POOL_ADOPTED, 1);
  call->job = job; /* the table's reference */
  job->call = call;
  return true;
}

/* One more logical call; false beyond the budget. */
static bool charge(omni_run *run) {
  if (run->options.calls != 0 && run->stats.calls >= run->options.calls) return false;
  run->stats.calls++;
  return true;
}

/* ---- the ordinary call ---- */

static void call_ordinary(omni_call *call, omni_rings *rings) {
  omni_run *run = call->run;
  omni_pool *pool = run->pool;
  if (call->record.tool >= pool->tool_count) {
    settle_error(call, "unknown", "ENOENT", "there is no such tool", rings);
    return;
  }
  const omni_tool *spec = &pool->tools[call->record.tool].spec;
  if (spec->home && pool->home == NULL) {
    settle_error(call, "closed", "ECLOSED", "the script that this tool belongs to has ended", rings);
    return;
  }
  if (!spec->early) omni_run_written(run, rings);
  omni_job *job = omni_job_new(run, call->record.tool, call->record.args);
  if (job == NULL) {
    settle(call, OMNI_ENOMEM, NULL, rings);
    return;
  }
  job->writes = !spec->early;
  job->handle = call->record.handle;
  call->job = omni_job_ref(job);
  job->call = call;
  omni_dispatch(pool, job, rings);
}

static void begin(omni_call *call, omni_rings *rings) {
  omni_run *run = call->run;
  uint32_t handle = call->record.handle;
  omni_err over = omni_run_over(run, omni_sys_now());
  if (over != OMNI_OK) {
    settle_over(call, over, rings);
    return;
  }
  omni_job *future = handle != 0 ? omni_run_find(run, handle) : NULL;
  if (handle != 0 && future == NULL) {
    run->stats.unknown++;
    call->record.logical = false;
    settle_error(call, "unknown", "ENOENT", "unknown or consumed future", rings);
    return;
  }
  bool adopted = future != NULL && claim(call, future, rings);
  if (!charge(run))
    settle_over(call, OMNI_ECALLS, rings);
  else if (!adopted)
    call_ordinary(call, rings);
}

omni_call *omni_call_begin(omni_run *run, uint32_t handle, uint32_t tool, omni_blob *args, int line) {
  omni_call *call = call_new(run, handle, tool, args, line);
  if (call == NULL) return NULL;
  omni_rings rings = {0};
  omni_mutex_lock(&run->pool->mutex);
  begin(call, &rings);
  omni_mutex_unlock(&run->pool->mutex);
  omni_rings_flush(&rings);
  return call;
}

/* ---- waiting ---- */

/* When the caller has to look again by itself; 0 = never. */
static uint64_t look_again(const omni_call *call) {
  uint64_t run = call->run->options.deadline, job = call->job != NULL ? call->job->deadline : 0;
  return job != 0 && (run == 0 || job < run) ? job : run;
}

bool omni_call_take(omni_call *call, omni_err *err, omni_blob **response) {
  omni_rings rings = {0};
  omni_mutex_lock(&call->run->pool->mutex);
  bool settled = look(call, &rings);
  if (settled) {
    *err = call->err;
    *response = call->response;
    call->response = NULL;
  }
  omni_mutex_unlock(&call->run->pool->mutex);
  omni_rings_flush(&rings);
  return settled;
}

bool omni_call_sleep(omni_call *call, omni_inbox *inbox, void (*woken)(void *, uint64_t), void *arg, uint64_t token,
                     uint64_t *until) {
  omni_rings rings = {0};
  omni_mutex_lock(&call->run->pool->mutex);
  bool settled = look(call, &rings);
  if (!settled) {
    if (call->inbox == NULL) call->inbox = omni_inbox_ref(inbox);
    call->woken = woken;
    call->arg = arg;
    call->token = token;
    call->asleep = true;
    *until = look_again(call);
  }
  omni_mutex_unlock(&call->run->pool->mutex);
  omni_rings_flush(&rings);
  return !settled;
}

bool omni_call_hope(omni_call *call) {
  omni_mutex_lock(&call->run->pool->mutex);
  const omni_job *job = call->job;
  /* A task of the home that has started is this loop's own: it must find its own reasons to hope. */
  bool hope = job != NULL && !(job->state == JOB_STARTED && omni_job_spec(job)->spec.home);
  omni_mutex_unlock(&call->run->pool->mutex);
  return hope;
}

void omni_call_unref(omni_call *call) {
  omni_rings rings = {0};
  omni_mutex_lock(&call->run->pool->mutex);
  call->asleep = false;
  let_go(call, OMNI_CANCEL_RUN, &rings);
  omni_mutex_unlock(&call->run->pool->mutex);
  omni_rings_flush(&rings);
  call_unref(call);
}

/* Blocks until it is settled. */
static void await(omni_call *call, omni_rings *rings) {
  omni_run *run = call->run;
  while (!look(call, rings)) {
    uint64_t until = look_again(call);
    run->blocked++;
    if (rings->count > 0) { /* somebody is to be woken first */
      omni_mutex_unlock(&run->pool->mutex);
      omni_rings_flush(rings);
      omni_mutex_lock(&run->pool->mutex);
    } else if (until == 0) {
      omni_cond_wait(&run->cond, &run->pool->mutex);
    } else {
      omni_cond_wait_until(&run->cond, &run->pool->mutex, until);
    }
    run->blocked--;
  }
}

omni_err omni_run_resolve(omni_run *run, uint32_t handle, uint32_t tool, omni_blob *args, int line,
                          omni_blob **response) {
  *response = NULL;
  omni_call *call = call_new(run, handle, tool, args, line);
  if (call == NULL) return OMNI_ENOMEM;
  omni_rings rings = {0};
  omni_mutex_lock(&run->pool->mutex);
  begin(call, &rings);
  await(call, &rings);
  omni_err err = call->err;
  *response = call->response;
  call->response = NULL;
  omni_mutex_unlock(&run->pool->mutex);
  omni_rings_flush(&rings);
  call_unref(call);
  return err;
}
