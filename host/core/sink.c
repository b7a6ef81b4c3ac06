#include "core/sink.h"

#include "core/metrics.h"
#include "core/sys.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

struct omni_sink {
  atomic_uint refs;
  omni_mutex mutex; /* protects the queue, the flag and the consumer; never held while anything is called */
  omni_blob **ring; /* circular buffer of `room` slots, a power of two */
  size_t room, head, count, capacity;
  bool flag; /* a wakeup is in flight: set by put, cleared only by arm */
  bool closed;
  omni_inbox *inbox; /* the consumer's, a reference; NULL while unbound */
  void (*woken)(void *);
  void *arg;
  omni_event doorbell;
  omni_metric *puts, *gets, *refused, *wakeups, *depth;
};

static void on_doorbell(omni_event *event);
static void on_dropped(omni_event *event);

static omni_sink *sink_of(omni_event *event) {
  return (omni_sink *)((char *)event - offsetof(omni_sink, doorbell)); // NOLINT: container of an embedded event
}

omni_sink *omni_sink_new(size_t capacity) {
  static atomic_uint ids;
  omni_sink *sink = calloc(1, sizeof *sink);
  if (sink == NULL) return NULL;
  atomic_init(&sink->refs, 1);
  omni_mutex_init(&sink->mutex);
  omni_event_init(&sink->doorbell, on_doorbell, on_dropped);
  sink->capacity = capacity;
  char label[32];
  snprintf(label, sizeof label, "sink=\"%u\"", atomic_fetch_add(&ids, 1) + 1);
  sink->puts = omni_metric_new(OMNI_COUNTER, "omni_sink_puts_total", label);
  sink->gets = omni_metric_new(OMNI_COUNTER, "omni_sink_gets_total", label);
  sink->refused = omni_metric_new(OMNI_COUNTER, "omni_sink_refused_total", label);
  sink->wakeups = omni_metric_new(OMNI_COUNTER, "omni_sink_wakeups_total", label);
  sink->depth = omni_metric_new(OMNI_GAUGE, "omni_sink_depth", label);
  return sink;
}

omni_sink *omni_sink_ref(omni_sink *sink) {
  atomic_fetch_add_explicit(&sink->refs, 1, memory_order_relaxed);
  return sink;
}

void omni_sink_unref(omni_sink *sink) {
  if (sink == NULL || atomic_fetch_sub_explicit(&sink->refs, 1, memory_order_acq_rel) != 1) return;
  for (size_t i = 0; i < sink->count; i++)
    omni_blob_unref(sink->ring[(sink->head + i) & (sink->room - 1)]);
  free(sink->ring);
  omni_inbox_unref(sink->inbox);
  omni_metric *metrics[] = {sink->puts, sink->gets, sink->refused, sink->wakeups, sink->depth};
  for (size_t i = 0; i < sizeof metrics / sizeof *metrics; i++)
    omni_metric_unref(metrics[i]);
  omni_mutex_destroy(&sink->mutex);
  free(sink);
}

unsigned omni_sink_others(omni_sink *sink) { return atomic_load(&sink->refs) - 1; }

static void on_dropped(omni_event *event) { omni_sink_unref(sink_of(event)); }

/* Loop's thread. unbind runs there too, so arg is valid for as long as woken is set. */
static void on_doorbell(omni_event *event) {
  omni_sink *sink = sink_of(event);
  omni_mutex_lock(&sink->mutex);
  void (*woken)(void *) = sink->woken;
  void *arg = sink->arg;
  omni_mutex_unlock(&sink->mutex);
  if (woken != NULL) woken(arg);
  omni_sink_unref(sink);
}

/* Under the lock: raises the flag where it is down. Returns the inbox to ring, with a reference, or NULL. */
static omni_inbox *raise_flag(omni_sink *sink) {
  if (sink->inbox == NULL || sink->flag) return NULL;
  sink->flag = true;
  omni_metric_add(sink->wakeups, 1);
  return omni_inbox_ref(sink->inbox);
}

/* Outside the lock. The delivery owns a reference of the sink, taken before it can run. */
static void ring_doorbell(omni_sink *sink, omni_inbox *inbox) {
  if (inbox == NULL) return;
  omni_sink_ref(sink);
  if (omni_inbox_post(inbox, &sink->doorbell) != OMNI_POSTED) omni_sink_unref(sink);
  omni_inbox_unref(inbox);
}

omni_err omni_sink_bind(omni_sink *sink, omni_inbox *inbox, void (*woken)(void *), void *arg) {
  omni_mutex_lock(&sink->mutex);
  if (sink->inbox != NULL) {
    omni_mutex_unlock(&sink->mutex);
    return OMNI_EEXIST;
  }
  sink->inbox = omni_inbox_ref(inbox);
  sink->woken = woken;
  sink->arg = arg;
  sink->flag = false;
  omni_inbox *ring = sink->count > 0 || sink->closed ? raise_flag(sink) : NULL;
  omni_mutex_unlock(&sink->mutex);
  ring_doorbell(sink, ring);
  return OMNI_OK;
}

void omni_sink_unbind(omni_sink *sink) {
  omni_mutex_lock(&sink->mutex);
  omni_inbox *inbox = sink->inbox;
  sink->inbox = NULL;
  sink->woken = NULL;
  sink->arg = NULL;
  omni_mutex_unlock(&sink->mutex);
  omni_inbox_unref(inbox);
}

/* Under the lock: twice the room, straightened. */
static bool grow(omni_sink *sink) {
  size_t room = sink->room > 0 ? sink->room * 2 : 16;
  omni_blob **ring = malloc(room * sizeof(omni_blob *));
  if (ring == NULL) return false;
  for (size_t i = 0; i < sink->count; i++)
    ring[i] = sink->ring[(sink->head + i) & (sink->room - 1)];
  free(sink->ring);
  sink->ring = ring;
  sink->room = room;
  sink->head = 0;
  return true;
}

omni_err omni_sink_put(omni_sink *sink, omni_blob *blob) {
  omni_err err = OMNI_OK;
  omni_inbox *ring = NULL;
  omni_mutex_lock(&sink->mutex);
  if (sink->closed)
    err = OMNI_ECLOSED;
  else if (sink->capacity > 0 && sink->count >= sink->capacity)
    err = OMNI_EFULL;
  else if (sink->count == sink->room && !grow(sink))
    err = OMNI_ENOMEM;
  else {
    /* The append comes before the look at the flag: whoever sees the flag up has its item in the queue. */
    sink->ring[(sink->head + sink->count++) & (sink->room - 1)] = blob;
    ring = raise_flag(sink);
  }
  omni_mutex_unlock(&sink->mutex);
  omni_metric_add(err == OMNI_OK ? sink->puts : sink->refused, 1);
  if (err == OMNI_OK) omni_metric_add(sink->depth, 1);
  ring_doorbell(sink, ring);
  return err;
}

size_t omni_sink_drain(omni_sink *sink, omni_blob **out, size_t max) {
  omni_mutex_lock(&sink->mutex);
  size_t n = sink->count < max ? sink->count : max;
  for (size_t i = 0; i < n; i++)
    out[i] = sink->ring[(sink->head + i) & (sink->room - 1)];
  if (n > 0) sink->head = (sink->head + n) & (sink->room - 1);
  sink->count -= n;
  omni_mutex_unlock(&sink->mutex);
  if (n > 0) {
    omni_metric_add(sink->gets, (int64_t)n);
    omni_metric_add(sink->depth, -(int64_t)n);
  }
  return n;
}

void omni_sink_arm(omni_sink *sink) {
  omni_mutex_lock(&sink->mutex);
  sink->flag = false;
  omni_mutex_unlock(&sink->mutex);
}

void omni_sink_close(omni_sink *sink) {
  omni_mutex_lock(&sink->mutex);
  omni_inbox *ring = sink->closed ? NULL : raise_flag(sink);
  sink->closed = true;
  omni_mutex_unlock(&sink->mutex);
  ring_doorbell(sink, ring);
}

bool omni_sink_closed(omni_sink *sink) {
  omni_mutex_lock(&sink->mutex);
  bool closed = sink->closed;
  omni_mutex_unlock(&sink->mutex);
  return closed;
}

void omni_sink_read_stats(omni_sink *sink, omni_sink_stats *stats) {
  stats->puts = (uint64_t)omni_metric_value(sink->puts);
  stats->gets = (uint64_t)omni_metric_value(sink->gets);
  stats->refused = (uint64_t)omni_metric_value(sink->refused);
  stats->wakeups_scheduled = (uint64_t)omni_metric_value(sink->wakeups);
  stats->depth = (uint64_t)omni_metric_value(sink->depth);
}
