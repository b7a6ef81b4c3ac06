/*
 * The one way in which a thread wakes another's loop: a multi-producer inbox with one bell.
 *
 * Invariant: an event that is queued is delivered on the loop's thread, or dropped when the inbox closes; exactly one
 * of the two. At most one doorbell is rung per wake cycle.
 */
#ifndef OMNI_CORE_INBOX_H
#define OMNI_CORE_INBOX_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

typedef struct omni_inbox omni_inbox;

/*
 * A message slot, embedded in the object that it speaks for. Posting it while it is queued does nothing: the delivery
 * that is on its way serves both. So an object needs one event per consumer, and posting never allocates.
 * The poster guarantees that the object lives until deliver or drop has run (it takes a reference before a post that
 * returns true, and deliver/drop give it back).
 */
typedef struct omni_event {
  struct omni_event *next;                  /* owned by the inbox while queued */
  atomic_bool queued;                       /* set by post, cleared just before deliver or drop runs */
  void (*deliver)(struct omni_event *self); /* runs on the loop's thread */
  void (*drop)(struct omni_event *self);    /* runs instead when the inbox closes first; on the closer's thread */
} omni_event;

/* What omni_inbox_post did. */
typedef enum omni_posted {
  OMNI_POSTED,        /* queued now: deliver or drop will run once */
  OMNI_POSTED_BEFORE, /* was queued already: the delivery on its way serves this post too */
  OMNI_POSTED_CLOSED  /* the inbox is closed: nothing will run */
} omni_posted;

/* Prepares an event; call once before its first post. */
void omni_event_init(omni_event *event, void (*deliver)(omni_event *), void (*drop)(omni_event *));

/* An inbox on this loop, bound to the calling thread; NULL when out of memory. Its bell is unreferenced, so that it
 * does not keep the loop alive. `after`, if not NULL, runs on the loop's thread after each batch of deliveries. */
omni_inbox *omni_inbox_new(uv_loop_t *loop, void (*after)(void *), void *arg);

/* One more reference (any thread); returns its argument. Whoever posts holds a reference for the whole post. */
omni_inbox *omni_inbox_ref(omni_inbox *inbox);

/* Drops a reference (any thread). */
void omni_inbox_unref(omni_inbox *inbox);

/* Queues an event; any thread, never blocks on the consumer. */
omni_posted omni_inbox_post(omni_inbox *inbox, omni_event *event);

/* Closes: later posts return OMNI_POSTED_CLOSED, undelivered events are dropped, the bell's handle is closed (run the
 * loop once more). Loop's thread only; idempotent. Does not drop the caller's reference. */
void omni_inbox_close(omni_inbox *inbox);

/* Keeps the loop alive (true) or not (false). Loop's thread only. */
void omni_inbox_keep(omni_inbox *inbox, bool keep);

/* Doorbells rung so far (any thread). */
uint64_t omni_inbox_bells(omni_inbox *inbox);

#endif
