#include "chunk_private.h"

#include "service.h"

#include <stdlib.h>
#include <string.h>

#define TEXT_MAX 512

/* What one turn of a sender came to. */
typedef enum turn {
  TURN_NEXT, /* the current item is dealt with */
  TURN_PARK  /* it must be put again, at retry_at */
} turn;

/* What a turn leaves to be done without locks. */
typedef struct leftover {
  bool wake; /* the consumer has something to look at */
  bool undo; /* what the last put left is taken back */
} leftover;

typedef struct save_list {
  chunk_sender *head, *tail;
} save_list;

static omni_err save_open(void);
static void save_run(void);
static void save_wake(void);

/* service.lock guards all of it and comes after adapter.lock. */
static struct {
  omni_service service;
  omni_cond news; /* signalled while asleep is set */
  bool asleep, opened;
  uint64_t posts;          /* rises with whatever the thread should look at before it sleeps */
  save_list ready, parked; /* senders; each counts as one reference */
  omni_chunks *farewells;  /* adapters whose builder goes; each counts as one reference */
} S = {.service = OMNI_SERVICE_INIT("omni-save", save_open, save_run, save_wake)};

static omni_err save_open(void) {
  if (!S.opened) omni_cond_init(&S.news); /* on the monotonic clock, so no static initialiser */
  S.opened = true;
  return OMNI_OK;
}

static void save_wake(void) {
  S.posts++;
  if (S.asleep) omni_cond_signal(&S.news);
}

/* ---- lists ---- */

static void list_push(save_list *list, chunk_sender *s) {
  s->save_next = NULL;
  s->save_prev = list->tail;
  if (list->tail != NULL)
    list->tail->save_next = s;
  else
    list->head = s;
  list->tail = s;
}

static void list_unlink(save_list *list, chunk_sender *s) {
  if (s->save_prev != NULL)
    s->save_prev->save_next = s->save_next;
  else
    list->head = s->save_next;
  if (s->save_next != NULL)
    s->save_next->save_prev = s->save_prev;
  else
    list->tail = s->save_prev;
}

omni_err chunk_save_use(omni_chunks *a) {
  if (a->saving) return OMNI_OK;
  omni_err err = omni_service_use(&S.service);
  a->saving = err == OMNI_OK;
  return err;
}

/* Under SAVE's lock. */
static void make_ready(chunk_sender *s) {
  s->where = CHUNK_READY;
  list_push(&S.ready, s);
  save_wake();
}

void chunk_save_ready(chunk_sender *s) {
  omni_mutex_lock(&S.service.lock);
  if (s->where == CHUNK_IDLE) {
    chunk_sender_ref(s);
    make_ready(s);
  }
  omni_mutex_unlock(&S.service.lock);
}

void chunk_save_hurry(chunk_sender *s) {
  omni_mutex_lock(&S.service.lock);
  if (s->where == CHUNK_PARKED) {
    list_unlink(&S.parked, s);
    make_ready(s);
  }
  omni_mutex_unlock(&S.service.lock);
}

bool chunk_save_withdraw(chunk_sender *s) {
  omni_mutex_lock(&S.service.lock);
  bool listed = s->where == CHUNK_READY || s->where == CHUNK_PARKED;
  if (listed) list_unlink(s->where == CHUNK_READY ? &S.ready : &S.parked, s);
  if (listed) s->where = CHUNK_IDLE;
  omni_mutex_unlock(&S.service.lock);
  return listed;
}

void chunk_save_farewell(omni_chunks *a) {
  chunk_hold(a);
  omni_mutex_lock(&S.service.lock);
  a->farewell_next = S.farewells;
  S.farewells = a;
  S.service.users--; /* the thread does not end before it said farewell */
  save_wake();
  omni_mutex_unlock(&S.service.lock);
}

void chunk_save_join(void) { omni_service_join(&S.service); }

/* ---- one turn ---- */

/* Under the lock: takes the next item off the queue, where there is none in hand. */
static chunk_item *take(chunk_sender *s) {
  if (s->current != NULL || s->head == NULL) return s->current;
  s->current = s->head;
  s->head = s->head->next;
  if (s->head == NULL) s->tail = NULL;
  s->current->next = NULL;
  return s->current;
}

/* Under the lock: the item is dealt with. */
static void finish_item(chunk_sender *s) {
  chunk_item_free(s->current);
  s->current = NULL;
  s->deadline = 0;
  s->tries = 0;
}

/* Under the lock: the item will not be put. */
static turn discard_item(chunk_sender *s, omni_metric *counter, leftover *left) {
  omni_metric_add(counter, 1);
  chunk_credit_unqueued(s, s->current);
  finish_item(s);
  left->wake |= chunk_credit_wanted(s);
  return TURN_NEXT;
}

/* Under the lock: the stream ends here; the consumer and whoever waits for credit are told. */
static turn fail(chunk_sender *s, omni_err err, const char *text, leftover *left) {
  omni_chunk *chunk = chunk_new_error(s->req, err, text, true);
  s->failed = err;
  chunk_credit_unqueued(s, s->current);
  finish_item(s);
  chunk_sender_drop_items(s);
  if (chunk != NULL) (void)chunk_commit(s->a, chunk);
  left->wake = true;
  return TURN_NEXT;
}

static omni_err build(chunk_sender *s, chunk_item *item, char *text) {
  omni_chunks *a = s->a;
  if (a->build == NULL) {
    item->payload = item->snapshot;
    item->snapshot = NULL;
    return OMNI_OK;
  }
  omni_sys_point("chunk.before_build");
  omni_err err = a->build(a->build_ud, s->req, item->snapshot, item->is_final, &item->payload, text, TEXT_MAX);
  omni_sys_point("chunk.after_build");
  return err;
}

static omni_err put(chunk_sender *s, const chunk_item *item, size_t *bytes) {
  const omni_blob *payload = item->payload;
  unsigned char head[OMNI_CHUNK_ENVELOPE] = {payload != NULL ? (unsigned char)payload->tag : OMNI_CHUNK_NIL,
                                             item->is_final};
  struct iovec pieces[2] = {
      {head, sizeof head},
      {payload != NULL ? (void *)(uintptr_t)payload->data : NULL, payload != NULL ? payload->len : 0}};
  char key[OMNI_CHUNK_KEY_MAX];
  size_t len = chunk_key(key, s->req, s->a->stage, s->next_id);
  *bytes = sizeof head + pieces[1].iov_len;
  omni_err err = omni_shm_put(s->a->shm, key, len, pieces, payload != NULL ? 2 : 1);
  omni_sys_point("chunk.after_put");
  return err;
}

/* Takes back a put that nobody wants, or the lock file that a refused one left. */
static void undo_put(chunk_sender *s) {
  char key[OMNI_CHUNK_KEY_MAX];
  (void)omni_shm_discard(s->a->shm, key, chunk_key(key, s->req, s->a->stage, s->next_id));
}

static bool may_pass(omni_err err) {
  return err == OMNI_EBUSY || err == OMNI_ENOSPC || err == OMNI_EIO || err == OMNI_ENOMEM || err == OMNI_EMFILE ||
         err == OMNI_ESYS;
}

/* A held lock is free again soon; a full directory takes longer. */
static uint64_t pause_of(const chunk_sender *s, omni_err err) {
  static const uint32_t busy[] = {50000, 200000, 1000000, 5000000};
  static const uint32_t other[] = {1000000, 4000000, 16000000, 50000000};
  unsigned i = s->tries < 3 ? s->tries : 3;
  return err == OMNI_EBUSY ? busy[i] : other[i];
}

/* Under the lock: put failed. */
static turn on_put_failed(chunk_sender *s, omni_err err, leftover *left) {
  omni_chunks *a = s->a;
  uint64_t now = omni_sys_now();
  if (s->deadline == 0) s->deadline = now + a->put_timeout;
  if (may_pass(err) && now < s->deadline) {
    omni_metric_add(a->m.put_retries, 1);
    s->retry_at = now + pause_of(s, err);
    if (s->retry_at > s->deadline) s->retry_at = s->deadline;
    s->tries++;
    return TURN_PARK;
  }
  char text[TEXT_MAX];
  snprintf(text, sizeof text, "chunk %llu of request \"%s\" could not be stored: %s: %s",
           (unsigned long long)s->next_id, s->req, omni_err_name(err), omni_err_text(err));
  omni_metric_add(a->m.put_failures, 1);
  left->undo = err == OMNI_EBUSY;
  return fail(s, OMNI_EPUT, text, left);
}

/* Under the lock: the id advances only now. After the final the request begins anew, where more was saved, or only a
 * record stays of what is not known to be consumed. */
static turn on_put(chunk_sender *s, size_t bytes, leftover *left) {
  omni_chunks *a = s->a;
  bool is_final = s->current->is_final;
  omni_metric_add(a->m.sent, 1);
  omni_metric_add(a->m.sent_bytes, (int64_t)bytes);
  chunk_credit_unqueued(s, s->current);
  chunk_credit_put(s, bytes);
  finish_item(s);
  left->wake |= a->line != NULL; /* a payload may be smaller than its snapshot */
  if (!is_final) return TURN_NEXT;
  s->cancelled = false;
  if (s->head != NULL)
    chunk_credit_restart(s);
  else
    chunk_credit_done(s);
  return TURN_NEXT;
}

/* Entered and left with the lock, given up for the build. Returns an error of the build. */
static omni_err make_payload(chunk_sender *s, chunk_item *item, char *text) {
  if (s->cancelled) { /* a final: its data is nil now */
    omni_blob_unref(item->payload);
    item->payload = NULL;
    item->built = true;
  }
  if (item->built) return OMNI_OK;
  omni_mutex_unlock(&s->a->lock);
  omni_err err = build(s, item, text);
  omni_mutex_lock(&s->a->lock);
  item->built = true;
  return err;
}

/* Entered and left with the lock, given up for build and put. */
static turn turn_of(chunk_sender *s, leftover *left) {
  omni_chunks *a = s->a;
  chunk_item *item = take(s);
  if (item == NULL) return TURN_NEXT;
  if (s->cancelled && !item->is_final) return discard_item(s, a->m.dropped, left);
  char text[TEXT_MAX] = "";
  omni_err err = make_payload(s, item, text);
  if (s->dead) return TURN_NEXT;
  if (err != OMNI_OK) return fail(s, err, text[0] != '\0' ? text : omni_err_text(err), left);
  if (item->payload == NULL && !item->is_final) return discard_item(s, a->m.skipped, left);
  omni_mutex_unlock(&a->lock);
  size_t bytes;
  err = put(s, item, &bytes);
  omni_mutex_lock(&a->lock);
  if (s->dead) {
    left->undo = s->removed || err == OMNI_EBUSY;
    return TURN_NEXT;
  }
  return err == OMNI_OK ? on_put(s, bytes, left) : on_put_failed(s, err, left);
}

/* Under both locks: what SAVE does with it next; returns whether its reference goes. */
static bool put_back(chunk_sender *s, turn what) {
  bool more = !s->dead && (s->current != NULL || s->head != NULL);
  if (!more) {
    s->where = CHUNK_IDLE;
    return true;
  }
  /* Cancelled meanwhile: what is parked may be dropped now. */
  s->where = what == TURN_PARK && !s->cancelled ? CHUNK_PARKED : CHUNK_READY;
  list_push(s->where == CHUNK_PARKED ? &S.parked : &S.ready, s);
  return false;
}

/* Without locks. The sender is BUSY and ours with one reference. */
static void serve(chunk_sender *s) {
  omni_chunks *a = chunk_hold(s->a);
  leftover left = {0};
  omni_mutex_lock(&a->lock);
  turn what = s->dead ? TURN_NEXT : turn_of(s, &left);
  bool arm = chunk_credit_needs_arm(s), sweep = s->done;
  if (arm) chunk_credit_prepare(s);
  if (left.undo) { /* before anybody else can put this key: all puts are ours */
    omni_mutex_unlock(&a->lock);
    undo_put(s);
    omni_mutex_lock(&a->lock);
  }
  omni_mutex_lock(&S.service.lock);
  bool drop = put_back(s, what);
  omni_mutex_unlock(&S.service.lock);
  omni_mutex_unlock(&a->lock);
  if (arm) chunk_credit_arm(s);
  if (drop) chunk_sender_unref(s);
  if (left.wake) chunk_wake(a);
  if (sweep) chunk_credit_sweep(a);
  chunk_release(a);
}

/* ---- the thread ---- */

/* Entered and left with the lock, given up meanwhile. */
static bool say_farewell(void) {
  omni_chunks *a = S.farewells;
  if (a == NULL) return false;
  S.farewells = a->farewell_next;
  omni_mutex_unlock(&S.service.lock);
  if (a->build_free != NULL) a->build_free(a->build_ud);
  chunk_release(a);
  omni_mutex_lock(&S.service.lock);
  return true;
}

static void unpark(void) {
  if (S.parked.head == NULL) return;
  uint64_t now = omni_sys_now();
  for (chunk_sender *s = S.parked.head, *next; s != NULL; s = next) {
    next = s->save_next;
    if (s->retry_at > now) continue;
    list_unlink(&S.parked, s);
    s->where = CHUNK_READY;
    list_push(&S.ready, s);
  }
}

static bool serve_next(void) {
  chunk_sender *s = S.ready.head;
  if (s == NULL) return false;
  list_unlink(&S.ready, s);
  s->where = CHUNK_BUSY;
  omni_mutex_unlock(&S.service.lock);
  serve(s);
  omni_mutex_lock(&S.service.lock);
  return true;
}

/* The count of posts is compared after the point, so a post that comes between the last look and the sleep is seen. */
static void sleep_until_news(void) {
  uint64_t posts = S.posts, at = UINT64_MAX;
  for (const chunk_sender *s = S.parked.head; s != NULL; s = s->save_next)
    if (s->retry_at < at) at = s->retry_at;
  omni_mutex_unlock(&S.service.lock);
  omni_sys_point("chunk.before_sleep");
  omni_mutex_lock(&S.service.lock);
  S.asleep = true;
  while (S.posts == posts && S.service.users > 0) {
    if (at == UINT64_MAX)
      omni_cond_wait(&S.news, &S.service.lock);
    else if (!omni_cond_wait_until(&S.news, &S.service.lock, at))
      break;
  }
  S.asleep = false;
}

static void save_run(void) {
  for (;;) {
    unpark();
    if (serve_next() || say_farewell()) continue;
    if (S.service.users == 0) return;
    sleep_until_news();
  }
}
