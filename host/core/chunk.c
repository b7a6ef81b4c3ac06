#include "chunk_private.h"

#include <stdlib.h>
#include <string.h>

#define PUT_TIMEOUT UINT64_C(5000000000)

/* ---- life ---- */

omni_chunks *chunk_hold(omni_chunks *a) {
  atomic_fetch_add_explicit(&a->refs, 1, memory_order_relaxed);
  return a;
}

static void chunk_free_list(omni_chunk *list) {
  while (list != NULL) {
    omni_chunk *next = list->next;
    omni_chunk_free(list);
    list = next;
  }
}

void chunk_release(omni_chunks *a) {
  if (atomic_fetch_sub_explicit(&a->refs, 1, memory_order_acq_rel) != 1) return;
  chunk_free_list(a->ready);
  omni_inbox_unref(a->inbox);
  omni_shm_unref(a->shm);
  omni_table_free(&a->senders);
  omni_table_free(&a->regs);
#define X(field, kind, name) omni_metric_unref(a->m.field);
  OMNI_CHUNKS_METRICS(X)
#undef X
  omni_mutex_destroy(&a->lock);
  free(a->stage);
  free(a->src_stage);
  free(a);
}

/* Ids become part of keys and of metric labels. */
static bool stage_ok(const char *id) {
  size_t len = strlen(id);
  if (len == 0 || len > OMNI_CHUNK_STAGE_MAX) return false;
  for (const char *c = id; *c != '\0'; c++)
    if ((unsigned char)*c < ' ' || *c == '"' || *c == '\\') return false;
  return true;
}

bool chunk_req_ok(const char *req) {
  size_t len = strlen(req);
  return len > 0 && len <= OMNI_CHUNK_REQ_MAX;
}

static void make_metrics(omni_chunks *a) {
  static atomic_uint ids;
  char labels[2 * OMNI_CHUNK_STAGE_MAX + 64];
  snprintf(labels, sizeof labels, "adapter=\"%u\",stage=\"%s\",source=\"%s\"", atomic_fetch_add(&ids, 1) + 1,
           a->stage != NULL ? a->stage : "", a->src_stage != NULL ? a->src_stage : "");
#define X(field, kind, name) a->m.field = omni_metric_new(kind, name, labels);
  OMNI_CHUNKS_METRICS(X)
#undef X
}

static void on_event(omni_event *event) {
  omni_chunks *a = omni_container(event, omni_chunks, event);
  omni_mutex_lock(&a->lock);
  void (*woken)(void *) = a->woken;
  void *arg = a->arg;
  omni_mutex_unlock(&a->lock);
  if (woken != NULL) woken(arg);
  chunk_release(a);
}

static void on_event_dropped(omni_event *event) { chunk_release(omni_container(event, omni_chunks, event)); }

static void set_limits(omni_chunks *a, const omni_chunks_opts *opts) {
  a->window = opts->window;
  a->prefetch = opts->window / 2;
  a->keys_max = opts->window - a->prefetch;
  a->budget = opts->budget;
  a->put_timeout = opts->put_timeout > 0 ? opts->put_timeout : PUT_TIMEOUT;
}

omni_err omni_chunks_new(const omni_chunks_opts *opts, omni_chunks **adapter) {
  *adapter = NULL;
  if (opts->stage_id != NULL && !stage_ok(opts->stage_id)) return OMNI_EINVAL;
  if (opts->src_stage_id != NULL && !stage_ok(opts->src_stage_id)) return OMNI_EINVAL;
  omni_chunks *a = calloc(1, sizeof *a);
  if (a == NULL) return OMNI_ENOMEM;
  a->stage = opts->stage_id != NULL ? strdup(opts->stage_id) : NULL;
  a->src_stage = opts->src_stage_id != NULL ? strdup(opts->src_stage_id) : NULL;
  if ((opts->stage_id != NULL && a->stage == NULL) || (opts->src_stage_id != NULL && a->src_stage == NULL)) {
    free(a->stage);
    free(a->src_stage);
    free(a);
    return OMNI_ENOMEM;
  }
  atomic_init(&a->handles, 1);
  atomic_init(&a->refs, 1);
  omni_mutex_init(&a->lock);
  omni_event_init(&a->event, on_event, on_event_dropped);
  a->shm = omni_shm_ref(opts->connector);
  set_limits(a, opts);
  a->tag = opts->tag;
  a->build = opts->build;
  a->build_ud = opts->build_ud;
  a->build_free = opts->build_free;
  make_metrics(a);
  *adapter = a;
  return OMNI_OK;
}

uint32_t omni_chunks_tag(const omni_chunks *a) { return a->tag; }

omni_chunks *omni_chunks_ref(omni_chunks *a) {
  atomic_fetch_add_explicit(&a->handles, 1, memory_order_relaxed);
  return a;
}

void omni_chunks_unref(omni_chunks *a) {
  if (a == NULL || atomic_fetch_sub_explicit(&a->handles, 1, memory_order_acq_rel) != 1) return;
  omni_chunks_stop(a);
  chunk_release(a);
}

/* ---- the end ---- */

/* Under the lock. */
static void kill_all(omni_chunks *a, chunk_sender **senders, chunk_reg **regs) {
  for (omni_node *node = omni_table_each(&a->senders, NULL), *next; node != NULL; node = next) {
    next = omni_table_each(&a->senders, node);
    chunk_sender_kill(omni_container(node, chunk_sender, node), senders);
  }
  for (omni_node *node = omni_table_each(&a->regs, NULL), *next; node != NULL; node = next) {
    next = omni_table_each(&a->regs, node);
    chunk_reg_kill(omni_container(node, chunk_reg, node), regs);
  }
}

void omni_chunks_stop(omni_chunks *a) {
  chunk_sender *senders = NULL;
  chunk_reg *regs = NULL;
  omni_mutex_lock(&a->lock);
  if (a->stopped) {
    omni_mutex_unlock(&a->lock);
    return;
  }
  a->stopped = true;
  kill_all(a, &senders, &regs);
  bool saving = a->saving, watching = a->watching;
  omni_mutex_unlock(&a->lock);
  chunk_senders_let_go(senders);
  chunk_regs_let_go(regs);
  if (saving)
    chunk_save_farewell(a);
  else if (a->build_free != NULL)
    a->build_free(a->build_ud);
  if (watching) omni_watch_release();
  chunk_wake(a);
}

bool omni_chunks_stopped(omni_chunks *a) {
  omni_mutex_lock(&a->lock);
  bool stopped = a->stopped;
  omni_mutex_unlock(&a->lock);
  return stopped;
}

bool omni_chunks_hopeful(omni_chunks *a) {
  omni_mutex_lock(&a->lock);
  bool working = !a->stopped && (a->senders.count + a->regs.count > 0 || atomic_load(&a->handles) > 1);
  /* What was committed last may have ended the last registration, with its wake still on the way. */
  bool hopeful = working || a->ready != NULL || atomic_load(&a->event.queued);
  omni_mutex_unlock(&a->lock);
  return hopeful;
}

void omni_chunks_join_threads(void) {
  chunk_save_join();
  omni_watch_join();
}

omni_err chunk_use_watch(omni_chunks *a) {
  if (a->watching) return OMNI_OK;
  omni_err err = omni_watch_start();
  a->watching = err == OMNI_OK;
  return err;
}

/* ---- the consumer ---- */

omni_err omni_chunks_bind(omni_chunks *a, omni_inbox *inbox, void (*woken)(void *), void *arg) {
  omni_mutex_lock(&a->lock);
  if (a->inbox != NULL) {
    omni_mutex_unlock(&a->lock);
    return OMNI_EEXIST;
  }
  a->inbox = omni_inbox_ref(inbox);
  a->woken = woken;
  a->arg = arg;
  bool due = a->ready != NULL || a->stopped; /* what came before rang nobody, nor did the stop */
  a->notified = a->ready != NULL;
  omni_mutex_unlock(&a->lock);
  if (due) chunk_wake(a);
  return OMNI_OK;
}

void omni_chunks_unbind(omni_chunks *a) {
  omni_mutex_lock(&a->lock);
  omni_inbox *inbox = a->inbox;
  a->inbox = NULL;
  a->woken = NULL;
  a->arg = NULL;
  omni_mutex_unlock(&a->lock);
  omni_inbox_unref(inbox);
}

void chunk_wake(omni_chunks *a) {
  omni_mutex_lock(&a->lock);
  omni_inbox *inbox = a->inbox != NULL ? omni_inbox_ref(a->inbox) : NULL;
  omni_mutex_unlock(&a->lock);
  if (inbox == NULL) return;
  chunk_hold(a);
  if (omni_inbox_post(inbox, &a->event) != OMNI_POSTED) chunk_release(a);
  omni_inbox_unref(inbox);
}

/* One wake per poll: after it the consumer knows that something is ready. The poll swaps and lowers the flag under the
 * same lock, so whatever comes later rings again and no second look is needed. */
bool chunk_commit(omni_chunks *a, omni_chunk *chunk) {
  chunk->next = NULL;
  if (a->ready_tail != NULL)
    a->ready_tail->next = chunk;
  else
    a->ready = chunk;
  a->ready_tail = chunk;
  bool ring = !a->notified;
  a->notified = true;
  return ring;
}

omni_chunk *omni_chunks_poll(omni_chunks *a) {
  omni_mutex_lock(&a->lock);
  omni_chunk *list = a->ready;
  a->ready = a->ready_tail = NULL;
  a->notified = false;
  omni_mutex_unlock(&a->lock);
  return list;
}

bool omni_chunks_pending(omni_chunks *a) {
  omni_mutex_lock(&a->lock);
  bool pending = a->ready != NULL;
  omni_mutex_unlock(&a->lock);
  return pending;
}

omni_chunk *chunk_new(const char *req) {
  size_t len = strlen(req) + 1;
  omni_chunk *chunk = calloc(1, sizeof *chunk + len);
  if (chunk != NULL) memcpy(chunk->req, req, len);
  return chunk;
}

omni_chunk *chunk_new_error(const char *req, omni_err err, const char *text, bool sender) {
  omni_chunk *chunk = chunk_new(req);
  if (chunk == NULL) return NULL;
  chunk->err = err;
  chunk->text = strdup(text);
  chunk->sender = sender;
  return chunk;
}

void omni_chunk_free(omni_chunk *chunk) {
  omni_blob_unref(chunk->data);
  free(chunk->text);
  free(chunk);
}

/* ---- keys ---- */

size_t chunk_key(char key[OMNI_CHUNK_KEY_MAX], const char *req, const char *stage, uint64_t id) {
  return (size_t)snprintf(key, OMNI_CHUNK_KEY_MAX, "%s_%s_%llu", req, stage, (unsigned long long)id);
}

void chunk_watch_name(omni_chunks *a, omni_watch_key *watch, const char *req, const char *stage, uint64_t id) {
  char key[OMNI_CHUNK_KEY_MAX], name[OMNI_SHM_NAME_MAX + 1];
  omni_shm_name(a->shm, key, chunk_key(key, req, stage, id), name);
  snprintf(watch->name, sizeof watch->name, "%s.lock", name);
}

/* ---- figures ---- */

void omni_chunks_read_stats(omni_chunks *a, omni_chunks_stats *stats) {
#define X(field, kind, name) stats->field = (uint64_t)omni_metric_value(a->m.field);
  OMNI_CHUNKS_METRICS(X)
#undef X
}
