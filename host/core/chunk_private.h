/*
 * What the rooms of the chunk adapter share: chunk.c (life, polling), chunk_send.c (enqueueing), chunk_save.c (the SAVE
 * thread), chunk_credit.c (window and budget), chunk_recv.c (registrations). Nobody else includes it.
 *
 * Locks: adapter.lock first, then SAVE's or the watch's, never two adapters. No system call that a peer can slow down,
 * no build and no callback runs under adapter.lock.
 */
#ifndef OMNI_CORE_CHUNK_PRIVATE_H
#define OMNI_CORE_CHUNK_PRIVATE_H

#include "chunk.h"
#include "metrics.h"
#include "sys.h"
#include "table.h"
#include "watch.h"

#define OMNI_CHUNK_ENVELOPE 6                                               /* bytes before metadata and data */
#define OMNI_CHUNK_KEY_MAX (OMNI_CHUNK_REQ_MAX + OMNI_CHUNK_STAGE_MAX + 24) /* <req>_<stage>_<n>, NUL */

/* Metrics: field, kind, name. stats() reads them. */
#define OMNI_CHUNKS_METRICS(X)                                                                                         \
  X(saved, OMNI_COUNTER, "omni_chunks_saved_total")                                                                    \
  X(sent, OMNI_COUNTER, "omni_chunks_sent_total")                                                                      \
  X(sent_bytes, OMNI_COUNTER, "omni_chunks_sent_bytes_total")                                                          \
  X(received, OMNI_COUNTER, "omni_chunks_received_total")                                                              \
  X(received_bytes, OMNI_COUNTER, "omni_chunks_received_bytes_total")                                                  \
  X(skipped, OMNI_COUNTER, "omni_chunks_skipped_total")                                                                \
  X(dropped, OMNI_COUNTER, "omni_chunks_dropped_total")                                                                \
  X(stale, OMNI_COUNTER, "omni_chunks_stale_total")                                                                    \
  X(put_retries, OMNI_COUNTER, "omni_chunks_put_retries_total")                                                        \
  X(put_failures, OMNI_COUNTER, "omni_chunks_put_failures_total")                                                      \
  X(credit_waits, OMNI_COUNTER, "omni_chunks_credit_waits_total")                                                      \
  X(queued, OMNI_GAUGE, "omni_chunks_queued")                                                                          \
  X(outstanding, OMNI_GAUGE, "omni_chunks_outstanding")                                                                \
  X(outstanding_bytes, OMNI_GAUGE, "omni_chunks_outstanding_bytes")                                                    \
  X(registered, OMNI_GAUGE, "omni_chunks_registered")                                                                  \
  X(senders, OMNI_GAUGE, "omni_chunks_senders")

/* One saved chunk on its way to the connector. */
typedef struct chunk_item {
  struct chunk_item *next;
  omni_blob *snapshot; /* NULL = nil */
  omni_blob *payload;  /* valid when built; NULL = nil */
  size_t cost;         /* bytes counted against the budget while it is queued */
  bool built, is_final;
} chunk_item;

/* Where a sender is, seen from SAVE. IDLE <-> others only under both locks, the rest under SAVE's. */
typedef enum chunk_where {
  CHUNK_IDLE,  /* nothing to do */
  CHUNK_READY, /* in SAVE's list of what can go */
  CHUNK_BUSY,  /* in SAVE's hands: builds or puts */
  CHUNK_PARKED /* waits for retry_at */
} chunk_where;

/* The sending half of one request. */
typedef struct chunk_sender {
  omni_node node;   /* in adapter.senders until dead */
  atomic_uint refs; /* the table's, SAVE's (not IDLE), the watch's (armed) */
  omni_chunks *a;   /* held */
  chunk_where where;
  struct chunk_sender *save_next, *save_prev; /* in SAVE's lists */
  uint64_t retry_at, deadline;                /* of the put that is parked; deadline 0 = not failed yet */
  unsigned tries;
  chunk_item *head, *tail;        /* saved, oldest first */
  chunk_item *current;            /* taken from the head: being built or put. SAVE's while BUSY */
  uint64_t queued;                /* items in the list, and current */
  uint64_t next_id;               /* of the next put */
  uint64_t low;                   /* ids from here to next_id are put and not known to be consumed; only with limits */
  uint64_t *sizes;                /* their bytes, by id & (room - 1) */
  size_t room;                    /* a power of two, or 0 */
  uint64_t queued_cost, put_cost; /* its part of adapter.cost */
  bool cancelled;
  bool done;       /* the final is put; a record of what is not known to be consumed */
  bool dead;       /* out of the table */
  bool removed;    /* ... by a cleanup: a put that is under way is undone */
  omni_err failed; /* not OK: what is saved is dropped until cleanup */
  bool waiting;    /* somebody was refused credit */
  bool in_line;    /* ... for the budget: in adapter.line */
  struct chunk_sender *line_next, *line_prev;
  struct chunk_sender *done_next, *done_prev; /* in adapter.done */
  struct chunk_sender *gone_next, *arm_next;  /* in a list of what is let go, or armed, outside the lock */
  bool armed;                                 /* key is in the watch's table, or on its way there */
  omni_watch_key key;
  char req[];
} chunk_sender;

/* The receiving half of one request. Its identity is the token: whoever commits looks it up again under the lock. */
typedef struct chunk_reg {
  omni_node node;   /* in adapter.regs until dead */
  atomic_uint refs; /* the table's, the watch's, a caller's */
  omni_chunks *a;   /* held */
  omni_watch_key key;
  uint64_t next_id; /* to get next */
  uint32_t unread;  /* committed and not consumed by run; only with a window */
  uint32_t want;    /* chunks that run waits for */
  unsigned tries;   /* in a row that found a lock and no chunk */
  bool dead;        /* out of the table */
  bool broken;      /* an error was reported: not watched, kept until cleanup so that next_id is known */
  struct chunk_reg *gone_next;
  char req[];
} chunk_reg;

struct omni_chunks {
  atomic_uint handles; /* users'; at 0 the adapter stops */
  atomic_uint refs;    /* memory: one for all handles, and senders', registrations', events', SAVE's */
  omni_mutex lock;     /* guards all below */
  omni_shm *shm;
  char *stage, *src_stage;
  uint32_t window, keys_max, prefetch; /* keys_max + prefetch = window */
  uint64_t budget, put_timeout;
  uint32_t tag;
  omni_chunk_build build;
  void *build_ud;
  void (*build_free)(void *);
  bool stopped, saving, watching; /* it uses the SAVE thread, the watch thread */
  omni_table senders, regs;
  omni_chunk *ready, *ready_tail; /* committed, not polled */
  bool notified;                  /* a wake for what is ready is on its way, or was since the last poll */
  omni_inbox *inbox;
  void (*woken)(void *);
  void *arg;
  omni_event event;               /* in the inbox it counts as one reference */
  uint64_t cost;                  /* bytes queued or put and unconsumed; only with limits */
  chunk_sender *line, *line_tail; /* wait for the budget, first come first served */
  chunk_sender *done, *done_tail; /* finished, not known to be consumed; oldest first */
  omni_chunks *farewell_next;     /* in SAVE's list of builders to free */
#define X(field, kind, name) omni_metric *field;
  struct {
    OMNI_CHUNKS_METRICS(X)
  } m;
#undef X
};

/* ---- chunk.c ---- */

/* Memory references. */
omni_chunks *chunk_hold(omni_chunks *a);
void chunk_release(omni_chunks *a);

/* Runs woken on the consumer's loop. Without the lock. */
void chunk_wake(omni_chunks *a);

/* Under the lock: appends to what is ready. Returns whether the caller must chunk_wake after unlocking. */
bool chunk_commit(omni_chunks *a, omni_chunk *chunk);
/* A chunk item for this request; NULL when out of memory. */
omni_chunk *chunk_new(const char *req);
/* The same that says what went wrong. */
omni_chunk *chunk_new_error(const char *req, omni_err err, const char *text, bool sender);

/* Writes the key of a chunk; returns its length. */
size_t chunk_key(char key[OMNI_CHUNK_KEY_MAX], const char *req, const char *stage, uint64_t id);
/* Makes a watch key wait for the lock file of this chunk. */
void chunk_watch_name(omni_chunks *a, omni_watch_key *watch, const char *req, const char *stage, uint64_t id);

/* Whether window or budget are counted. */
static inline bool chunk_limited(const omni_chunks *a) { return a->window > 0 || a->budget > 0; }
/* Under the lock: uses the watch thread from now on. */
omni_err chunk_use_watch(omni_chunks *a);
/* Whether a request id can be part of a key. */
bool chunk_req_ok(const char *req);

/* ---- chunk_send.c ---- */

/* Under the lock. NULL if there is none. */
chunk_sender *chunk_sender_find(omni_chunks *a, const char *req);
void chunk_sender_ref(chunk_sender *s);
void chunk_sender_unref(chunk_sender *s);
void chunk_item_free(chunk_item *item);
/* Under the lock: drops what is queued, but for what is in SAVE's hands. */
void chunk_sender_drop_items(chunk_sender *s);
/* Under the lock: out of the table and all lists; adds it to *gone. */
void chunk_sender_kill(chunk_sender *s, chunk_sender **gone);
/* Without the lock: lets go of what was killed. */
void chunk_senders_let_go(chunk_sender *gone);

/* ---- chunk_save.c ---- */

/* Under the adapter's lock: uses the SAVE thread from now on. */
omni_err chunk_save_use(omni_chunks *a);
/* Under the adapter's lock: something is queued; an IDLE sender can go. */
void chunk_save_ready(chunk_sender *s);
/* Under the adapter's lock: a PARKED sender need not wait for its timer. */
void chunk_save_hurry(chunk_sender *s);
/* Under the adapter's lock: takes a sender out of SAVE's lists if it is not in its hands; returns whether SAVE's
 * reference is now the caller's to drop. */
bool chunk_save_withdraw(chunk_sender *s);
/* Without locks, once per adapter that used SAVE: frees the builder on the SAVE thread and stops using it. */
void chunk_save_farewell(omni_chunks *a);
void chunk_save_join(void);

/* ---- chunk_credit.c ---- */

/* Of a new sender, before anybody else sees it. */
void chunk_credit_init(chunk_sender *s);
/* Under the lock: an item was queued, will not be put, was put under next_id with so many bytes. */
void chunk_credit_queued(chunk_sender *s, const chunk_item *item);
void chunk_credit_unqueued(chunk_sender *s, const chunk_item *item);
void chunk_credit_put(chunk_sender *s, uint64_t bytes);
/* Under the lock: what was put does not count any more. */
void chunk_credit_restart(chunk_sender *s);
/* Under the lock: the final is put; the record stays until it is consumed. */
void chunk_credit_done(chunk_sender *s);
/* Under the lock: whether somebody may get credit by a chunk of this sender that is gone. */
static inline bool chunk_credit_wanted(const chunk_sender *s) { return s->waiting || s->a->line != NULL; }
/* Under the lock: the sender goes; what it had outstanding does not count any more. */
void chunk_credit_forget(chunk_sender *s);
/* Under the lock: whether somebody waits for what this sender's consumption may free, and nobody looks. */
bool chunk_credit_needs_arm(chunk_sender *s);
/* Under the lock: prepares that; takes a reference. */
void chunk_credit_prepare(chunk_sender *s);
/* Without the lock, after prepare: looks at consumption from the watch thread from now on. */
void chunk_credit_arm(chunk_sender *s);
/* Without the lock: looks whether some finished requests are consumed by now, so that their records go. */
void chunk_credit_sweep(omni_chunks *a);

/* ---- chunk_recv.c ---- */

void chunk_reg_unref(chunk_reg *reg);
/* Under the lock: out of the table; adds it to *gone. */
void chunk_reg_kill(chunk_reg *reg, chunk_reg **gone);
/* Without the lock: lets go of what was killed. */
void chunk_regs_let_go(chunk_reg *gone);

#endif
