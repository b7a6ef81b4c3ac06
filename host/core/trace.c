/* What a run did, step by step, in the order in which the host saw it. */
#include "core/pool_private.h"

#include <stdlib.h>

#define RECORDS_MAX 100000 /* of a run; later ones are counted only */

/* Room for one more; false where there are too many, or no memory. */
static bool make_room(omni_run *run) {
  if (run->record_count < run->record_room) return true;
  if (run->record_count >= RECORDS_MAX) return false;
  size_t room = run->record_room > 0 ? run->record_room * 2 : 16;
  run_record *grown = realloc(run->records, room * sizeof *grown);
  if (grown == NULL) return false;
  run->records = grown;
  run->record_room = room;
  return true;
}

void omni_run_record(omni_run *run, const run_record *record) {
  if (run->users == 0) return; /* nobody is left to read it */
  if (!make_room(run)) {
    run->stats.lost++;
    return;
  }
  run_record *kept = &run->records[run->record_count++];
  *kept = *record;
  omni_blob_ref(kept->args);
  if (kept->job != NULL) omni_job_ref(kept->job);
}

static void free_records(run_record *records, size_t count) {
  for (size_t i = 0; i < count; i++) {
    omni_blob_unref(records[i].args);
    omni_job_unref(records[i].job);
  }
  free(records);
}

/* Records keep jobs and these keep the run's memory, so they go with its last user. */
void omni_run_free_records(omni_run *run) {
  omni_mutex_lock(&run->pool->mutex);
  run_record *records = run->records;
  size_t count = run->record_count;
  run->records = NULL;
  run->record_count = run->record_room = 0;
  omni_mutex_unlock(&run->pool->mutex);
  free_records(records, count);
}

/* A copy with references, so that the visitor may do what it likes. */
static run_record *copy_records(omni_run *run, omni_run_event *events, size_t count) {
  run_record *copy = malloc(count * sizeof *copy);
  if (copy == NULL) return NULL;
  for (size_t i = 0; i < count; i++) {
    const run_record *from = &run->records[i];
    const omni_job *job = from->job;
    copy[i] = *from;
    omni_blob_ref(from->args);
    if (job != NULL) omni_job_ref(from->job);
    events[i] = (omni_run_event){.op = from->op,
                                 .tool = from->tool,
                                 .handle = from->handle,
                                 .line = from->line,
                                 .outcome = from->outcome,
                                 .logical = from->logical,
                                 .failed = from->failed,
                                 .worker = job != NULL ? job->number : 0,
                                 .args = from->args,
                                 .prepared = from->prepared,
                                 .started = job != NULL ? job->started : 0,
                                 .ended = job != NULL ? job->ended : 0,
                                 .resolved = from->resolved};
  }
  return copy;
}

void omni_run_visit(omni_run *run, void (*visit)(void *, const omni_run_event *), void *arg) {
  omni_mutex_lock(&run->pool->mutex);
  size_t count = run->record_count;
  omni_run_event *events = count > 0 ? malloc(count * sizeof *events) : NULL;
  run_record *copy = events != NULL ? copy_records(run, events, count) : NULL;
  omni_mutex_unlock(&run->pool->mutex);
  for (size_t i = 0; copy != NULL && i < count; i++)
    visit(arg, &events[i]);
  if (copy != NULL) free_records(copy, count);
  free(events);
}
