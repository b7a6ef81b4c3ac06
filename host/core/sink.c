#include "core/sink.h"

#include "core/metrics.h"
#include "core/sys.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAGE_MIN 1024
#define PAGE_MAX (64 * 1024)
#define ALONE (PAGE_MAX / 4) /* an item of this size gets a page of its own, filled before the lock is taken */

/* Items one behind the other. The queue is a list of pages, so that a put allocates next to nothing and the consumer
 * takes all there is with one exchange under the lock. */
typedef struct page {
  struct page *next;
  size_t used, room; /* bytes behind the head */
  size_t items;      /* not handed out yet */
} page;

struct omni_sink {
  atomic_uint refs;
  omni_mutex mutex;  /* protects what follows up to `inbox`; nothing but malloc is called while it is held */
  page *head, *tail; /* what the consumer has not taken yet */
  page *spare;       /* an empty page, or NULL */
  size_t count;      /* items put and not settled */
  size_t capacity;   /* 0 = no limit */
  uint64_t put_count, got_count, wakeup_count;
  bool flag; /* a wakeup is in flight: set by put, cleared only by arm */
  bool closed;
  omni_inbox *inbox; /* the consumer's, a reference; NULL while unbound. Under the lock as well, like woken and arg */
  void (*woken)(void *);
  void *arg;
  omni_event doorbell;
  page *taken;   /* the consumer's alone: pages that it has taken, */
  size_t at;     /* where the next item begins in the first, */
  size_t handed; /* items handed out and not settled, */
  page *empty;   /* and a page on its way to `spare` */
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

static void free_pages(page *list) {
  while (list != NULL) {
    page *next = list->next;
    free(list);
    list = next;
  }
}

void omni_sink_unref(omni_sink *sink) {
  if (sink == NULL || atomic_fetch_sub_explicit(&sink->refs, 1, memory_order_acq_rel) != 1) return;
  free_pages(sink->head);
  free_pages(sink->taken);
  free(sink->spare);
  free(sink->empty);
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
  omni_metric_set(sink->wakeups, (int64_t)++sink->wakeup_count);
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

/* ---- producers ---- */

static page *page_new(size_t room) {
  page *p = malloc(sizeof *p + room);
  if (p != NULL) *p = (page){.room = room};
  return p;
}

/* What an item takes in a page; 0 for one that no page can hold. */
static size_t size_of(size_t len) {
  size_t head = offsetof(omni_item, data), align = _Alignof(omni_item);
  return len < SIZE_MAX / 2 ? (head + len + align - 1) / align * align : 0;
}

static void append(page *p, uint32_t tag, const void *data, size_t len) {
  omni_item *item = (void *)((char *)(p + 1) + p->used);
  item->len = len;
  item->tag = tag;
  if (len > 0) memcpy(item->data, data, len);
  p->used += size_of(len);
  p->items++;
}

/* Under the lock: at the end of the queue. */
static void add_page(omni_sink *sink, page *p) {
  p->next = NULL;
  *(sink->tail != NULL ? &sink->tail->next : &sink->head) = p;
  sink->tail = p;
}

/* Under the lock: a page with room, or NULL. Pages grow with the queue: most sinks never hold much. */
static page *page_with(omni_sink *sink, size_t size) {
  page *p = sink->tail;
  if (p != NULL && p->room - p->used >= size) return p;
  size_t room = p == NULL ? PAGE_MIN : p->room < PAGE_MAX / 2 ? p->room * 2 : PAGE_MAX;
  while (room < size)
    room *= 2;
  p = sink->spare;
  if (p != NULL && p->room >= room)
    sink->spare = NULL;
  else
    p = page_new(room);
  if (p != NULL) add_page(sink, p);
  return p;
}

/* Under the lock. `alone` is the item's own page, or NULL. */
static omni_err admit(omni_sink *sink, page *alone, uint32_t tag, const void *data, size_t len) {
  if (sink->closed) return OMNI_ECLOSED;
  if (sink->capacity > 0 && sink->count >= sink->capacity) return OMNI_EFULL;
  if (alone != NULL) {
    add_page(sink, alone);
  } else {
    page *p = page_with(sink, size_of(len));
    if (p == NULL) return OMNI_ENOMEM;
    append(p, tag, data, len);
  }
  sink->count++;
  /* Set, not added to: the lock makes the addition safe. */
  omni_metric_set(sink->puts, (int64_t)++sink->put_count);
  omni_metric_set(sink->depth, (int64_t)sink->count);
  return OMNI_OK;
}

omni_err omni_sink_put(omni_sink *sink, uint32_t tag, const void *data, size_t len) {
  page *alone = NULL;
  size_t size = size_of(len);
  if (size >= ALONE) {
    alone = page_new(size);
    if (alone == NULL) return OMNI_ENOMEM;
    append(alone, tag, data, len);
  } else if (size == 0) {
    return OMNI_ENOMEM;
  }
  omni_mutex_lock(&sink->mutex);
  omni_err err = admit(sink, alone, tag, data, len);
  /* The append came before this look at the flag: whoever sees the flag up has its item in the queue. */
  omni_inbox *ring = err == OMNI_OK ? raise_flag(sink) : NULL;
  omni_mutex_unlock(&sink->mutex);
  if (err != OMNI_OK) {
    omni_metric_add(sink->refused, 1);
    free(alone);
  }
  ring_doorbell(sink, ring);
  return err;
}

/* ---- the consumer ---- */

/* The first page is used up. One is kept, so that pages circulate instead of being made anew. */
static void leave_page(omni_sink *sink) {
  page *p = sink->taken;
  sink->taken = p->next;
  sink->at = 0;
  bool keep = p->room <= PAGE_MAX && (sink->empty == NULL || sink->empty->room < p->room);
  p->used = 0;
  free(keep ? sink->empty : p);
  if (keep) sink->empty = p;
}

size_t omni_sink_ahead(omni_sink *sink) {
  if (sink->taken != NULL && sink->at == sink->taken->used) leave_page(sink);
  return sink->taken != NULL ? sink->taken->items : 0;
}

bool omni_sink_fetch(omni_sink *sink) {
  if (omni_sink_ahead(sink) > 0) return true;
  omni_mutex_lock(&sink->mutex);
  sink->taken = sink->head;
  sink->head = sink->tail = NULL;
  omni_mutex_unlock(&sink->mutex);
  return sink->taken != NULL;
}

const omni_item *omni_sink_next(omni_sink *sink) {
  if (omni_sink_ahead(sink) == 0) return NULL;
  const omni_item *item = (const void *)((const char *)(sink->taken + 1) + sink->at);
  sink->at += size_of(item->len);
  sink->taken->items--;
  sink->handed++;
  return item;
}

void omni_sink_settle(omni_sink *sink) {
  page *unused = sink->empty;
  if (sink->handed == 0) return;
  omni_mutex_lock(&sink->mutex);
  sink->count -= sink->handed;
  sink->got_count += sink->handed;
  omni_metric_set(sink->gets, (int64_t)sink->got_count);
  omni_metric_set(sink->depth, (int64_t)sink->count);
  if (unused != NULL && (sink->spare == NULL || sink->spare->room < unused->room)) {
    page *smaller = sink->spare;
    sink->spare = unused;
    unused = smaller;
  }
  omni_mutex_unlock(&sink->mutex);
  sink->handed = 0;
  sink->empty = NULL;
  free(unused);
}

void omni_sink_arm(omni_sink *sink) {
  omni_sys_point("sink.arm");
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
