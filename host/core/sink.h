/*
 * Sink: many producers, one consumer on a loop; the flag-and-doorbell.
 *
 * Invariant: queue not empty => the consumer is awake or one doorbell is in flight.
 *   producer: 1 append   2 if flag: done; else flag = 1   3 ring (post the event)
 *   consumer: 1 drain    2 (hook)    3 flag = 0   4 drain again   5 suspend until the event
 * Append comes first, so whoever sees the flag set has its item in the queue before the consumer's second drain.
 */
#ifndef OMNI_CORE_SINK_H
#define OMNI_CORE_SINK_H

#include "err.h"
#include "inbox.h"
#include <stddef.h>

typedef struct omni_sink omni_sink;

typedef struct omni_sink_stats {
  uint64_t puts, gets;        /* items accepted, items handed out */
  uint64_t refused;           /* puts beyond the capacity or after close */
  uint64_t wakeups_scheduled; /* cycles: the flag went from 0 to 1 */
  uint64_t depth;             /* items waiting now */
} omni_sink_stats;

/* A sink that is not bound yet: puts only queue. capacity 0 = no limit. NULL when out of memory. One reference. */
omni_sink *omni_sink_new(size_t capacity);
omni_sink *omni_sink_ref(omni_sink *sink);
void omni_sink_unref(omni_sink *sink);

/* References that others hold beside this one: 0 means nobody else can ever put. */
unsigned omni_sink_others(omni_sink *sink);

/* Binds the consumer: events go to inbox, `woken(arg)` runs on its loop. EEXIST if bound already. A doorbell that was
 * due before is rung now. */
omni_err omni_sink_bind(omni_sink *sink, omni_inbox *inbox, void (*woken)(void *), void *arg);

/* Appends a copy of len bytes. Any thread, never waits. EFULL, ECLOSED, ENOMEM. */
omni_err omni_sink_put(omni_sink *sink, uint32_t tag, const void *data, size_t len);

/* One item in the queue. */
typedef struct omni_item {
  size_t len;           /* of data */
  uint32_t tag;         /* the producer's: which kind of value */
  unsigned char data[]; /* aligned for nothing: copy it out */
} omni_item;

/* Consumer: whether there is something to take. Only this looks at what producers have put since the last time. */
bool omni_sink_fetch(omni_sink *sink);

/* Consumer: takes the oldest item of what was fetched, NULL at its end. It lives until the next call of these three. */
const omni_item *omni_sink_next(omni_sink *sink);

/* Consumer: how many items are fetched and not taken, at least; 0 when there are none. */
size_t omni_sink_ahead(omni_sink *sink);

/* Consumer: a batch is over; what it took does not count against the capacity any more. */
void omni_sink_settle(omni_sink *sink);

/* Consumer: flag = 0. Drain once more before suspending. */
void omni_sink_arm(omni_sink *sink);

/* No more puts; the consumer is woken. Items queued can still be drained. Any thread, idempotent. */
void omni_sink_close(omni_sink *sink);
bool omni_sink_closed(omni_sink *sink);

/* Consumer: lets go of the inbox; later doorbells are not rung. Called before the consumer's state ends. */
void omni_sink_unbind(omni_sink *sink);

void omni_sink_read_stats(omni_sink *sink, omni_sink_stats *stats);

#endif
