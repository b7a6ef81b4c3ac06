#include "core/router.h"

#include "core/metrics.h"
#include "core/sys.h"
#include "core/table.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Who has the waiter. IDLE: the caller runs; ASLEEP: it has suspended and wants the bell; DONE: the result is there. */
enum { IDLE, ASLEEP, DONE };

#define WAITING (UINT64_C(1) << 32 | 1) /* what a waiter's reference adds to router.refs */

#define INLINE 48 /* bytes of a key and of an answer that need no memory of their own */

/* Bytes that are replaced again and again. */
typedef struct cell {
  unsigned char *data; /* `small`, or memory of its own */
  size_t len;
  unsigned char small[INLINE];
} cell;

struct omni_waiter {
  atomic_uint refs;
  atomic_int state;
  omni_node node;  /* in the router's table while registered (under its lock) */
  bool registered; /* the same */
  bool failed;
  uint32_t tag;
  cell key, answer;
  omni_inbox *inbox;
  omni_event bell;
  void (*woken)(void *arg, uint64_t token); /* set before ASLEEP, read after it */
  void *arg;
  uint64_t token;
};

struct omni_router {
  atomic_uint_fast64_t refs; /* all of them, and from bit 32 on those of who waits: read as one */
  omni_mutex mutex;          /* protects what follows; nothing is called under it */
  omni_table table;
  omni_blob *fatal;
  uint64_t registered_count, delivered_count, late_count;
  omni_metric *registered, *delivered, *late, *waiting; /* set, not added to: the lock makes the additions safe */
};

/* ---- cells ---- */

static void cell_clear(cell *c) {
  if (c->data != c->small) free(c->data);
  c->data = c->small;
  c->len = 0;
}

/* Memory for so many bytes where they are too many for a cell. False when there is none. */
static bool memory_for(size_t len, unsigned char **memory) {
  *memory = len > INLINE ? malloc(len) : NULL;
  return len <= INLINE || *memory != NULL;
}

/* With memory as memory_for gave it; without, what does not fit is cut off. */
static void cell_set(cell *c, const void *data, size_t len, unsigned char *memory) {
  if (c->data != c->small) free(c->data);
  c->data = memory != NULL ? memory : c->small;
  c->len = memory == NULL && len > INLINE ? INLINE : len;
  if (c->len > 0) memcpy(c->data, data, c->len);
}

/* ---- waiters ---- */

static omni_waiter *waiter_ref(omni_waiter *waiter) {
  atomic_fetch_add_explicit(&waiter->refs, 1, memory_order_relaxed);
  return waiter;
}

void omni_waiter_unref(omni_waiter *waiter) {
  if (waiter == NULL || atomic_fetch_sub_explicit(&waiter->refs, 1, memory_order_acq_rel) != 1) return;
  cell_clear(&waiter->key);
  cell_clear(&waiter->answer);
  omni_inbox_unref(waiter->inbox);
  free(waiter);
}

/* acquire: what others did with it comes before its next life. */
bool omni_waiter_idle(omni_waiter *waiter) { return atomic_load_explicit(&waiter->refs, memory_order_acquire) == 1; }

bool omni_waiter_is_for(omni_waiter *waiter, const void *key, size_t len) {
  return waiter->key.len == len && memcmp(waiter->key.data, key, len) == 0;
}

static void on_bell(omni_event *event) {
  omni_waiter *waiter = omni_container(event, omni_waiter, bell);
  waiter->woken(waiter->arg, waiter->token);
  omni_waiter_unref(waiter);
}

static void on_dropped(omni_event *event) { omni_waiter_unref(omni_container(event, omni_waiter, bell)); }

omni_waiter *omni_waiter_new(omni_inbox *inbox) {
  omni_waiter *waiter = calloc(1, sizeof *waiter);
  if (waiter == NULL) return NULL;
  atomic_init(&waiter->refs, 1);
  atomic_init(&waiter->state, IDLE);
  omni_event_init(&waiter->bell, on_bell, on_dropped);
  waiter->key.data = waiter->key.small;
  waiter->answer.data = waiter->answer.small;
  waiter->inbox = omni_inbox_ref(inbox);
  return waiter;
}

/* The deliverer has taken the waiter out of the table, so it alone writes the answer. Gives the table's reference back.
 * The exchange publishes the answer, and tells whether the caller sleeps: it cannot fall asleep unseen afterwards. */
static void publish(omni_waiter *waiter, const omni_answer *answer, unsigned char *memory) {
  cell_set(&waiter->answer, answer->data, answer->len, memory);
  waiter->tag = answer->tag;
  waiter->failed = answer->failed;
  if (atomic_exchange(&waiter->state, DONE) == ASLEEP) {
    waiter_ref(waiter);
    if (omni_inbox_post(waiter->inbox, &waiter->bell) != OMNI_POSTED) omni_waiter_unref(waiter);
  }
  omni_waiter_unref(waiter);
}

bool omni_waiter_sleep(omni_waiter *waiter, void (*woken)(void *, uint64_t), void *arg, uint64_t token) {
  /* Asleep since an earlier wait that timed out: its bell may be on the way with the old token, so this field changes
   * only on the loop's thread, where the bell is delivered too. */
  waiter->woken = woken;
  waiter->arg = arg;
  waiter->token = token;
  int idle = IDLE;
  return atomic_compare_exchange_strong(&waiter->state, &idle, ASLEEP) || idle == ASLEEP;
}

bool omni_waiter_result(omni_waiter *waiter, omni_answer *answer) {
  if (atomic_load(&waiter->state) != DONE) return false;
  *answer = (omni_answer){waiter->failed, waiter->tag, waiter->answer.data, waiter->answer.len};
  return true;
}

/* ---- the router ---- */

omni_router *omni_router_new(void) {
  static atomic_uint ids;
  omni_router *router = calloc(1, sizeof *router);
  if (router == NULL) return NULL;
  atomic_init(&router->refs, 1);
  omni_mutex_init(&router->mutex);
  char label[32];
  snprintf(label, sizeof label, "router=\"%u\"", atomic_fetch_add(&ids, 1) + 1);
  router->registered = omni_metric_new(OMNI_COUNTER, "omni_router_registered_total", label);
  router->delivered = omni_metric_new(OMNI_COUNTER, "omni_router_delivered_total", label);
  router->late = omni_metric_new(OMNI_COUNTER, "omni_router_late_results_total", label);
  router->waiting = omni_metric_new(OMNI_GAUGE, "omni_router_waiting", label);
  return router;
}

omni_router *omni_router_ref(omni_router *router) {
  atomic_fetch_add_explicit(&router->refs, 1, memory_order_relaxed);
  return router;
}

static void router_free(omni_router *router) {
  for (omni_node *node = omni_table_each(&router->table, NULL); node != NULL;) {
    omni_node *next = omni_table_each(&router->table, node);
    omni_waiter_unref(omni_container(node, omni_waiter, node));
    node = next;
  }
  omni_table_free(&router->table);
  omni_blob_unref(router->fatal);
  omni_metric *metrics[] = {router->registered, router->delivered, router->late, router->waiting};
  for (size_t i = 0; i < sizeof metrics / sizeof *metrics; i++)
    omni_metric_unref(metrics[i]);
  omni_mutex_destroy(&router->mutex);
  free(router);
}

static void drop(omni_router *router, uint64_t references) {
  if (atomic_fetch_sub_explicit(&router->refs, references, memory_order_acq_rel) == references) router_free(router);
}

void omni_router_unref(omni_router *router) {
  if (router != NULL) drop(router, 1);
}

omni_router *omni_router_ref_waiting(omni_router *router) {
  atomic_fetch_add_explicit(&router->refs, WAITING, memory_order_relaxed);
  return router;
}

void omni_router_unref_waiting(omni_router *router) {
  if (router != NULL) drop(router, WAITING);
}

unsigned omni_router_others(omni_router *router) {
  uint64_t refs = atomic_load(&router->refs);
  return (unsigned)(refs & UINT32_MAX) - (unsigned)(refs >> 32) - 1;
}

/* Under the lock. */
static omni_waiter *find(omni_router *router, const void *key, size_t len, uint64_t hash) {
  for (omni_node *node = omni_table_first(&router->table, hash); node != NULL; node = omni_table_next(node)) {
    omni_waiter *waiter = omni_container(node, omni_waiter, node);
    if (waiter->key.len == len && memcmp(waiter->key.data, key, len) == 0) return waiter;
  }
  return NULL;
}

/* Under the lock. */
static void count_waiting(omni_router *router) { omni_metric_set(router->waiting, (int64_t)router->table.count); }

/* Under the lock. */
static void take_out(omni_router *router, omni_waiter *waiter) {
  omni_table_remove(&router->table, &waiter->node);
  waiter->registered = false;
  count_waiting(router);
}

/* Under the lock. */
static omni_err enter(omni_router *router, omni_waiter *waiter, uint64_t hash) {
  if (router->fatal != NULL) return OMNI_ECANCELED;
  if (find(router, waiter->key.data, waiter->key.len, hash) != NULL) return OMNI_EEXIST;
  if (!omni_table_add(&router->table, &waiter->node, hash)) return OMNI_ENOMEM;
  waiter->registered = true;
  waiter_ref(waiter); /* the table's */
  omni_metric_set(router->registered, (int64_t)++router->registered_count);
  count_waiting(router);
  return OMNI_OK;
}

omni_err omni_router_register(omni_router *router, omni_waiter *waiter, const void *key, size_t len) {
  unsigned char *memory;
  assert(omni_waiter_idle(waiter) && "one waiter waits for one key at a time");
  if (!memory_for(len, &memory)) return OMNI_ENOMEM;
  cell_set(&waiter->key, key, len, memory);
  cell_clear(&waiter->answer);
  atomic_store_explicit(&waiter->state, IDLE, memory_order_relaxed); /* nobody else knows it: the lock publishes it */
  uint64_t hash = omni_hash(key, len);
  omni_mutex_lock(&router->mutex);
  omni_err err = enter(router, waiter, hash);
  omni_mutex_unlock(&router->mutex);
  return err;
}

/* The key's waiter, taken out of the table and ours, or NULL. */
static omni_waiter *claim(omni_router *router, const void *key, size_t len) {
  uint64_t hash = omni_hash(key, len);
  omni_mutex_lock(&router->mutex);
  omni_waiter *waiter = find(router, key, len, hash);
  if (waiter != NULL) {
    take_out(router, waiter);
    omni_metric_set(router->delivered, (int64_t)++router->delivered_count);
  } else {
    omni_metric_set(router->late, (int64_t)++router->late_count);
  }
  omni_mutex_unlock(&router->mutex);
  return waiter;
}

omni_err omni_router_deliver(omni_router *router, const void *key, size_t len, const omni_answer *answer) {
  unsigned char *memory; /* first: a waiter that is taken out must get its answer */
  if (!memory_for(answer->len, &memory)) return OMNI_ENOMEM;
  omni_waiter *waiter = claim(router, key, len);
  if (waiter == NULL) {
    free(memory);
    return OMNI_ENOENT;
  }
  omni_sys_point("router.claimed");
  publish(waiter, answer, memory);
  return OMNI_OK;
}

bool omni_router_unregister(omni_router *router, omni_waiter *waiter) {
  omni_mutex_lock(&router->mutex);
  bool mine = waiter->registered;
  if (mine) take_out(router, waiter);
  omni_mutex_unlock(&router->mutex);
  if (mine) omni_waiter_unref(waiter);
  return mine;
}

bool omni_router_fail_waiter(omni_router *router, omni_waiter *waiter, const omni_answer *answer) {
  unsigned char *memory;
  (void)memory_for(answer->len, &memory); /* where it is short, so is the text */
  omni_mutex_lock(&router->mutex);
  bool mine = waiter->registered;
  if (mine) {
    take_out(router, waiter);
    omni_metric_set(router->delivered, (int64_t)++router->delivered_count);
  }
  omni_mutex_unlock(&router->mutex);
  if (mine)
    publish(waiter, answer, memory);
  else
    free(memory);
  return mine;
}

void omni_router_fail_all(omni_router *router, omni_blob *error) {
  omni_answer answer = {true, error->tag, error->data, error->len};
  omni_mutex_lock(&router->mutex);
  if (router->fatal == NULL) router->fatal = omni_blob_ref(error);
  omni_table failing = router->table;
  memset(&router->table, 0, sizeof router->table);
  for (omni_node *node = omni_table_each(&failing, NULL); node != NULL; node = omni_table_each(&failing, node))
    omni_container(node, omni_waiter, node)->registered = false;
  count_waiting(router);
  omni_mutex_unlock(&router->mutex);
  for (omni_node *node = omni_table_each(&failing, NULL); node != NULL;) {
    omni_node *next = omni_table_each(&failing, node);
    unsigned char *memory;
    (void)memory_for(answer.len, &memory); /* where it is short, so is the text */
    publish(omni_container(node, omni_waiter, node), &answer, memory);
    node = next;
  }
  omni_table_free(&failing);
}

omni_blob *omni_router_fatal(omni_router *router) {
  omni_mutex_lock(&router->mutex);
  omni_blob *fatal = router->fatal != NULL ? omni_blob_ref(router->fatal) : NULL;
  omni_mutex_unlock(&router->mutex);
  return fatal;
}

void omni_router_read_stats(omni_router *router, omni_router_stats *stats) {
  stats->registered = (uint64_t)omni_metric_value(router->registered);
  stats->delivered = (uint64_t)omni_metric_value(router->delivered);
  stats->late_results = (uint64_t)omni_metric_value(router->late);
  stats->waiting = (uint64_t)omni_metric_value(router->waiting);
}
