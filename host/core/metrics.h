/*
 * Counters, gauges and log2-bucket histograms with labels. Nothing here fails or raises: where memory is short, a
 * metric is a shared dummy that counts and is never listed.
 */
#ifndef OMNI_CORE_METRICS_H
#define OMNI_CORE_METRICS_H

#include <stdatomic.h>
#include <stdint.h>

/* Bucket 0 counts zeros, bucket i the values 2^(i-1) .. 2^i - 1, the last one everything above as well. */
#define OMNI_METRIC_BUCKETS 64

typedef enum omni_metric_kind { OMNI_COUNTER, OMNI_GAUGE, OMNI_HISTOGRAM } omni_metric_kind;

typedef struct omni_metric omni_metric;

/*
 * A new metric in the process-wide registry, one reference. name and labels are copied; labels is text in the order
 * given, `stage="talker",replica="0"`, or "". Equal name and labels give the same metric (one more reference); asked
 * for in another kind than it has, it is the dummy, with a warning in the log. Never NULL. Any thread.
 */
omni_metric *omni_metric_new(omni_metric_kind kind, const char *name, const char *labels);

/* One more reference. */
omni_metric *omni_metric_ref(omni_metric *metric);

/* Drops a reference; at 0 the metric leaves the registry. */
void omni_metric_unref(omni_metric *metric);

/* Counter or gauge: adds (gauges may go down). Any thread, one relaxed atomic. */
void omni_metric_add(omni_metric *metric, int64_t delta);

/* Gauge: sets. */
void omni_metric_set(omni_metric *metric, int64_t value);

/* Histogram: counts a value. Any thread, two relaxed atomics. */
void omni_metric_observe(omni_metric *metric, uint64_t value);

/* Counter or gauge: its value. Histogram: how many values it has seen. */
int64_t omni_metric_value(omni_metric *metric);

/* A copy of one metric, as it is listed. Strings live until the visit returns. */
typedef struct omni_metric_view {
  omni_metric_kind kind;
  const char *name, *labels;
  int64_t value;                         /* counter, gauge; count of a histogram */
  uint64_t sum;                          /* histogram: sum of the values */
  uint64_t buckets[OMNI_METRIC_BUCKETS]; /* histogram */
} omni_metric_view;

/* Calls visit for each metric in the registry, in order of name and labels, without holding its lock. */
void omni_metrics_visit(void (*visit)(void *arg, const omni_metric_view *view), void *arg);

/* The largest value of a bucket. */
uint64_t omni_metric_bucket_max(int bucket);

/* The q-quantile (0..1) of a histogram: the largest value of the bucket that holds it; 0 for an empty histogram. */
uint64_t omni_metric_quantile(const omni_metric_view *view, double q);

#endif
