/*
 * Inbox and sink under races: four producers against a consumer that takes small batches, 300 rounds of ping-pong
 * between two loops, and inboxes that close while threads post. Nothing may be lost, reordered or called after close.
 */
#include "core/sink.h"
#include "core/sys.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PRODUCERS 4
#define ITEMS 5000
#define ROUNDS 300
#define CLOSES 200

#define CHECK(what)                                                                                                    \
  do {                                                                                                                 \
    if (!(what)) {                                                                                                     \
      fprintf(stderr, "sink_stress: %s:%d: %s\n", __FILE__, __LINE__, #what);                                          \
      abort();                                                                                                         \
    }                                                                                                                  \
  } while (0)

/* What a producer sends. */
typedef struct item {
  int producer, number;
} item;

static omni_err put_item(omni_sink *sink, int producer, int number) {
  item it = {producer, number};
  return omni_sink_put(sink, 0, &it, sizeof it);
}

static bool take_item(omni_sink *sink, item *it) {
  if (!omni_sink_fetch(sink)) return false;
  const omni_item *next = omni_sink_next(sink);
  CHECK(next != NULL);
  CHECK(next->len == sizeof *it);
  memcpy(it, next->data, sizeof *it);
  return true;
}

/* ---- four producers ---- */

typedef struct flood {
  uv_loop_t loop;
  omni_inbox *inbox;
  omni_sink *sink;
  int next[PRODUCERS], taken;
} flood;

typedef struct producer {
  omni_sink *sink;
  int number;
} producer;

static void *produce(void *arg) {
  producer *p = arg;
  for (int i = 0; i < ITEMS; i++)
    CHECK(put_item(p->sink, p->number, i) == OMNI_OK);
  omni_sink_unref(p->sink);
  return NULL;
}

/* The consumer's turn, in the order that the header gives: drain, arm, drain. */
static void consume(void *arg) {
  flood *f = arg;
  for (int drains = 0; drains < 2;) {
    item it;
    int n = 0;
    for (; n < 7 && take_item(f->sink, &it); n++) {
      CHECK(it.number == f->next[it.producer]++);
      f->taken++;
    }
    omni_sink_settle(f->sink);
    if (n == 0 && drains++ == 0) omni_sink_arm(f->sink);
  }
  if (f->taken == PRODUCERS * ITEMS) omni_inbox_keep(f->inbox, false);
}

static void flood_once(void) {
  flood f = {.taken = 0};
  CHECK(uv_loop_init(&f.loop) == 0);
  f.inbox = omni_inbox_new(&f.loop, NULL, NULL);
  f.sink = omni_sink_new(0);
  CHECK(f.inbox != NULL && f.sink != NULL);
  CHECK(omni_sink_bind(f.sink, f.inbox, consume, &f) == OMNI_OK);
  omni_inbox_keep(f.inbox, true);
  omni_thread threads[PRODUCERS];
  producer producers[PRODUCERS];
  for (int i = 0; i < PRODUCERS; i++) {
    producers[i] = (producer){omni_sink_ref(f.sink), i};
    CHECK(omni_thread_start(&threads[i], "producer", produce, &producers[i]) == 0);
  }
  uv_run(&f.loop, UV_RUN_DEFAULT);
  for (int i = 0; i < PRODUCERS; i++)
    omni_thread_join(threads[i]);
  CHECK(f.taken == PRODUCERS * ITEMS);
  omni_sink_unbind(f.sink);
  omni_sink_unref(f.sink);
  omni_inbox_close(f.inbox);
  uv_run(&f.loop, UV_RUN_DEFAULT);
  CHECK(uv_loop_close(&f.loop) == 0);
  omni_inbox_unref(f.inbox);
}

/* ---- ping-pong ---- */

typedef struct player {
  uv_loop_t loop;
  omni_inbox *inbox;
  omni_sink *in, *out;
  bool serves;
  int rounds;
} player;

static void hit(void *arg) {
  player *p = arg;
  for (int drains = 0; drains < 2;) {
    item it;
    if (!take_item(p->in, &it)) {
      if (drains++ == 0) omni_sink_arm(p->in);
      continue;
    }
    omni_sink_settle(p->in);
    CHECK(it.number == p->rounds++);
    if (!p->serves || p->rounds < ROUNDS) CHECK(put_item(p->out, 0, p->serves ? p->rounds : it.number) == OMNI_OK);
  }
  if (p->rounds == ROUNDS) omni_inbox_keep(p->inbox, false);
}

static void *play(void *arg) {
  player *p = arg;
  CHECK(uv_loop_init(&p->loop) == 0);
  p->inbox = omni_inbox_new(&p->loop, NULL, NULL);
  CHECK(p->inbox != NULL && omni_sink_bind(p->in, p->inbox, hit, p) == OMNI_OK);
  omni_inbox_keep(p->inbox, true);
  if (p->serves) CHECK(put_item(p->out, 0, 0) == OMNI_OK);
  uv_run(&p->loop, UV_RUN_DEFAULT);
  CHECK(p->rounds == ROUNDS);
  omni_sink_unbind(p->in);
  omni_inbox_close(p->inbox);
  uv_run(&p->loop, UV_RUN_DEFAULT);
  CHECK(uv_loop_close(&p->loop) == 0);
  omni_inbox_unref(p->inbox);
  return NULL;
}

static void ping_pong(void) {
  omni_sink *there = omni_sink_new(0), *back = omni_sink_new(0);
  CHECK(there != NULL && back != NULL);
  player first = {.in = back, .out = there, .serves = true}, second = {.in = there, .out = back};
  omni_thread thread;
  CHECK(omni_thread_start(&thread, "second", play, &second) == 0);
  play(&first);
  omni_thread_join(thread);
  omni_sink_unref(there);
  omni_sink_unref(back);
}

/* ---- close while others post ---- */

typedef struct poster {
  omni_inbox *inbox;
  omni_sink *sink;
  atomic_bool stop;
} poster;

static void nothing(void *arg) { (void)arg; }

static void *post_on(void *arg) {
  poster *p = arg;
  while (!atomic_load(&p->stop)) {
    (void)put_item(p->sink, 0, 0);
    omni_sink_arm(p->sink); /* so that each put rings */
  }
  return NULL;
}

static void close_once(void) {
  uv_loop_t loop;
  CHECK(uv_loop_init(&loop) == 0);
  poster p = {.inbox = omni_inbox_new(&loop, NULL, NULL), .sink = omni_sink_new(64)};
  CHECK(p.inbox != NULL && p.sink != NULL);
  atomic_init(&p.stop, false);
  CHECK(omni_sink_bind(p.sink, p.inbox, nothing, NULL) == OMNI_OK);
  omni_thread threads[2];
  for (int i = 0; i < 2; i++)
    CHECK(omni_thread_start(&threads[i], "poster", post_on, &p) == 0);
  for (int i = 0; i < 3; i++)
    uv_run(&loop, UV_RUN_NOWAIT);
  omni_inbox_close(p.inbox);
  uv_run(&loop, UV_RUN_DEFAULT);
  CHECK(uv_loop_close(&loop) == 0);
  memset(&loop, 0x55, sizeof loop); /* whoever touches the loop now is seen */
  atomic_store(&p.stop, true);
  for (int i = 0; i < 2; i++)
    omni_thread_join(threads[i]);
  omni_inbox_unref(p.inbox);
  omni_sink_unbind(p.sink);
  omni_sink_unref(p.sink);
}

int main(void) {
  for (int i = 0; i < 5; i++)
    flood_once();
  for (int i = 0; i < 5; i++)
    ping_pong();
  for (int i = 0; i < CLOSES; i++)
    close_once();
  printf("sink_stress: %d items, %d rounds, %d closes\n", 5 * PRODUCERS * ITEMS, 5 * ROUNDS, CLOSES);
  return 0;
}
