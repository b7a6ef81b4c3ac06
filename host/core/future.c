/* Runs: their futures, prepare, and their end. */
#include "core/future.h"

#include "core/log.h"
#include "core/pool_private.h"

#include <stdlib.h>
#include <string.h>

#define NAME_EVERY ((uint64_t)1000000000) /* ns between two lines about tools that do not stop */

/* ---- memory and users ---- */

omni_run *omni_run_ref_memory(omni_run *run) {
  atomic_fetch_add_explicit(&run->refs, 1, memory_order_relaxed);
  return run;
}

void omni_run_unref_memory(omni_run *run) {
  if (atomic_fetch_sub_explicit(&run->refs, 1, memory_order_acq_rel) != 1) return;
  omni_table_free(&run->futures);
  omni_inbox_unref(run->quiet_inbox);
  omni_cond_destroy(&run->cond);
  omni_pool_unref(run->pool);
  free(run);
}

static void on_quiet(omni_event *event) {
  omni_run *run = omni_container(event, omni_run, quiet_bell);
  run->quiet_woken(run->quiet_arg, run->quiet_token);
  omni_run_unref_memory(run);
}

static void on_quiet_dropped(omni_event *event) { omni_run_unref_memory(omni_container(event, omni_run, quiet_bell)); }

omni_run *omni_run_open(omni_pool *pool, const omni_run_options *options) {
  omni_run *run = calloc(1, sizeof *run);
  if (run == NULL) return NULL;
  atomic_init(&run->refs, 1);
  run->users = 1;
  run->pool = omni_pool_ref(omni_pool_use(pool));
  run->options = *options;
  if (run->options.pending == 0) run->options.pending = OMNI_PENDING;
  omni_list_init(&run->live);
  omni_cond_init(&run->cond);
  omni_event_init(&run->quiet_bell, on_quiet, on_quiet_dropped);
  return run;
}

omni_run *omni_run_ref(omni_run *run) {
  omni_mutex_lock(&run->pool->mutex);
  run->users++;
  omni_mutex_unlock(&run->pool->mutex);
  return omni_run_ref_memory(run);
}

void omni_run_let_go(omni_run *run) {
  omni_mutex_lock(&run->pool->mutex);
  bool first = !run->let_go;
  run->let_go = true;
  omni_mutex_unlock(&run->pool->mutex);
  if (first) omni_pool_release(run->pool);
}

void omni_run_unref(omni_run *run) {
  omni_mutex_lock(&run->pool->mutex);
  bool last = --run->users == 0;
  omni_mutex_unlock(&run->pool->mutex);
  if (last) {
    omni_run_shut(run);
    omni_run_free_records(run);
    omni_run_let_go(run);
  }
  omni_run_unref_memory(run);
}

omni_pool *omni_run_pool(omni_run *run) { return run->pool; }

/* ---- the table of futures ---- */

omni_job *omni_run_find(omni_run *run, uint32_t handle) {
  for (omni_node *node = omni_table_first(&run->futures, handle); node != NULL; node = omni_table_next(node)) {
    omni_job *job = omni_container(node, omni_job, node);
    if (job->handle == handle) return job;
  }
  return NULL;
}

void omni_run_forget(omni_run *run, omni_job *job) {
  omni_table_remove(&run->futures, &job->node);
  run->stats.pending--;
}

static void note(omni_run *run, const omni_job *job, omni_run_op op, const char *outcome) {
  omni_run_record(run, &(run_record){.op = op,
                                     .tool = job->tool,
                                     .handle = job->handle,
                                     .outcome = outcome,
                                     .args = job->args,
                                     .job = (omni_job *)job,
                                     .prepared = job->prepared,
                                     .resolved = omni_sys_now()});
}

void omni_run_written(omni_run *run, omni_rings *rings) {
  run->stats.epoch++;
  for (omni_node *node = omni_table_each(&run->futures, NULL); node != NULL;
       node = omni_table_each(&run->futures, node)) {
    omni_job *job = omni_container(node, omni_job, node);
    if (job->epoch + 1 == run->stats.epoch) note(run, job, OMNI_OP_CANCEL, "stale");
    omni_job_cancel(job, OMNI_CANCEL_STALE, rings);
  }
}

/* A future that nobody will claim. */
static void discard(omni_run *run, omni_job *job, omni_rings *rings) {
  omni_run_forget(run, job);
  run->stats.cancelled++;
  note(run, job, OMNI_OP_CANCEL, "cancelled");
  omni_job_cancel(job, OMNI_CANCEL_RUN, rings);
  omni_job_unref(job);
}

/* ---- prepare ---- */

omni_err omni_run_over(const omni_run *run, uint64_t now) {
  if (run->closed) return OMNI_ECLOSED;
  if (run->cancelled) return OMNI_ECANCELED;
  return run->options.deadline != 0 && now >= run->options.deadline ? OMNI_EDEADLINE : OMNI_OK;
}

/* NULL, or why nothing can start early. */
static const char *refused(const omni_run *run, uint32_t tool, uint64_t now) {
  if (!run->options.enabled) return "off";
  if (omni_run_over(run, now) != OMNI_OK) return "over";
  if (tool >= run->pool->tool_count) return "unknown";
  if (!run->pool->tools[tool].spec.early) return "not_early";
  if (run->stats.pending >= run->options.pending || run->next == UINT32_MAX) return "pending";
  if (run->options.calls != 0 && run->stats.calls + run->stats.pending >= run->options.calls) return "budget";
  return NULL;
}

/* Registers the future, then starts it; NULL and why not. A worker may end before this returns: the program must find
 * the handle all the same. */
static omni_job *start_early(omni_run *run, uint32_t tool, omni_blob *args, uint64_t now, const char **why,
                             omni_rings *rings) {
  omni_job *job = omni_job_new(run, tool, args);
  *why = "memory";
  if (job == NULL) return NULL;
  job->prepared = now;
  job->handle = run->next + 1;
  if (omni_table_add(&run->futures, &omni_job_ref(job)->node, job->handle)) {
    run->stats.pending++;
    *why = omni_dispatch_early(run->pool, job, rings);
    if (*why == NULL) {
      run->next++;
      return job;
    }
    omni_run_forget(run, job);
  }
  job->handle = 0;
  omni_job_unref(job);
  omni_job_end(job, rings);
  return NULL;
}

uint32_t omni_run_prepare(omni_run *run, uint32_t tool, omni_blob *args, int line) {
  omni_rings rings = {0};
  omni_mutex_lock(&run->pool->mutex);
  uint64_t now = omni_sys_now();
  const char *why = refused(run, tool, now);
  omni_job *job = why == NULL ? start_early(run, tool, args, now, &why, &rings) : NULL;
  *(job != NULL ? &run->stats.prepared : &run->stats.refused) += 1;
  if (job != NULL) omni_pool_count(run->pool, POOL_PREPARED, 1);
  omni_run_record(run, &(run_record){.op = OMNI_OP_PREPARE,
                                     .tool = tool,
                                     .handle = job != NULL ? job->handle : 0,
                                     .line = line,
                                     .outcome = why != NULL ? why : "prepared",
                                     .args = args,
                                     .job = job,
                                     .prepared = now});
  uint32_t handle = job != NULL ? job->handle : 0;
  omni_mutex_unlock(&run->pool->mutex);
  omni_rings_flush(&rings);
  omni_blob_unref(args);
  return handle;
}

/* ---- cancel and close ---- */

void omni_run_error_delivered(omni_run *run, const uint32_t *later, size_t count) {
  omni_rings rings = {0};
  omni_mutex_lock(&run->pool->mutex);
  for (size_t i = 0; i < count; i++) {
    omni_job *job = omni_run_find(run, later[i]);
    if (job != NULL) discard(run, job, &rings);
  }
  omni_mutex_unlock(&run->pool->mutex);
  omni_rings_flush(&rings);
}

void omni_run_cancel_handle(omni_run *run, uint32_t handle) { omni_run_error_delivered(run, &handle, 1); }

/* Under the lock: nothing of this run goes on. */
static void cancel_all(omni_run *run, omni_rings *rings) {
  for (omni_node *node; (node = omni_table_each(&run->futures, NULL)) != NULL;)
    discard(run, omni_container(node, omni_job, node), rings);
  /* From the start after each, for a cancel can end the job, and those that wait for it. */
  for (omni_link *link = run->live.next; link != &run->live;) {
    omni_job *job = omni_container(link, omni_job, live);
    if (job->call != NULL) omni_call_ring(job->call, rings);
    bool fresh = omni_job_cancelled(job) == OMNI_CANCEL_NONE;
    link = link->next;
    if (!fresh) continue;
    omni_job_cancel(job, OMNI_CANCEL_RUN, rings);
    link = run->live.next;
  }
  if (run->stats.active == 0) omni_run_wake_quiet(run, rings);
  omni_run_wake(run, rings);
}

void omni_run_cancel(omni_run *run) {
  omni_rings rings = {0};
  omni_mutex_lock(&run->pool->mutex);
  run->cancelled = true;
  cancel_all(run, &rings);
  omni_mutex_unlock(&run->pool->mutex);
  omni_rings_flush(&rings);
}

void omni_run_shut(omni_run *run) {
  omni_rings rings = {0};
  omni_mutex_lock(&run->pool->mutex);
  if (!run->closed) {
    run->closed = true;
    cancel_all(run, &rings);
  }
  omni_mutex_unlock(&run->pool->mutex);
  omni_rings_flush(&rings);
}

/* ---- until no worker holds a job ---- */

/* Under the lock. */
static void write_names(omni_run *run, char *text, size_t size) {
  size_t len = 0;
  text[0] = '\0';
  for (omni_link *link = run->live.next; link != &run->live && len < size; link = link->next) {
    const char *name = omni_job_name(omni_container(link, omni_job, live));
    len += (size_t)snprintf(text + len, size - len, "%s%s", len > 0 ? ", " : "", name);
  }
}

void omni_run_names(omni_run *run, char *text, size_t size) {
  omni_mutex_lock(&run->pool->mutex);
  write_names(run, text, size);
  omni_mutex_unlock(&run->pool->mutex);
}

void omni_run_close(omni_run *run) {
  omni_run_shut(run);
  omni_mutex_lock(&run->pool->mutex);
  while (run->stats.active > 0) {
    run->blocked++;
    bool woken = omni_cond_wait_until(&run->cond, &run->pool->mutex, omni_sys_now() + NAME_EVERY);
    run->blocked--;
    char names[200];
    write_names(run, names, sizeof names);
    if (!woken && run->stats.active > 0)
      omni_log(OMNI_LOG_WARN, "tools that ignore their cancel hold a run: %s", names);
  }
  omni_mutex_unlock(&run->pool->mutex);
}

void omni_run_wake(omni_run *run, omni_rings *rings) {
  if (run->blocked > 0) omni_rings_add(rings, (omni_ring){.run = omni_run_ref_memory(run)});
}

void omni_run_wake_quiet(omni_run *run, omni_rings *rings) {
  omni_run_wake(run, rings);
  if (run->quiet_inbox == NULL) return;
  omni_run_ref_memory(run);
  omni_rings_add(rings, (omni_ring){.inbox = run->quiet_inbox, .event = &run->quiet_bell});
}

bool omni_run_quiet(omni_run *run) {
  omni_mutex_lock(&run->pool->mutex);
  bool quiet = run->stats.active == 0;
  omni_mutex_unlock(&run->pool->mutex);
  return quiet;
}

bool omni_run_sleep(omni_run *run, omni_inbox *inbox, void (*woken)(void *, uint64_t), void *arg, uint64_t token) {
  omni_mutex_lock(&run->pool->mutex);
  run->quiet_woken = woken;
  run->quiet_arg = arg;
  run->quiet_token = token;
  if (run->quiet_inbox == NULL) run->quiet_inbox = omni_inbox_ref(inbox);
  bool sleeps = run->stats.active > 0;
  omni_mutex_unlock(&run->pool->mutex);
  return sleeps;
}

void omni_run_read_stats(omni_run *run, omni_run_stats *stats) {
  omni_mutex_lock(&run->pool->mutex);
  *stats = run->stats;
  omni_mutex_unlock(&run->pool->mutex);
}
