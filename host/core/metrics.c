#include "core/metrics.h"
#include "core/log.h"
#include "core/sys.h"

#include <stdlib.h>
#include <string.h>

#define TABLE_SIZE 1024 /* chains of the registry; more metrics than this only make them longer */

struct omni_metric {
  omni_metric *next; /* in its chain; under registry.mutex */
  int64_t refs;      /* under registry.mutex */
  omni_metric_kind kind;
  const char *name, *labels;  /* stored behind the struct */
  _Atomic int64_t value;      /* counter, gauge; observations of the dummy */
  _Atomic uint64_t sum;       /* histogram */
  _Atomic uint64_t buckets[]; /* histogram: OMNI_METRIC_BUCKETS; none otherwise */
};

/* Lock order: the mutex is a leaf; nothing is called while it is held but malloc, free and string functions. */
static struct {
  omni_mutex mutex;
  size_t count; /* metrics in all chains */
  omni_metric *chains[TABLE_SIZE];
} registry = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* Stands in where memory is short. It has no buckets and is a counter, so that nothing reaches behind it. */
static omni_metric dummy = {.refs = 1, .kind = OMNI_COUNTER, .name = "", .labels = ""};

static uint32_t hash_text(uint32_t hash, const char *text) {
  for (; *text != '\0'; text++)
    hash = (hash ^ (unsigned char)*text) * 16777619u;
  return hash;
}

/* The chain of a name and its labels (FNV-1a over both). */
static omni_metric **chain_of(const char *name, const char *labels) {
  return &registry.chains[hash_text(hash_text(2166136261u, name), labels) % TABLE_SIZE];
}

/* Caller holds the mutex. */
static omni_metric *find(omni_metric *metric, const char *name, const char *labels) {
  while (metric != NULL && (strcmp(metric->name, name) != 0 || strcmp(metric->labels, labels) != 0))
    metric = metric->next;
  return metric;
}

static omni_metric *create(omni_metric_kind kind, const char *name, const char *labels) {
  size_t head = sizeof(omni_metric) + (kind == OMNI_HISTOGRAM ? OMNI_METRIC_BUCKETS * sizeof(_Atomic uint64_t) : 0);
  size_t name_size = strlen(name) + 1, labels_size = strlen(labels) + 1;
  omni_metric *metric = calloc(1, head + name_size + labels_size);
  if (metric == NULL) return NULL;
  char *text = (char *)metric + head;
  metric->name = memcpy(text, name, name_size);
  metric->labels = memcpy(text + name_size, labels, labels_size);
  metric->kind = kind;
  return metric;
}

/* Caller holds the mutex. NULL when memory is short. */
static omni_metric *find_or_create(omni_metric_kind kind, const char *name, const char *labels) {
  omni_metric **chain = chain_of(name, labels);
  omni_metric *metric = find(*chain, name, labels);
  if (metric != NULL) return metric;
  metric = create(kind, name, labels);
  if (metric == NULL) return NULL;
  metric->next = *chain;
  *chain = metric;
  registry.count++;
  return metric;
}

omni_metric *omni_metric_new(omni_metric_kind kind, const char *name, const char *labels) {
  omni_mutex_lock(&registry.mutex);
  omni_metric *metric = find_or_create(kind, name, labels);
  bool usable = metric != NULL && metric->kind == kind;
  if (usable) metric->refs++;
  omni_mutex_unlock(&registry.mutex);
  if (usable) return metric;
  if (metric != NULL) omni_log(OMNI_LOG_WARN, "metric %s{%s} exists as another kind; not counted", name, labels);
  return &dummy;
}

/* Takes a metric out of its chain. Caller holds the mutex. */
static void unlink_metric(omni_metric *metric) {
  omni_metric **at = chain_of(metric->name, metric->labels);
  while (*at != metric)
    at = &(*at)->next;
  *at = metric->next;
  registry.count--;
}

omni_metric *omni_metric_ref(omni_metric *metric) {
  omni_mutex_lock(&registry.mutex);
  metric->refs++;
  omni_mutex_unlock(&registry.mutex);
  return metric;
}

void omni_metric_unref(omni_metric *metric) {
  if (metric == NULL || metric == &dummy) return;
  /* The count changes under the mutex only: a metric at 0 can then not be found and revived by omni_metric_new. */
  omni_mutex_lock(&registry.mutex);
  bool last = --metric->refs == 0;
  if (last) unlink_metric(metric);
  omni_mutex_unlock(&registry.mutex);
  if (last) free(metric);
}

/* Values are relaxed throughout: a metric orders nothing, it only must not lose an addition. */
void omni_metric_add(omni_metric *metric, int64_t delta) {
  atomic_fetch_add_explicit(&metric->value, delta, memory_order_relaxed);
}

void omni_metric_set(omni_metric *metric, int64_t value) {
  atomic_store_explicit(&metric->value, value, memory_order_relaxed);
}

void omni_metric_observe(omni_metric *metric, uint64_t value) {
  if (metric->kind != OMNI_HISTOGRAM) {
    omni_metric_add(metric, 1);
    return;
  }
  int bucket = value == 0 ? 0 : 64 - __builtin_clzll(value);
  if (bucket >= OMNI_METRIC_BUCKETS) bucket = OMNI_METRIC_BUCKETS - 1;
  atomic_fetch_add_explicit(&metric->buckets[bucket], 1, memory_order_relaxed);
  atomic_fetch_add_explicit(&metric->sum, value, memory_order_relaxed);
}

int64_t omni_metric_value(omni_metric *metric) {
  if (metric->kind != OMNI_HISTOGRAM) return atomic_load_explicit(&metric->value, memory_order_relaxed);
  uint64_t count = 0;
  for (int i = 0; i < OMNI_METRIC_BUCKETS; i++)
    count += atomic_load_explicit(&metric->buckets[i], memory_order_relaxed);
  return (int64_t)count;
}

static void view_of(omni_metric *metric, omni_metric_view *view) {
  *view = (omni_metric_view){.kind = metric->kind, .name = metric->name, .labels = metric->labels};
  if (metric->kind != OMNI_HISTOGRAM) {
    view->value = omni_metric_value(metric);
    return;
  }
  /* The count is the sum of the copied buckets, so that quantiles and cumulative sums of one view agree. */
  for (int i = 0; i < OMNI_METRIC_BUCKETS; i++) {
    view->buckets[i] = atomic_load_explicit(&metric->buckets[i], memory_order_relaxed);
    view->value += (int64_t)view->buckets[i];
  }
  view->sum = atomic_load_explicit(&metric->sum, memory_order_relaxed);
}

static int compare(const void *a, const void *b) {
  const omni_metric *x = *(omni_metric *const *)a, *y = *(omni_metric *const *)b;
  int order = strcmp(x->name, y->name);
  return order != 0 ? order : strcmp(x->labels, y->labels);
}

/* All metrics, one reference each; NULL where there are none or memory is short. */
static omni_metric **collect(size_t *count) {
  omni_mutex_lock(&registry.mutex);
  omni_metric **all = registry.count > 0 ? malloc(registry.count * sizeof(omni_metric *)) : NULL;
  *count = 0;
  for (size_t i = 0; all != NULL && i < TABLE_SIZE; i++)
    for (omni_metric *metric = registry.chains[i]; metric != NULL; metric = metric->next) {
      metric->refs++;
      all[(*count)++] = metric;
    }
  omni_mutex_unlock(&registry.mutex);
  return all;
}

void omni_metrics_visit(void (*visit)(void *arg, const omni_metric_view *view), void *arg) {
  size_t count;
  omni_metric **all = collect(&count);
  if (all == NULL) return;
  qsort(all, count, sizeof *all, compare);
  for (size_t i = 0; i < count; i++) {
    omni_metric_view view;
    view_of(all[i], &view);
    visit(arg, &view);
    omni_metric_unref(all[i]);
  }
  free(all);
}

uint64_t omni_metric_bucket_max(int bucket) {
  if (bucket >= OMNI_METRIC_BUCKETS - 1) return UINT64_MAX;
  return bucket <= 0 ? 0 : ((uint64_t)1 << bucket) - 1;
}

uint64_t omni_metric_quantile(const omni_metric_view *view, double q) {
  if (view->value <= 0) return 0;
  double rank = q * (double)view->value;
  uint64_t seen = 0;
  for (int i = 0; i < OMNI_METRIC_BUCKETS; i++) {
    seen += view->buckets[i];
    if (seen > 0 && (double)seen >= rank) return omni_metric_bucket_max(i);
  }
  return omni_metric_bucket_max(OMNI_METRIC_BUCKETS - 1);
}
