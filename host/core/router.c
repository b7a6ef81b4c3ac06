#include "core/router.h"

#include "core/metrics.h"
#include "core/sys.h"
#include "core/table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Who has the waiter. IDLE: the caller runs; ASLEEP: it has suspended and wants the bell; DONE: the result is there. */
enum { IDLE, ASLEEP, DONE };

struct omni_waiter {
  atomic_uint refs;
  atomic_int state;
  omni_node node;  /* in the router's table while registered (under its lock) */
  bool registered; /* the same */
  omni_blob *result;
  bool failed;
  omni_inbox *inbox;
  omni_event bell;
  void (*woken)(void *arg, uint64_t token); /* set before ASLEEP, read after it */
  void *arg;
  uint64_t token;
  size_t len;
  unsigned char key[];
};

struct omni_router {
  atomic_uint refs;
  omni_mutex mutex; /* protects table and fatal; nothing is called under it */
  omni_table table;
  omni_blob *fatal;
  omni_metric *registered, *delivered, *late, *waiting;
};

/* ---- waiters ---- */

static omni_waiter *waiter_ref(omni_waiter *waiter) {
  atomic_fetch_add_explicit(&waiter->refs, 1, memory_order_relaxed);
  return waiter;
}

void omni_waiter_unref(omni_waiter *waiter) {
  if (waiter == NULL || atomic_fetch_sub_explicit(&waiter->refs, 1, memory_order_acq_rel) != 1) return;
  omni_blob_unref(waiter->result);
  omni_inbox_unref(waiter->inbox);
  free(waiter);
}

static void on_bell(omni_event *event) {
  omni_waiter *waiter = omni_container(event, omni_waiter, bell);
  waiter->woken(waiter->arg, waiter->token);
  omni_waiter_unref(waiter);
}

static void on_dropped(omni_event *event) { omni_waiter_unref(omni_container(event, omni_waiter, bell)); }

static omni_waiter *waiter_new(const void *key, size_t len, omni_inbox *inbox) {
  omni_waiter *waiter = calloc(1, sizeof *waiter + len);
  if (waiter == NULL) return NULL;
  atomic_init(&waiter->refs, 2); /* the table's and the caller's */
  atomic_init(&waiter->state, IDLE);
  omni_event_init(&waiter->bell, on_bell, on_dropped);
  waiter->inbox = omni_inbox_ref(inbox);
  waiter->len = len;
  memcpy(waiter->key, key, len);
  return waiter;
}

/* The deliverer has taken the waiter out of the table, so it alone writes the result. Gives the table's reference back.
 * The exchange publishes the result, and tells whether the caller sleeps: it cannot fall asleep unseen afterwards. */
static void publish(omni_waiter *waiter, omni_blob *result, bool failed) {
  waiter->result = result;
  waiter->failed = failed;
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

bool omni_waiter_result(omni_waiter *waiter, omni_blob **result, bool *failed) {
  if (atomic_load(&waiter->state) != DONE) return false;
  *result = waiter->result;
  *failed = waiter->failed;
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

void omni_router_unref(omni_router *router) {
  if (router == NULL || atomic_fetch_sub_explicit(&router->refs, 1, memory_order_acq_rel) != 1) return;
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

unsigned omni_router_others(omni_router *router) { return atomic_load(&router->refs) - 1; }

/* Under the lock. */
static omni_waiter *find(omni_router *router, const void *key, size_t len, uint64_t hash) {
  for (omni_node *node = omni_table_first(&router->table, hash); node != NULL; node = omni_table_next(node)) {
    omni_waiter *waiter = omni_container(node, omni_waiter, node);
    if (waiter->len == len && memcmp(waiter->key, key, len) == 0) return waiter;
  }
  return NULL;
}

/* Under the lock. */
static void take_out(omni_router *router, omni_waiter *waiter) {
  omni_table_remove(&router->table, &waiter->node);
  waiter->registered = false;
}

omni_err omni_router_register(omni_router *router, const void *key, size_t len, omni_inbox *inbox,
                              omni_waiter **result) {
  omni_waiter *waiter = waiter_new(key, len, inbox);
  if (waiter == NULL) return OMNI_ENOMEM;
  uint64_t hash = omni_hash(key, len);
  omni_err err = OMNI_OK;
  omni_mutex_lock(&router->mutex);
  if (router->fatal != NULL)
    err = OMNI_ECANCELED;
  else if (find(router, key, len, hash) != NULL)
    err = OMNI_EEXIST;
  else if (!omni_table_add(&router->table, &waiter->node, hash))
    err = OMNI_ENOMEM;
  else
    waiter->registered = true;
  omni_mutex_unlock(&router->mutex);
  if (err != OMNI_OK) {
    omni_waiter_unref(waiter);
    omni_waiter_unref(waiter);
    return err;
  }
  omni_metric_add(router->registered, 1);
  omni_metric_add(router->waiting, 1);
  *result = waiter;
  return OMNI_OK;
}

bool omni_router_deliver(omni_router *router, const void *key, size_t len, omni_blob *result, bool failed) {
  uint64_t hash = omni_hash(key, len);
  omni_mutex_lock(&router->mutex);
  omni_waiter *waiter = find(router, key, len, hash);
  if (waiter != NULL) take_out(router, waiter);
  omni_mutex_unlock(&router->mutex);
  omni_metric_add(waiter != NULL ? router->delivered : router->late, 1);
  if (waiter == NULL) return false;
  omni_metric_add(router->waiting, -1);
  publish(waiter, result, failed);
  return true;
}

bool omni_router_unregister(omni_router *router, omni_waiter *waiter) {
  omni_mutex_lock(&router->mutex);
  bool mine = waiter->registered;
  if (mine) take_out(router, waiter);
  omni_mutex_unlock(&router->mutex);
  if (!mine) return false;
  omni_metric_add(router->waiting, -1);
  omni_waiter_unref(waiter);
  return true;
}

void omni_router_fail_all(omni_router *router, omni_blob *error) {
  omni_table failing = {0};
  omni_mutex_lock(&router->mutex);
  if (router->fatal == NULL) router->fatal = omni_blob_ref(error);
  failing = router->table;
  memset(&router->table, 0, sizeof router->table);
  for (omni_node *node = omni_table_each(&failing, NULL); node != NULL; node = omni_table_each(&failing, node))
    omni_container(node, omni_waiter, node)->registered = false;
  omni_mutex_unlock(&router->mutex);
  for (omni_node *node = omni_table_each(&failing, NULL); node != NULL;) {
    omni_node *next = omni_table_each(&failing, node);
    omni_metric_add(router->waiting, -1);
    publish(omni_container(node, omni_waiter, node), omni_blob_ref(error), true);
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
