/* Threads make, count, list and drop the same metrics at once; nothing may be lost, and nothing may be left. */
#include "core/log.h"
#include "core/metrics.h"
#include "core/sys.h"

#include <stdlib.h>
#include <string.h>

#define THREADS 4
#define ROUNDS 2000
#define SHARED 8

#define CHECK(cond)                                                                                                    \
  do {                                                                                                                 \
    if (!(cond)) {                                                                                                     \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #cond);                                                       \
      exit(1);                                                                                                         \
    }                                                                                                                  \
  } while (0)

static omni_metric *kept[SHARED]; /* hold the totals while threads come and go */

static void name_of(int i, char *name, char *labels) {
  snprintf(name, 32, "stress_%d", i);
  snprintf(labels, 32, "n=\"%d\"", i % 3);
}

/* What a listing must always satisfy, whatever goes on meanwhile. */
static void check_order(void *arg, const omni_metric_view *view) {
  char *last = arg, now[80];
  snprintf(now, sizeof now, "%s\x01%s", view->name, view->labels);
  CHECK(strcmp(last, now) < 0);
  strcpy(last, now);
}

static void list(void) {
  char last[80] = "";
  omni_metrics_visit(check_order, last);
}

static void *work(void *arg) {
  for (int round = 0; round < ROUNDS; round++) {
    char name[32], labels[32];
    int i = round % SHARED;
    name_of(i, name, labels);
    omni_metric *metric = omni_metric_new(i < SHARED / 2 ? OMNI_COUNTER : OMNI_HISTOGRAM, name, labels);
    if (i < SHARED / 2)
      omni_metric_add(metric, 3);
    else
      omni_metric_observe(metric, (uint64_t)round);
    omni_metric *brief = omni_metric_new(OMNI_GAUGE, "stress_brief", round % 2 ? (const char *)arg : "");
    omni_metric_set(brief, round);
    if (round % 50 == 0) list();
    omni_metric_unref(brief);
    omni_metric_unref(metric);
  }
  return NULL;
}

static void count(void *arg, const omni_metric_view *view) {
  (void)view;
  ++*(int *)arg;
}

static int listed(void) {
  int n = 0;
  omni_metrics_visit(count, &n);
  return n;
}

static void check_totals(void) {
  uint64_t each = (uint64_t)THREADS * ROUNDS / SHARED;
  for (int i = 0; i < SHARED; i++)
    CHECK((uint64_t)omni_metric_value(kept[i]) == (i < SHARED / 2 ? 3 * each : each));
}

static void copy(void *arg, const omni_metric_view *view) {
  if (strcmp(view->name, "stress_edges") == 0) *(omni_metric_view *)arg = *view;
}

/* Where the values fall, and what the quantiles of an exact distribution are. */
static void check_buckets(void) {
  omni_metric *metric = omni_metric_new(OMNI_HISTOGRAM, "stress_edges", "");
  static const uint64_t values[] = {0, 1, 2, 3, 4, UINT64_MAX};
  for (size_t i = 0; i < sizeof values / sizeof *values; i++)
    omni_metric_observe(metric, values[i]);
  omni_metric_view view = {0};
  omni_metrics_visit(copy, &view);
  CHECK(view.value == 6 && view.sum == 9);
  CHECK(view.buckets[0] == 1 && view.buckets[1] == 1 && view.buckets[2] == 2 && view.buckets[3] == 1);
  CHECK(view.buckets[OMNI_METRIC_BUCKETS - 1] == 1);
  CHECK(omni_metric_quantile(&view, 0) == 0 && omni_metric_quantile(&view, 0.5) == 3);
  CHECK(omni_metric_quantile(&view, 0.8) == 7 && omni_metric_quantile(&view, 1) == UINT64_MAX);
  omni_metric_unref(metric);
}

/* The same name in another kind counts nowhere that is listed, and warns. */
static void check_kinds(void) {
  omni_metric *counter = omni_metric_new(OMNI_COUNTER, "stress_kind", "");
  omni_log_capture(true);
  omni_metric *other = omni_metric_new(OMNI_HISTOGRAM, "stress_kind", "");
  size_t len;
  char *lines = omni_log_take(&len);
  omni_log_capture(false);
  CHECK(other != counter && lines != NULL && len > 0);
  omni_metric_observe(other, 5);
  CHECK(omni_metric_value(counter) == 0);
  free(lines);
  omni_metric_unref(other);
  omni_metric_unref(counter);
}

int main(void) {
  for (int i = 0; i < SHARED; i++) {
    char name[32], labels[32];
    name_of(i, name, labels);
    kept[i] = omni_metric_new(i < SHARED / 2 ? OMNI_COUNTER : OMNI_HISTOGRAM, name, labels);
  }
  static char own[THREADS][16];
  omni_thread threads[THREADS];
  for (int i = 0; i < THREADS; i++) {
    snprintf(own[i], sizeof own[i], "t=\"%d\"", i);
    CHECK(omni_thread_start(&threads[i], "stress", work, own[i]) == 0);
  }
  for (int i = 0; i < THREADS; i++)
    omni_thread_join(threads[i]);
  check_totals();
  CHECK(listed() == SHARED);
  for (int i = 0; i < SHARED; i++)
    omni_metric_unref(kept[i]);
  CHECK(listed() == 0);
  check_buckets();
  check_kinds();
  CHECK(listed() == 0);
  printf("metrics: %d threads, %d rounds, nothing lost or left\n", THREADS, ROUNDS);
  return 0;
}
