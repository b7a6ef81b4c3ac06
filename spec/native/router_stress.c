/*
 * Router under races: three callers on loops of their own register, sleep and give up at random; two deliverers answer
 * each key twice, late or early; at the end everybody fails at once. Each register ends in exactly one result or one
 * unregister, a second delivery of a key is always late, and no bell rings for who is gone.
 */
#include "core/router.h"
#include "core/sys.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CALLERS 3
#define CALLS 2000

#define CHECK(what)                                                                                                    \
  do {                                                                                                                 \
    if (!(what)) {                                                                                                     \
      fprintf(stderr, "router_stress: %s:%d: %s\n", __FILE__, __LINE__, #what);                                        \
      abort();                                                                                                         \
    }                                                                                                                  \
  } while (0)

/* The newest call of each caller, for the deliverers to aim at: caller << 32 | number. */
static _Atomic uint64_t aim[CALLERS];
static atomic_uint results, given_up, found;
static atomic_bool over;

typedef struct caller {
  omni_router *router;
  uv_loop_t loop;
  omni_inbox *inbox;
  omni_waiter *waiter;
  uint64_t id;
  bool woken;
} caller;

static void on_woken(void *arg, uint64_t token) {
  caller *c = arg;
  CHECK(token == atomic_load(&aim[c->id]));
  c->woken = true;
}

static void take(omni_waiter *waiter, uint64_t key) {
  omni_answer answer;
  CHECK(omni_waiter_result(waiter, &answer));
  CHECK(!answer.failed && answer.tag == 7 && answer.len >= sizeof key && memcmp(answer.data, &key, sizeof key) == 0);
  atomic_fetch_add(&results, 1);
}

/* Waiters serve one call after the other, as long as nobody else has a hand on them. */
static omni_waiter *idle_waiter(caller *c) {
  if (c->waiter != NULL && omni_waiter_idle(c->waiter)) return c->waiter;
  omni_waiter_unref(c->waiter);
  c->waiter = omni_waiter_new(c->inbox);
  CHECK(c->waiter != NULL);
  return c->waiter;
}

static void call_once(caller *c, uint64_t key, unsigned patience) {
  omni_waiter *waiter = idle_waiter(c);
  CHECK(omni_router_register(c->router, waiter, &key, sizeof key) == OMNI_OK);
  atomic_store(&aim[c->id], key);
  c->woken = false;
  if (!omni_waiter_sleep(waiter, on_woken, c, key)) {
    take(waiter, key);
  } else {
    bool stays = patience % 2 == 0; /* half of the calls wait as long as it takes */
    for (unsigned i = 0; (i < patience || stays) && !c->woken; i++)
      uv_run(&c->loop, stays ? UV_RUN_ONCE : UV_RUN_NOWAIT);
    if (c->woken)
      take(waiter, key);
    else if (omni_router_unregister(c->router, waiter))
      atomic_fetch_add(&given_up, 1);
    else { /* a result is on its way: it comes */
      while (!c->woken)
        uv_run(&c->loop, UV_RUN_NOWAIT);
      take(waiter, key);
    }
  }
}

static void *call(void *arg) {
  caller *c = arg;
  CHECK(uv_loop_init(&c->loop) == 0);
  c->inbox = omni_inbox_new(&c->loop, NULL, NULL);
  CHECK(c->inbox != NULL);
  omni_inbox_keep(c->inbox, true); /* or uv_run sees no reason to look at it */
  unsigned seed = (unsigned)c->id + 1;
  for (uint64_t i = 1; i <= CALLS; i++)
    call_once(c, c->id << 32 | i, (unsigned)rand_r(&seed) % 50);
  omni_waiter_unref(c->waiter);
  omni_inbox_close(c->inbox);
  uv_run(&c->loop, UV_RUN_DEFAULT);
  CHECK(uv_loop_close(&c->loop) == 0);
  omni_inbox_unref(c->inbox);
  return NULL;
}

static void *deliver(void *arg) {
  omni_router *router = arg;
  for (unsigned i = 0; !atomic_load(&over); i++) {
    uint64_t key = atomic_load(&aim[i % CALLERS]);
    for (int twice = 0; twice < 2; twice++) {
      uint64_t words[16] = {key}; /* half of them too long to be stored in place */
      omni_answer answer = {false, 7, words, i % 2 == 0 ? sizeof key : sizeof words};
      omni_err err = omni_router_deliver(router, &key, sizeof key, &answer);
      CHECK(err == OMNI_OK || err == OMNI_ENOENT);
      if (err == OMNI_OK) atomic_fetch_add(&found, 1);
    }
  }
  return NULL;
}

/* Waiters of a closed inbox and of a failed router are freed, with nobody to wake. */
static void fail_everybody(omni_router *router) {
  uv_loop_t loop;
  CHECK(uv_loop_init(&loop) == 0);
  omni_inbox *inbox = omni_inbox_new(&loop, NULL, NULL);
  omni_waiter *waiters[100];
  for (uint64_t key = 1; key <= 100; key++) {
    waiters[key - 1] = omni_waiter_new(inbox);
    CHECK(waiters[key - 1] != NULL);
    CHECK(omni_router_register(router, waiters[key - 1], &key, sizeof key) == OMNI_OK);
  }
  omni_blob *error = omni_blob_new("EIO: over", 9);
  omni_router_fail_all(router, error);
  omni_blob_unref(error);
  for (int i = 0; i < 100; i++) {
    omni_answer answer;
    CHECK(omni_waiter_result(waiters[i], &answer) && answer.failed && answer.len == 9);
    CHECK(!omni_router_unregister(router, waiters[i]));
  }
  uint64_t key = 1;
  CHECK(omni_router_register(router, waiters[0], &key, sizeof key) == OMNI_ECANCELED);
  for (int i = 0; i < 100; i++)
    omni_waiter_unref(waiters[i]);
  omni_inbox_close(inbox);
  uv_run(&loop, UV_RUN_DEFAULT);
  CHECK(uv_loop_close(&loop) == 0);
  omni_inbox_unref(inbox);
}

int main(void) {
  omni_router *router = omni_router_new();
  CHECK(router != NULL);
  static caller callers[CALLERS];
  omni_thread threads[CALLERS], deliverers[2];
  for (uint64_t i = 0; i < CALLERS; i++) {
    callers[i].router = router;
    callers[i].id = i;
    CHECK(omni_thread_start(&threads[i], "caller", call, &callers[i]) == 0);
  }
  for (int i = 0; i < 2; i++)
    CHECK(omni_thread_start(&deliverers[i], "deliverer", deliver, router) == 0);
  for (int i = 0; i < CALLERS; i++)
    omni_thread_join(threads[i]);
  atomic_store(&over, true);
  for (int i = 0; i < 2; i++)
    omni_thread_join(deliverers[i]);
  CHECK(atomic_load(&results) + atomic_load(&given_up) == CALLERS * CALLS);
  CHECK(atomic_load(&found) == atomic_load(&results));
  omni_router_stats stats;
  omni_router_read_stats(router, &stats);
  CHECK(stats.waiting == 0 && stats.delivered == atomic_load(&found));
  fail_everybody(router);
  omni_router_unref(router);
  printf("router_stress: %u results, %u given up\n", atomic_load(&results), atomic_load(&given_up));
  return 0;
}
