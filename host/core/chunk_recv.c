#include "chunk_private.h"

#include <stdlib.h>
#include <string.h>

#define TURN_CHUNKS 16      /* chunks of one request before others have their turn */
#define NO_SEGMENT_TRIES 64 /* a lock without a segment: its writer comes back, which an event tells, or is dead */
#define TRANSIENT_TRIES 1000
#define DISCARD_MAX 4096 /* beyond the window: a live sender may go on for ever */

/* ---- registrations ---- */

static chunk_reg *reg_find(omni_chunks *a, const char *req) {
  for (omni_node *node = omni_table_first(&a->regs, omni_hash(req, strlen(req))); node != NULL;
       node = omni_table_next(node)) {
    chunk_reg *reg = omni_container(node, chunk_reg, node);
    if (strcmp(reg->req, req) == 0) return reg;
  }
  return NULL;
}

static void reg_ref(chunk_reg *reg) { atomic_fetch_add_explicit(&reg->refs, 1, memory_order_relaxed); }

void chunk_reg_unref(chunk_reg *reg) {
  if (atomic_fetch_sub_explicit(&reg->refs, 1, memory_order_acq_rel) != 1) return;
  omni_chunks *a = reg->a;
  free(reg);
  chunk_release(a);
}

void chunk_reg_kill(chunk_reg *reg, chunk_reg **gone) {
  omni_chunks *a = reg->a;
  omni_table_remove(&a->regs, &reg->node);
  if (!reg->broken) omni_metric_add(a->m.registered, -1);
  reg->dead = true;
  reg->gone_next = *gone;
  *gone = reg;
}

void chunk_regs_let_go(chunk_reg *gone) {
  while (gone != NULL) {
    chunk_reg *next = gone->gone_next;
    omni_watch_drop(&gone->key);
    chunk_reg_unref(gone);
    gone = next;
  }
}

/* ---- the watch thread ---- */

/* Under the lock: RECV takes the next only while fewer wait in memory, else taking would return credit too early. */
static bool full(const chunk_reg *reg) {
  const omni_chunks *a = reg->a;
  return a->window > 0 && reg->unread >= (a->prefetch > reg->want ? a->prefetch : reg->want);
}

/* Under the lock. What came back from a get is only ours if the registration it was made for still stands. */
static bool current(const chunk_reg *reg) { return reg_find(reg->a, reg->req) == reg && !reg->broken; }

/* Reports the error and stops watching; the registration stays for cleanup. */
static omni_watch_next break_stream(chunk_reg *reg, omni_err err, const char *what) {
  omni_chunks *a = reg->a;
  char text[512];
  snprintf(text, sizeof text, "chunk %llu of request \"%s\": %s", (unsigned long long)reg->next_id, reg->req, what);
  omni_chunk *chunk = chunk_new_error(reg->req, err, text, false);
  omni_mutex_lock(&a->lock);
  bool ring = false, ours = current(reg);
  if (ours) {
    reg->broken = true;
    omni_metric_add(a->m.registered, -1);
    if (chunk != NULL) ring = chunk_commit(a, chunk);
  }
  omni_mutex_unlock(&a->lock);
  if (chunk != NULL && !ours) omni_chunk_free(chunk);
  if (ring) chunk_wake(a);
  return OMNI_WATCH_DONE;
}

static bool parse(omni_blob *blob, omni_chunk *chunk) {
  const unsigned char *b = blob->data;
  if (blob->len < OMNI_CHUNK_ENVELOPE || b[0] > OMNI_CHUNK_JSON || b[1] > 1) return false;
  uint64_t at = OMNI_CHUNK_ENVELOPE + (b[2] | (uint64_t)b[3] << 8 | (uint64_t)b[4] << 16 | (uint64_t)b[5] << 24);
  if (at > blob->len) return false;
  chunk->finished = b[1] == 1;
  if (b[0] == OMNI_CHUNK_NIL) {
    omni_blob_unref(blob);
    return true;
  }
  blob->tag = b[0];
  chunk->data = blob;
  chunk->at = (size_t)at;
  return true;
}

/* Commits what was got. False: the stream ended, or is not ours any more. */
static bool commit(chunk_reg *reg, omni_chunk *chunk, size_t bytes) {
  omni_chunks *a = reg->a;
  bool finished = chunk->finished, ring = false;
  chunk_reg *gone = NULL;
  omni_sys_point("chunk.before_commit");
  omni_mutex_lock(&a->lock);
  bool ours = current(reg);
  if (ours) {
    ring = chunk_commit(a, chunk);
    reg->next_id++;
    reg->unread++;
    reg->tries = 0;
    if (finished) chunk_reg_kill(reg, &gone);
  }
  omni_mutex_unlock(&a->lock);
  omni_metric_add(ours ? a->m.received : a->m.stale, 1);
  if (ours) omni_metric_add(a->m.received_bytes, (int64_t)bytes);
  if (!ours) omni_chunk_free(chunk);
  if (ring) chunk_wake(a);
  chunk_regs_let_go(gone);
  return ours && !finished;
}

static omni_watch_next take(chunk_reg *reg, omni_blob *blob) {
  size_t bytes = blob->len;
  omni_chunk *chunk = chunk_new(reg->req);
  if (chunk == NULL || !parse(blob, chunk)) {
    bool memory = chunk == NULL;
    omni_blob_unref(blob);
    if (chunk != NULL) omni_chunk_free(chunk);
    return memory ? break_stream(reg, OMNI_ENOMEM, "out of memory")
                  : break_stream(reg, OMNI_EPROTOCOL, "its envelope is not valid");
  }
  return commit(reg, chunk, bytes) ? OMNI_WATCH_AGAIN : OMNI_WATCH_DONE;
}

static bool transient(omni_err err) { return err == OMNI_EMFILE || err == OMNI_ENOMEM; }

/* Nothing to take now: what to wait for. */
static omni_watch_next nothing(chunk_reg *reg, omni_shm_got got, omni_err err) {
  switch (got) {
  case OMNI_SHM_BUSY: return OMNI_WATCH_RETRY;
  case OMNI_SHM_NO_SEGMENT: return ++reg->tries <= NO_SEGMENT_TRIES ? OMNI_WATCH_RETRY : OMNI_WATCH_STAY;
  case OMNI_SHM_TORN: return break_stream(reg, OMNI_ECORRUPT, "it is not whole: its writer died");
  case OMNI_SHM_FAILED:
    if (transient(err) && ++reg->tries <= TRANSIENT_TRIES) return OMNI_WATCH_RETRY;
    return break_stream(reg, err, omni_err_text(err));
  default: reg->tries = 0; return OMNI_WATCH_STAY;
  }
}

/* One get. AGAIN: the next chunk may be there as well. */
static omni_watch_next step(chunk_reg *reg) {
  omni_chunks *a = reg->a;
  char key[OMNI_CHUNK_KEY_MAX];
  omni_mutex_lock(&a->lock);
  bool ours = current(reg), wait = ours && full(reg);
  size_t len = chunk_key(key, reg->req, a->src_stage, reg->next_id);
  omni_mutex_unlock(&a->lock);
  if (!ours) return OMNI_WATCH_DONE;
  if (wait) return OMNI_WATCH_STAY;
  omni_blob *blob = NULL;
  omni_err err = OMNI_OK;
  omni_shm_got got = omni_shm_get(a->shm, key, len, &blob, &err);
  return got == OMNI_SHM_GOT ? take(reg, blob) : nothing(reg, got, err);
}

/* The name changes only when fn returns; no event is lost by that: this thread reads them afterwards, and the directory
 * is watched as long as the key is in the table. */
static omni_watch_next on_published(omni_watch_key *key) {
  chunk_reg *reg = omni_container(key, chunk_reg, key);
  uint64_t first = reg->next_id;
  omni_watch_next next = OMNI_WATCH_AGAIN;
  for (int i = 0; i < TURN_CHUNKS && next == OMNI_WATCH_AGAIN; i++)
    next = step(reg);
  if (key->gone && next != OMNI_WATCH_AGAIN && next != OMNI_WATCH_DONE)
    next = break_stream(reg, OMNI_ENOENT, "its directory was removed");
  if (next != OMNI_WATCH_DONE && reg->next_id != first)
    chunk_watch_name(reg->a, key, reg->req, reg->a->src_stage, reg->next_id);
  return next;
}

static void on_unwatched(omni_watch_key *key) { chunk_reg_unref(omni_container(key, chunk_reg, key)); }

/* ---- the scheduling thread's calls ---- */

/* Under the lock. */
static chunk_reg *reg_new(omni_chunks *a, const char *req) {
  size_t len = strlen(req);
  chunk_reg *reg = calloc(1, sizeof *reg + len + 1);
  if (reg == NULL) return NULL;
  memcpy(reg->req, req, len + 1);
  if (!omni_table_add(&a->regs, &reg->node, omni_hash(req, len))) {
    free(reg);
    return NULL;
  }
  atomic_init(&reg->refs, 2); /* the table's and the watch's */
  reg->a = chunk_hold(a);
  reg->key.what = OMNI_WATCH_PUBLISHED;
  reg->key.fn = on_published;
  reg->key.done = on_unwatched;
  chunk_watch_name(a, &reg->key, req, a->src_stage, 0);
  omni_metric_add(a->m.registered, 1);
  return reg;
}

/* Under the lock. *made: to be put into the watch's table. */
static omni_err enter(omni_chunks *a, const char *req, chunk_reg **made) {
  if (a->stopped) return OMNI_ECLOSED;
  if (reg_find(a, req) != NULL) return OMNI_OK;
  omni_err err = chunk_use_watch(a);
  if (err != OMNI_OK) return err;
  *made = reg_new(a, req);
  if (*made == NULL) return OMNI_ENOMEM;
  reg_ref(*made);
  return OMNI_OK;
}

omni_err omni_chunks_load(omni_chunks *a, const char *req) {
  if (a->src_stage == NULL || !chunk_req_ok(req)) return OMNI_EINVAL;
  chunk_reg *reg = NULL, *gone = NULL;
  omni_mutex_lock(&a->lock);
  omni_err err = enter(a, req, &reg);
  omni_mutex_unlock(&a->lock);
  if (reg == NULL) return err;
  err = omni_watch_add(omni_shm_lock_dir(a->shm), &reg->key);
  omni_mutex_lock(&a->lock);
  bool late = reg->dead; /* cleaned up or stopped by another thread before it was in the table */
  if (err != OMNI_OK && !late) chunk_reg_kill(reg, &gone);
  omni_mutex_unlock(&a->lock);
  if (err != OMNI_OK)
    chunk_reg_unref(reg); /* the watch's */
  else if (late)
    omni_watch_drop(&reg->key);
  chunk_regs_let_go(gone);
  chunk_reg_unref(reg);
  return err;
}

/* Changes what a registration may take; RECV looks again if it waited for that. */
static void allow(omni_chunks *a, const char *req, uint32_t consumed, const uint32_t *want) {
  omni_mutex_lock(&a->lock);
  chunk_reg *reg = reg_find(a, req);
  bool was_full = false, kick = false;
  if (reg != NULL) {
    was_full = full(reg);
    reg->unread -= consumed < reg->unread ? consumed : reg->unread;
    reg->want -= consumed < reg->want ? consumed : reg->want;
    if (want != NULL) reg->want = *want;
    kick = was_full && !full(reg);
    if (kick) reg_ref(reg);
  }
  omni_mutex_unlock(&a->lock);
  if (!kick) return;
  omni_watch_kick(&reg->key);
  chunk_reg_unref(reg);
}

void omni_chunks_want(omni_chunks *a, const char *req, uint32_t n) { allow(a, req, 0, &n); }

void omni_chunks_consumed(omni_chunks *a, const char *req, uint32_t n) { allow(a, req, n, NULL); }

/* Under the lock: takes what is ready for this request out of the list. */
static omni_chunk *take_ready(omni_chunks *a, const char *req) {
  omni_chunk *out = NULL, **at = &a->ready;
  a->ready_tail = NULL;
  while (*at != NULL) {
    omni_chunk *chunk = *at;
    if (!chunk->sender && strcmp(chunk->req, req) == 0) {
      *at = chunk->next;
      chunk->next = out;
      out = chunk;
    } else {
      a->ready_tail = chunk;
      at = &chunk->next;
    }
  }
  if (a->ready == NULL) a->notified = false; /* the consumer finds nothing and will not poll: the next one must ring */
  return out;
}

/* What lies in the window, and what follows without a gap: the sender may have been faster than the limits say. */
static void discard_keys(omni_chunks *a, const char *req, uint64_t next) {
  uint64_t sure = a->window + 2u; /* one more, for RECV may have taken the next already */
  for (uint64_t i = 0; i < sure + DISCARD_MAX; i++) {
    char key[OMNI_CHUNK_KEY_MAX];
    omni_err err = omni_shm_discard(a->shm, key, chunk_key(key, req, a->src_stage, next + i));
    if (err == OMNI_ENOENT && i + 1 >= sure) break;
  }
}

void omni_chunks_cleanup_receiver(omni_chunks *a, const char *req, bool discard) {
  if (a->src_stage == NULL || !chunk_req_ok(req)) return;
  chunk_reg *gone = NULL;
  omni_mutex_lock(&a->lock);
  chunk_reg *reg = reg_find(a, req);
  uint64_t next = reg != NULL ? reg->next_id : 0;
  if (reg != NULL) chunk_reg_kill(reg, &gone);
  omni_chunk *ready = take_ready(a, req);
  omni_mutex_unlock(&a->lock);
  while (ready != NULL) {
    omni_chunk *after = ready->next;
    omni_chunk_free(ready);
    ready = after;
  }
  if (gone != NULL && discard) discard_keys(a, req, next);
  chunk_regs_let_go(gone);
}
