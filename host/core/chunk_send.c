#include "chunk_private.h"

#include <stdlib.h>
#include <string.h>

/* ---- items ---- */

void chunk_item_free(chunk_item *item) {
  if (item == NULL) return;
  omni_blob_unref(item->snapshot);
  omni_blob_unref(item->payload);
  free(item);
}

static chunk_item *item_new(omni_blob *snapshot, bool is_final) {
  chunk_item *item = calloc(1, sizeof *item);
  if (item == NULL) return NULL;
  item->snapshot = snapshot;
  item->is_final = is_final;
  item->cost = OMNI_CHUNK_ENVELOPE + (snapshot != NULL ? snapshot->len : 0);
  return item;
}

static void drop_item(chunk_sender *s, chunk_item *item) {
  chunk_credit_unqueued(s, item);
  omni_metric_add(s->a->m.dropped, 1);
  chunk_item_free(item);
}

void chunk_sender_drop_items(chunk_sender *s) {
  for (chunk_item *item = s->head, *next; item != NULL; item = next) {
    next = item->next;
    drop_item(s, item);
  }
  s->head = s->tail = NULL;
  if (s->where == CHUNK_BUSY || s->current == NULL) return;
  drop_item(s, s->current);
  s->current = NULL;
}

/* ---- senders ---- */

chunk_sender *chunk_sender_find(omni_chunks *a, const char *req) {
  for (omni_node *node = omni_table_first(&a->senders, omni_hash(req, strlen(req))); node != NULL;
       node = omni_table_next(node)) {
    chunk_sender *s = omni_container(node, chunk_sender, node);
    if (strcmp(s->req, req) == 0) return s;
  }
  return NULL;
}

void chunk_sender_ref(chunk_sender *s) { atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed); }

void chunk_sender_unref(chunk_sender *s) {
  if (atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) != 1) return;
  omni_chunks *a = s->a;
  chunk_item_free(s->current);
  free(s->sizes);
  free(s);
  chunk_release(a);
}

/* Under the lock. */
static chunk_sender *sender_new(omni_chunks *a, const char *req) {
  size_t len = strlen(req);
  chunk_sender *s = calloc(1, sizeof *s + len + 1);
  if (s == NULL) return NULL;
  memcpy(s->req, req, len + 1);
  if (!omni_table_add(&a->senders, &s->node, omni_hash(req, len))) {
    free(s);
    return NULL;
  }
  atomic_init(&s->refs, 1);
  s->a = chunk_hold(a);
  chunk_credit_init(s);
  omni_metric_add(a->m.senders, 1);
  return s;
}

void chunk_sender_kill(chunk_sender *s, chunk_sender **gone) {
  omni_chunks *a = s->a;
  omni_table_remove(&a->senders, &s->node);
  if (!s->done) omni_metric_add(a->m.senders, -1);
  bool ours = chunk_save_withdraw(s);
  chunk_sender_drop_items(s);
  chunk_credit_forget(s);
  s->dead = true;
  s->gone_next = *gone;
  *gone = s;
  /* Never the last one: the table's is dropped when the lock is free. */
  if (ours) chunk_sender_unref(s);
}

/* Tries that found the lock held may have left a lock file for the next id. */
static void remove_tried(chunk_sender *s) {
  char key[OMNI_CHUNK_KEY_MAX];
  (void)omni_shm_discard(s->a->shm, key, chunk_key(key, s->req, s->a->stage, s->next_id));
}

void chunk_senders_let_go(chunk_sender *gone) {
  while (gone != NULL) {
    chunk_sender *next = gone->gone_next;
    if (gone->tries > 0) remove_tried(gone);
    omni_watch_drop(&gone->key);
    chunk_sender_unref(gone);
    gone = next;
  }
}

/* Under the lock: the live sender of a request, made where there is none. One that is done gives way: its request
 * begins anew, with chunk 0. */
static chunk_sender *sender_get(omni_chunks *a, const char *req, chunk_sender **gone) {
  chunk_sender *s = chunk_sender_find(a, req);
  if (s != NULL && s->done) {
    chunk_sender_kill(s, gone);
    s = NULL;
  }
  return s != NULL ? s : sender_new(a, req);
}

/* ---- the scheduling thread's calls ---- */

/* Under the lock. */
static omni_err enqueue(omni_chunks *a, const char *req, omni_blob *snapshot, bool is_final, chunk_sender **gone) {
  if (a->stopped) return OMNI_ECLOSED;
  omni_err err = chunk_save_use(a);
  if (err != OMNI_OK) return err;
  chunk_sender *s = sender_get(a, req, gone);
  if (s == NULL) return OMNI_ENOMEM;
  omni_metric_add(a->m.saved, 1);
  if (s->failed != OMNI_OK) {
    omni_blob_unref(snapshot);
    omni_metric_add(a->m.dropped, 1);
    return OMNI_OK;
  }
  chunk_item *item = item_new(snapshot, is_final);
  if (item == NULL) return OMNI_ENOMEM;
  if (s->tail != NULL)
    s->tail->next = item;
  else
    s->head = item;
  s->tail = item;
  chunk_credit_queued(s, item);
  chunk_save_ready(s);
  return OMNI_OK;
}

omni_err omni_chunks_save(omni_chunks *a, const char *req, omni_blob *snapshot, bool is_final) {
  if (a->stage == NULL || !chunk_req_ok(req)) return OMNI_EINVAL;
  chunk_sender *gone = NULL;
  omni_mutex_lock(&a->lock);
  omni_err err = enqueue(a, req, snapshot, is_final, &gone);
  omni_mutex_unlock(&a->lock);
  chunk_senders_let_go(gone);
  return err;
}

void omni_chunks_cancel_sender(omni_chunks *a, const char *req) {
  if (a->stage == NULL || !chunk_req_ok(req)) return;
  omni_mutex_lock(&a->lock);
  chunk_sender *s = chunk_sender_find(a, req);
  if (s == NULL && !a->stopped) s = sender_new(a, req);
  if (s != NULL && !s->done) {
    s->cancelled = true;
    /* What is parked may be dropped now rather than after its timer. */
    chunk_save_hurry(s);
  }
  bool wake = s != NULL && s->waiting;
  omni_mutex_unlock(&a->lock);
  if (wake) chunk_wake(a);
}

/* Keys are consumed in their order, so what is left is the end of the row: from the last one down to the first that is
 * gone. */
static size_t remove_keys(chunk_sender *s) {
  size_t removed = 0;
  for (uint64_t id = s->next_id; id-- > s->low;) {
    char key[OMNI_CHUNK_KEY_MAX];
    omni_err err = omni_shm_discard(s->a->shm, key, chunk_key(key, s->req, s->a->stage, id));
    if (err == OMNI_ENOENT) break;
    if (err == OMNI_OK) removed++;
  }
  return removed;
}

size_t omni_chunks_cleanup_sender(omni_chunks *a, const char *req) {
  if (a->stage == NULL || !chunk_req_ok(req)) return 0;
  chunk_sender *gone = NULL;
  omni_mutex_lock(&a->lock);
  chunk_sender *s = chunk_sender_find(a, req);
  bool wake = s != NULL && s->waiting;
  if (s != NULL) {
    chunk_sender_kill(s, &gone);
    s->removed = true;
  }
  omni_mutex_unlock(&a->lock);
  size_t removed = gone != NULL ? remove_keys(gone) : 0;
  chunk_senders_let_go(gone);
  if (wake) chunk_wake(a);
  return removed;
}
