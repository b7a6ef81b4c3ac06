/* The chunk adapter under the sanitizers: streams under window and budget, races of cancel, cleanup and registration,
 * stop in every state of the SAVE thread. */
#include "core/chunk.h"
#include "core/sys_hooks.h"
#include "core/watch.h"
#include "native/shm_check.h"

#include <sched.h>
#include <stdatomic.h>

#define REQUESTS 100
#define CHUNKS 20
#define WINDOW 4
#define SECOND UINT64_C(1000000000)

static uv_loop_t loop;
static omni_inbox *inbox;

/* One request seen from both ends. */
typedef struct stream {
  char req[16];
  unsigned saved, received; /* chunks */
  bool finished;
} stream;

static stream streams[REQUESTS];
static omni_chunks *snd, *rcv;
static unsigned finished_count;
static bool windowed;

static omni_blob *payload_of(unsigned stream_index, unsigned n) {
  unsigned size = 8 + (stream_index * 31 + n * 17) % 3000;
  omni_blob *blob = omni_blob_alloc(size);
  CHECK(blob != NULL);
  memset(blob->data, (int)(n & 0xff), size);
  memcpy(blob->data, &stream_index, 4);
  memcpy(blob->data + 4, &n, 4);
  blob->tag = OMNI_CHUNK_BYTES;
  return blob;
}

/* Saves as long as there is credit. */
static void produce(unsigned i) {
  stream *s = &streams[i];
  while (s->saved < CHUNKS) {
    omni_blob *blob = payload_of(i, s->saved);
    omni_err err = omni_chunks_credit(snd, s->req, blob->len);
    if (err == OMNI_OK) err = omni_chunks_save(snd, s->req, blob, s->saved + 1 == CHUNKS);
    if (err != OMNI_OK) omni_blob_unref(blob);
    if (err == OMNI_EFULL) return;
    CHECK(err == OMNI_OK);
    s->saved++;
  }
}

/* In order, without a gap, whole; never more in our memory than the window's half and what is wanted. */
static void accept_chunk(omni_chunk *chunk) {
  unsigned i, n;
  CHECK(chunk->err == OMNI_OK);
  memcpy(&i, chunk->data->data + chunk->at, 4);
  memcpy(&n, chunk->data->data + chunk->at + 4, 4);
  CHECK(i < REQUESTS && strcmp(chunk->req, streams[i].req) == 0);
  CHECK(n == streams[i].received++);
  CHECK(!windowed || streams[i].saved - n <= WINDOW);
  CHECK(chunk->finished == (n + 1 == CHUNKS));
  finished_count += chunk->finished;
  omni_chunks_consumed(rcv, chunk->req, 1);
}

static void take_all(omni_chunks *a) {
  for (omni_chunk *chunk = omni_chunks_poll(a), *next; chunk != NULL; chunk = next) {
    next = chunk->next;
    accept_chunk(chunk);
    omni_chunk_free(chunk);
  }
}

static void on_receiver(void *arg) {
  (void)arg;
  take_all(rcv);
}

static void on_sender(void *arg) {
  (void)arg;
  for (unsigned i = 0; i < REQUESTS; i++)
    produce(i);
}

static void on_any(void *arg) { (*(unsigned *)arg)++; }

static omni_chunks *adapter(omni_shm *shm, const char *out, const char *in, uint32_t window, uint64_t budget) {
  omni_chunks *a;
  omni_chunks_opts opts = {.connector = shm, .stage_id = out, .src_stage_id = in, .window = window, .budget = budget};
  CHECK(omni_chunks_new(&opts, &a) == OMNI_OK);
  return a;
}

/* Turns the loop until done() or ten seconds are over. */
static void turn_until(bool (*done)(void)) {
  uint64_t deadline = omni_sys_now() + 20 * SECOND;
  omni_inbox_keep(inbox, true);
  while (!done()) {
    CHECK(omni_sys_now() < deadline);
    uv_run(&loop, UV_RUN_ONCE);
  }
  omni_inbox_keep(inbox, false);
}

static bool all_finished(void) { return finished_count == REQUESTS; }

static bool all_counted(void) {
  omni_chunks_stats stats;
  omni_chunks_read_stats(snd, &stats);
  if (stats.senders > 0) sched_yield();
  return stats.senders == 0;
}

/* Many requests at once through window and budget; half of them are registered after their chunks were put. */
static void streams_under_limits(omni_shm *shm, uint32_t window, uint64_t budget) {
  memset(streams, 0, sizeof streams);
  finished_count = 0;
  windowed = window > 0;
  snd = adapter(shm, "a", NULL, window, budget);
  rcv = adapter(shm, NULL, "a", window, 0);
  CHECK(omni_chunks_bind(snd, inbox, on_sender, NULL) == OMNI_OK);
  CHECK(omni_chunks_bind(rcv, inbox, on_receiver, NULL) == OMNI_OK);
  for (unsigned i = 0; i < REQUESTS; i++) {
    snprintf(streams[i].req, sizeof streams[i].req, "r%u", i);
    if (i % 2 == 0) CHECK(omni_chunks_load(rcv, streams[i].req) == OMNI_OK);
    produce(i);
  }
  for (unsigned i = 1; i < REQUESTS; i += 2)
    CHECK(omni_chunks_load(rcv, streams[i].req) == OMNI_OK);
  turn_until(all_finished);
  while (!all_counted()) /* the last chunk may arrive before its put has returned */
    uv_run(&loop, UV_RUN_NOWAIT);
  omni_chunks_stats stats;
  omni_chunks_read_stats(rcv, &stats);
  CHECK(stats.received == REQUESTS * CHUNKS && stats.registered == 0 && stats.stale == 0);
  omni_chunks_read_stats(snd, &stats);
  CHECK(stats.sent == REQUESTS * CHUNKS && stats.queued == 0 && stats.senders == 0);
  omni_chunks_unbind(snd);
  omni_chunks_unbind(rcv);
  omni_chunks_unref(snd);
  omni_chunks_unref(rcv);
}

/* A burst that nobody looks at rings once. */
static void one_bell_per_burst(omni_shm *shm) {
  unsigned woken = 0;
  omni_chunks_stats stats = {0};
  omni_chunks_join_threads(); /* so that nobody else rings */
  omni_chunks *both = adapter(shm, "b", "b", 0, 0);
  CHECK(omni_chunks_bind(both, inbox, on_any, &woken) == OMNI_OK);
  CHECK(omni_chunks_load(both, "burst") == OMNI_OK);
  omni_inbox_keep(inbox, true); /* a loop with nothing alive does not look */
  uv_run(&loop, UV_RUN_NOWAIT);
  uint64_t bells = omni_inbox_bells(inbox);
  for (unsigned n = 0; n < 500; n++)
    CHECK(omni_chunks_save(both, "burst", payload_of(0, n), n == 499) == OMNI_OK);
  while (stats.received < 500)
    omni_chunks_read_stats(both, &stats);
  while (woken == 0)
    uv_run(&loop, UV_RUN_ONCE);
  uv_run(&loop, UV_RUN_NOWAIT);
  omni_inbox_keep(inbox, false);
  CHECK(omni_inbox_bells(inbox) - bells <= 1 && woken == 1);
  unsigned n = 0;
  for (omni_chunk *chunk = omni_chunks_poll(both), *next; chunk != NULL; chunk = next) {
    next = chunk->next;
    CHECK(chunk->finished == (++n == 500));
    omni_chunk_free(chunk);
  }
  CHECK(n == 500);
  omni_chunks_unbind(both);
  omni_chunks_unref(both);
}

/* ---- races ---- */

static atomic_bool noisy;

/* A second user of the handle, as fast as it can. */
static void *make_noise(void *arg) {
  omni_chunks *a = arg;
  unsigned seed = 99;
  while (atomic_load(&noisy)) {
    char req[16];
    snprintf(req, sizeof req, "x%u", next_random(&seed) % 8);
    omni_blob *blob = omni_blob_new("noise", 5);
    blob->tag = OMNI_CHUNK_BYTES;
    if (omni_chunks_save(a, req, blob, next_random(&seed) % 8 == 0) != OMNI_OK) omni_blob_unref(blob);
    (void)omni_chunks_credit(a, req, 5);
    if (next_random(&seed) % 16 == 0) (void)omni_chunks_cleanup_sender(a, req);
  }
  omni_chunks_unref(a);
  return NULL;
}

static void one_random_call(omni_chunks *both, unsigned *seed) {
  char req[16];
  snprintf(req, sizeof req, "x%u", next_random(seed) % 8);
  switch (next_random(seed) % 9) {
  case 0: omni_chunks_cancel_sender(both, req); break;
  case 1: (void)omni_chunks_cleanup_sender(both, req); break;
  case 2: omni_chunks_cleanup_receiver(both, req, true); break;
  case 3: omni_chunks_cleanup_receiver(both, req, false); break;
  case 4:
  case 5: (void)omni_chunks_load(both, req); break;
  case 6: omni_chunks_want(both, req, next_random(seed) % 3); break;
  case 7: omni_chunks_consumed(both, req, 1); break;
  default:
    for (omni_chunk *chunk = omni_chunks_poll(both), *next; chunk != NULL; chunk = next) {
      next = chunk->next;
      omni_chunk_free(chunk);
    }
    uv_run(&loop, UV_RUN_NOWAIT);
  }
}

/* Everything at once from two threads, and stop at a random moment. */
static void races(omni_shm *shm, unsigned seed) {
  unsigned woken = 0;
  omni_chunks *both = adapter(shm, "e", "e", seed % 4, seed % 3 == 0 ? 200 : 0);
  CHECK(omni_chunks_bind(both, inbox, on_any, &woken) == OMNI_OK);
  omni_thread thread;
  atomic_store(&noisy, true);
  CHECK(omni_thread_start(&thread, "noise", make_noise, omni_chunks_ref(both)) == 0);
  for (unsigned i = 0, n = next_random(&seed) % 400; i < n; i++)
    one_random_call(both, &seed);
  omni_chunks_stop(both);
  CHECK(omni_chunks_load(both, "late") == OMNI_ECLOSED);
  atomic_store(&noisy, false);
  omni_thread_join(thread);
  omni_chunks_unbind(both);
  omni_chunks_unref(both);
  uv_run(&loop, UV_RUN_NOWAIT);
}

/* ---- stop ---- */

static atomic_int builders_freed;

static omni_err slow_build(void *ud, const char *req, omni_blob *in, bool is_final, omni_blob **out, char *text,
                           size_t size) {
  (void)ud, (void)req, (void)is_final, (void)text, (void)size;
  *out = omni_blob_ref(in);
  return OMNI_OK;
}

static void builder_free(void *ud) {
  (void)ud;
  atomic_fetch_add(&builders_freed, 1);
}

/* SAVE is held where the rule says; stop returns at once, and what SAVE did there is dropped or stays whole. */
static void stop_while_held(omni_shm *shm, omni_sys_rule_opts where) {
  where.times = 1;
  where.action = OMNI_SYS_HOLD;
  omni_sys_rule *rule = omni_sys_rule_add(&where);
  omni_chunks *a;
  omni_chunks_opts opts = {.connector = shm, .stage_id = "s", .build = slow_build, .build_free = builder_free};
  CHECK(omni_chunks_new(&opts, &a) == OMNI_OK);
  omni_blob *blob = omni_blob_new("x", 1);
  CHECK(omni_chunks_save(a, "r", blob, false) == OMNI_OK);
  CHECK(omni_sys_rule_wait(rule, 10 * SECOND));
  int freed = atomic_load(&builders_freed);
  uint64_t before = omni_sys_now();
  omni_chunks_stop(a);
  CHECK(omni_sys_now() - before < SECOND / 10);
  CHECK(atomic_load(&builders_freed) == freed);
  omni_chunks_unref(a);
  omni_sys_rule_remove(rule);
  omni_sys_rule_unref(rule);
  omni_chunks_join_threads();
  CHECK(atomic_load(&builders_freed) == freed + 1);
}

static void stop_everywhere(omni_shm *shm) {
  stop_while_held(shm, (omni_sys_rule_opts){.op = OMNI_SYS_POINT, .match = "chunk.before_sleep"});
  stop_while_held(shm, (omni_sys_rule_opts){.op = OMNI_SYS_POINT, .match = "chunk.before_build"});
  stop_while_held(shm, (omni_sys_rule_opts){.op = OMNI_SYS_POINT, .match = "chunk.after_build"});
  stop_while_held(shm, (omni_sys_rule_opts){.op = OMNI_SYS_POINT, .match = "chunk.after_put"});
  stop_while_held(shm, (omni_sys_rule_opts){.op = OMNI_SYS_FLOCK});
  stop_while_held(shm, (omni_sys_rule_opts){.op = OMNI_SYS_PWRITEV});
}

/* What the random calls put and nobody took. */
static void sweep(omni_shm *shm) {
  (void)omni_shm_cleanup_prefix(shm, "", 0);
  check_nothing_left();
}

int main(void) {
  begin_namespace();
  CHECK(uv_loop_init(&loop) == 0);
  inbox = omni_inbox_new(&loop, NULL, NULL);
  CHECK(inbox != NULL);
  omni_shm *shm = open_handle(NULL);
  streams_under_limits(shm, 0, 0);
  check_nothing_left();
  streams_under_limits(shm, WINDOW, 0);
  check_nothing_left();
  streams_under_limits(shm, WINDOW, 8192);
  check_nothing_left();
  one_bell_per_burst(shm);
  check_nothing_left();
  for (unsigned i = 0; i < 60; i++)
    races(shm, i * 7919 + 1);
  omni_chunks_join_threads();
  sweep(shm);
  stop_everywhere(shm);
  sweep(shm);
  omni_watch_stats stats;
  omni_watch_read_stats(&stats);
  CHECK(stats.keys == 0 && stats.watches == 0);
  omni_shm_unref(shm);
  omni_inbox_close(inbox);
  uv_run(&loop, UV_RUN_DEFAULT);
  omni_inbox_unref(inbox);
  CHECK(uv_loop_close(&loop) == 0);
  printf("chunk_stress: streams in order under window and budget, races and stops without a trace\n");
  return 0;
}
