#include "chunk_private.h"

#include <stdlib.h>
#include <string.h>

/*
 * Window and budget. A chunk is outstanding from save until its key is gone. Nobody announces that a key is gone; we
 * look, and only while somebody waits for credit:
 *   1 look at the oldest key   2 put a watch key for it into the table   3 look again (the watch's first probe)
 * so either a look sees that the key is gone or an event tells.
 */

/* ---- counting ---- */

static void count_cost(chunk_sender *s, uint64_t *part, int64_t delta) {
  if (!chunk_limited(s->a)) return;
  *part += (uint64_t)delta;
  s->a->cost += (uint64_t)delta;
}

void chunk_credit_queued(chunk_sender *s, const chunk_item *item) {
  s->queued++;
  omni_metric_add(s->a->m.queued, 1);
  count_cost(s, &s->queued_cost, (int64_t)item->cost);
}

void chunk_credit_unqueued(chunk_sender *s, const chunk_item *item) {
  s->queued--;
  omni_metric_add(s->a->m.queued, -1);
  count_cost(s, &s->queued_cost, -(int64_t)item->cost);
}

static bool grow_sizes(chunk_sender *s) {
  size_t room = s->room > 0 ? s->room * 2 : 8;
  uint64_t *sizes = malloc(room * sizeof *sizes);
  if (sizes == NULL) return false;
  for (uint64_t id = s->low; id < s->next_id; id++)
    sizes[id & (room - 1)] = s->sizes[id & (s->room - 1)];
  free(s->sizes);
  s->sizes = sizes;
  s->room = room;
  return true;
}

/* The oldest chunk that was outstanding is consumed. */
static void count_consumed(chunk_sender *s) {
  uint64_t bytes = s->sizes[s->low & (s->room - 1)];
  count_cost(s, &s->put_cost, -(int64_t)bytes);
  omni_metric_add(s->a->m.outstanding, -1);
  omni_metric_add(s->a->m.outstanding_bytes, -(int64_t)bytes);
  s->low++;
}

static void forget_puts(chunk_sender *s) {
  while (chunk_limited(s->a) && s->low < s->next_id)
    count_consumed(s);
}

void chunk_credit_put(chunk_sender *s, uint64_t bytes) {
  bool counts = chunk_limited(s->a);
  /* Without memory to count them, older chunks count as consumed: rather too much credit than none for ever. */
  if (counts && s->next_id - s->low == s->room && !grow_sizes(s)) forget_puts(s);
  uint64_t id = s->next_id++;
  if (!counts) return;
  if (s->room == 0) {
    s->low = s->next_id;
    return;
  }
  s->sizes[id & (s->room - 1)] = bytes;
  count_cost(s, &s->put_cost, (int64_t)bytes);
  omni_metric_add(s->a->m.outstanding, 1);
  omni_metric_add(s->a->m.outstanding_bytes, (int64_t)bytes);
}

void chunk_credit_restart(chunk_sender *s) {
  forget_puts(s);
  s->low = s->next_id = 0;
}

/* ---- who waits ---- */

static void line_join(chunk_sender *s) {
  omni_chunks *a = s->a;
  if (s->in_line) return;
  s->in_line = true;
  s->line_next = NULL;
  s->line_prev = a->line_tail;
  if (a->line_tail != NULL)
    a->line_tail->line_next = s;
  else
    a->line = s;
  a->line_tail = s;
}

/* Returns whether somebody else may be first in line now. */
static bool line_leave(chunk_sender *s) {
  omni_chunks *a = s->a;
  if (!s->in_line) return false;
  s->in_line = false;
  if (s->line_prev != NULL)
    s->line_prev->line_next = s->line_next;
  else
    a->line = s->line_next;
  if (s->line_next != NULL)
    s->line_next->line_prev = s->line_prev;
  else
    a->line_tail = s->line_prev;
  return a->line != NULL;
}

void chunk_credit_done(chunk_sender *s) {
  omni_chunks *a = s->a;
  s->done = true;
  omni_metric_add(a->m.senders, -1);
  s->done_next = NULL;
  s->done_prev = a->done_tail;
  if (a->done_tail != NULL)
    a->done_tail->done_next = s;
  else
    a->done = s;
  a->done_tail = s;
}

static void done_unlink(chunk_sender *s) {
  omni_chunks *a = s->a;
  if (s->done_prev != NULL)
    s->done_prev->done_next = s->done_next;
  else
    a->done = s->done_next;
  if (s->done_next != NULL)
    s->done_next->done_prev = s->done_prev;
  else
    a->done_tail = s->done_prev;
}

void chunk_credit_forget(chunk_sender *s) {
  omni_chunks *a = s->a;
  uint64_t low = s->low;
  (void)line_leave(s);
  forget_puts(s);
  s->low = low; /* cleanup still removes these keys */
  omni_metric_add(a->m.queued, -(int64_t)s->queued);
  a->cost -= s->queued_cost;
  s->queued = s->queued_cost = 0;
  s->waiting = false;
  if (s->done) done_unlink(s);
}

/* ---- the verdict ---- */

/* Under the lock. *line: the budget is what lacks, not the window; who waits for the budget must stand in line. Whoever
 * lacks window does not: it would keep others from a budget that it cannot use. */
static omni_err verdict(const omni_chunks *a, const chunk_sender *s, uint64_t bytes, bool *line) {
  *line = false;
  if (a->stopped) return OMNI_ECLOSED;
  if (s == NULL || s->done) return OMNI_OK;
  if (s->failed != OMNI_OK) return s->failed;
  uint64_t outstanding = s->queued + (s->next_id - s->low);
  if (!chunk_limited(a) || s->cancelled || outstanding == 0) return OMNI_OK;
  if (a->window > 0 && outstanding >= a->keys_max) return OMNI_EFULL;
  if (a->budget == 0) return OMNI_OK;
  bool fits = bytes == 0 ? a->cost < a->budget : a->cost + OMNI_CHUNK_ENVELOPE + bytes <= a->budget;
  bool first = a->line == NULL || a->line == s;
  *line = !(fits && first);
  return *line ? OMNI_EFULL : OMNI_OK;
}

/* Under the lock: arms what the wait depends on. The budget depends on everybody's chunks. */
static chunk_sender *prepare_all(omni_chunks *a, chunk_sender *s, bool line) {
  chunk_sender *list = NULL;
  if (!line) {
    if (!chunk_credit_needs_arm(s)) return NULL;
    chunk_credit_prepare(s);
    s->arm_next = NULL;
    return s;
  }
  for (omni_node *node = omni_table_each(&a->senders, NULL); node != NULL; node = omni_table_each(&a->senders, node)) {
    chunk_sender *other = omni_container(node, chunk_sender, node);
    if (!chunk_credit_needs_arm(other)) continue;
    chunk_credit_prepare(other);
    other->arm_next = list;
    list = other;
  }
  return list;
}

/* Without the lock: counts what of this sender is consumed by now. */
static void look(chunk_sender *s) {
  omni_chunks *a = s->a;
  omni_mutex_lock(&a->lock);
  while (!s->dead && s->low < s->next_id) {
    uint64_t id = s->low;
    char key[OMNI_CHUNK_KEY_MAX];
    omni_mutex_unlock(&a->lock);
    bool there = omni_shm_unconsumed(a->shm, key, chunk_key(key, s->req, a->stage, id));
    omni_mutex_lock(&a->lock);
    if (there) break;
    if (!s->dead && s->low == id) count_consumed(s);
  }
  omni_mutex_unlock(&a->lock);
}

/* Entered and left with the lock: the verdict, after a look at the system where it would be a no. */
static omni_err verdict_after_look(omni_chunks *a, const char *req, uint64_t bytes, bool *line) {
  chunk_sender *s = chunk_sender_find(a, req);
  omni_err err = verdict(a, s, bytes, line);
  if (err != OMNI_EFULL || s->armed) return err;
  chunk_sender_ref(s);
  omni_mutex_unlock(&a->lock);
  look(s);
  chunk_sender_unref(s);
  omni_mutex_lock(&a->lock);
  return verdict(a, chunk_sender_find(a, req), bytes, line);
}

/* Under the lock: the request waits from now on. */
static chunk_sender *begin_wait(omni_chunks *a, chunk_sender *s, bool line) {
  if (!s->waiting) omni_metric_add(a->m.credit_waits, 1);
  s->waiting = true;
  if (line)
    line_join(s);
  else
    (void)line_leave(s);
  return prepare_all(a, s, line);
}

static bool end_wait(chunk_sender *s) {
  if (s == NULL) return false;
  s->waiting = false;
  return line_leave(s);
}

omni_err omni_chunks_credit(omni_chunks *a, const char *req, uint64_t bytes) {
  if (a->stage == NULL || !chunk_req_ok(req)) return OMNI_EINVAL;
  bool line, next = false;
  chunk_sender *arm = NULL;
  omni_mutex_lock(&a->lock);
  omni_err err = verdict_after_look(a, req, bytes, &line);
  chunk_sender *s = chunk_sender_find(a, req);
  if (err == OMNI_EFULL && chunk_use_watch(a) == OMNI_OK)
    arm = begin_wait(a, s, line);
  else
    next = end_wait(s);
  omni_mutex_unlock(&a->lock);
  while (arm != NULL) {
    chunk_sender *after = arm->arm_next;
    chunk_credit_arm(arm);
    arm = after;
  }
  if (next) chunk_wake(a); /* it may be the next one's turn */
  return err;
}

omni_err omni_chunks_credit_peek(omni_chunks *a, const char *req, uint64_t bytes) {
  bool line;
  omni_mutex_lock(&a->lock);
  omni_err err = verdict(a, chunk_sender_find(a, req), bytes, &line);
  omni_mutex_unlock(&a->lock);
  return err;
}

void omni_chunks_credit_giveup(omni_chunks *a, const char *req) {
  omni_mutex_lock(&a->lock);
  bool next = end_wait(chunk_sender_find(a, req));
  omni_mutex_unlock(&a->lock);
  if (next) chunk_wake(a);
}

/* ---- noticing consumption on the watch thread ---- */

bool chunk_credit_needs_arm(chunk_sender *s) {
  return !s->dead && !s->armed && s->a->watching && s->low < s->next_id && chunk_limited(s->a) &&
         chunk_credit_wanted(s);
}

/* One look. True: go on with the next chunk. Without the lock. */
static bool notice(chunk_sender *s, omni_watch_key *key, omni_watch_next *next, chunk_sender **gone) {
  omni_chunks *a = s->a;
  char name[OMNI_CHUNK_KEY_MAX];
  omni_mutex_lock(&a->lock);
  bool over = s->dead || a->stopped || !chunk_credit_wanted(s) || s->low == s->next_id;
  uint64_t id = s->low;
  if (over) s->armed = false;
  if (over && !s->dead && s->done && s->low == s->next_id) chunk_sender_kill(s, gone);
  omni_mutex_unlock(&a->lock);
  *next = over ? OMNI_WATCH_DONE : OMNI_WATCH_STAY;
  if (over) return false;
  if (!key->gone && omni_shm_unconsumed(a->shm, name, chunk_key(name, s->req, a->stage, id))) {
    chunk_watch_name(a, key, s->req, a->stage, id);
    return false;
  }
  omni_mutex_lock(&a->lock);
  bool wake = !s->dead && s->low == id;
  if (wake) count_consumed(s);
  omni_mutex_unlock(&a->lock);
  if (wake) chunk_wake(a);
  return true;
}

static omni_watch_next on_consumed(omni_watch_key *key) {
  chunk_sender *s = omni_container(key, chunk_sender, key), *gone = NULL;
  omni_watch_next next = OMNI_WATCH_STAY;
  while (notice(s, key, &next, &gone))
    ;
  chunk_senders_let_go(gone);
  return next;
}

static void on_disarmed(omni_watch_key *key) { chunk_sender_unref(omni_container(key, chunk_sender, key)); }

void chunk_credit_init(chunk_sender *s) {
  s->key.what = OMNI_WATCH_CONSUMED;
  s->key.fn = on_consumed;
  s->key.done = on_disarmed;
}

void chunk_credit_prepare(chunk_sender *s) {
  s->armed = true;
  chunk_sender_ref(s);
  /* Its last callback may not have settled yet; a callback that left by DONE is not asked for its name again. */
  chunk_watch_name(s->a, &s->key, s->req, s->a->stage, s->low);
}

void chunk_credit_arm(chunk_sender *s) {
  omni_err err = omni_watch_add(omni_shm_lock_dir(s->a->shm), &s->key);
  if (err == OMNI_OK) return;
  if (err != OMNI_EEXIST) { /* no memory: the next put, or the next who asks, tries again */
    omni_mutex_lock(&s->a->lock);
    s->armed = false;
    omni_mutex_unlock(&s->a->lock);
  }
  chunk_sender_unref(s);
}

/* ---- finished requests ---- */

/* Chunks are consumed in their order: when the last one is gone all are. The record then goes, else to the end of the
 * line. */
static bool sweep_oldest(omni_chunks *a, chunk_sender **gone) {
  omni_mutex_lock(&a->lock);
  chunk_sender *s = a->done;
  if (s == NULL) {
    omni_mutex_unlock(&a->lock);
    return false;
  }
  chunk_sender_ref(s);
  char key[OMNI_CHUNK_KEY_MAX];
  size_t len = chunk_key(key, s->req, a->stage, s->next_id - 1);
  omni_mutex_unlock(&a->lock);
  bool there = omni_shm_unconsumed(a->shm, key, len);
  omni_mutex_lock(&a->lock);
  if (!s->dead && !there) {
    chunk_sender_kill(s, gone);
  } else if (!s->dead && there) {
    done_unlink(s);
    omni_metric_add(a->m.senders, 1); /* chunk_credit_done takes it off again */
    chunk_credit_done(s);
  }
  omni_mutex_unlock(&a->lock);
  chunk_sender_unref(s);
  return true;
}

/* Two looks per finished request: the list cannot grow for ever while its chunks are consumed. */
void chunk_credit_sweep(omni_chunks *a) {
  chunk_sender *gone = NULL;
  for (int i = 0; i < 2 && sweep_oldest(a, &gone); i++)
    ;
  chunk_senders_let_go(gone);
}
