/*
 * Chunk adapter: streams of numbered chunks per request over a connector. One SAVE thread and one RECV thread (the
 * watch thread) serve all adapters of a process; the scheduling thread only snapshots, enqueues and polls.
 *
 * Key = <req>_<id>_<n>; the sender uses its stage_id, the receiver src_stage_id.
 * Envelope = u8 kind, u8 finished, u32 LE metadata length, metadata, data.
 * Invariants: n advances only after a successful put, so ids are gapless; the final chunk always goes out, with nil
 * data when cancelled; the token of a registration is compared under the lock that commits, so nothing of an older
 * registration is delivered after cleanup; a failed put is never silent.
 */
#ifndef OMNI_CORE_CHUNK_H
#define OMNI_CORE_CHUNK_H

#include "blob.h"
#include "err.h"
#include "inbox.h"
#include "shm.h"

#define OMNI_CHUNK_REQ_MAX 200  /* bytes of a request id */
#define OMNI_CHUNK_STAGE_MAX 64 /* bytes of a stage id */

/* How the data of a chunk is encoded (blob.tag of payload blobs). */
typedef enum omni_chunk_kind {
  OMNI_CHUNK_NIL,    /* no data */
  OMNI_CHUNK_BYTES,  /* raw bytes: a Lua string */
  OMNI_CHUNK_BUFFER, /* LuaJIT string.buffer: only between processes of one build */
  OMNI_CHUNK_JSON    /* UTF-8 JSON text */
} omni_chunk_kind;

typedef struct omni_chunks omni_chunks;

/* Runs on the SAVE thread: turns a snapshot into a payload. *out = NULL means nil. On failure returns an error and
 * writes text. `in` stays the caller's. */
typedef omni_err (*omni_chunk_build)(void *ud, const char *req, omni_blob *in, bool is_final, omni_blob **out,
                                     char *text, size_t size);

typedef struct omni_chunks_opts {
  omni_shm *connector;      /* one more reference is taken */
  const char *stage_id;     /* sender side id, or NULL: cannot send */
  const char *src_stage_id; /* receiver side id, or NULL: cannot receive */
  uint32_t window;          /* chunks per request that run has not consumed, 0 = no limit. window/2 of them may wait in
                               the receiver's memory, the rest as keys; with window 1 RECV takes only on demand
                               (omni_chunks_want). Both ends must be told the same window */
  uint64_t budget;          /* bytes unconsumed per adapter, 0 = no limit */
  uint64_t put_timeout;     /* nanoseconds a put may be parked or retried before the request fails; 0 = 5 s */
  omni_chunk_build build;   /* NULL: the snapshot is the payload */
  void *build_ud;
  void (*build_free)(void *ud); /* called once after the last build, on the SAVE thread; by omni_chunks_stop if nothing
                                   was ever saved */
  uint32_t tag;                 /* the owner's: see omni_chunks_tag */
} omni_chunks_opts;

/* One item of a poll. */
typedef struct omni_chunk {
  struct omni_chunk *next;
  bool finished;
  omni_blob *data; /* blob.tag = omni_chunk_kind; the bytes from `at` on are the data; NULL = nil. The taker's */
  size_t at;
  omni_err err; /* not OK: the stream of this request broke here (torn, put failed at our end ...) */
  char *text;   /* its text (malloc), or NULL */
  bool sender;  /* the error is of the sending side of this adapter */
  char req[];   /* request id, NUL-terminated */
} omni_chunk;

typedef struct omni_chunks_stats {
  uint64_t saved, sent, sent_bytes;  /* enqueued; put */
  uint64_t received, received_bytes; /* committed */
  uint64_t skipped, dropped, stale;  /* nil and not final; dropped by cancel or failure; refused by a token */
  uint64_t put_retries, put_failures;
  uint64_t credit_waits;                   /* credit asked and not there */
  uint64_t queued;                         /* waiting for SAVE now */
  uint64_t outstanding, outstanding_bytes; /* put and not known to be consumed now; 0 without window and budget */
  uint64_t registered;                     /* requests being received now */
  uint64_t senders;                        /* requests with sender state now */
} omni_chunks_stats;

/* EINVAL for an id that is empty, too long or has a control character, a quote or a backslash in it. */
omni_err omni_chunks_new(const omni_chunks_opts *opts, omni_chunks **adapter);
omni_chunks *omni_chunks_ref(omni_chunks *a);
/* The last one stops the adapter. */
void omni_chunks_unref(omni_chunks *a);

/* What the owner noted when it made the adapter. */
uint32_t omni_chunks_tag(const omni_chunks *a);

/* Binds the consumer: woken(arg) runs on the inbox's loop when there is something new to poll or credit to look at.
 * EEXIST if it is bound. */
omni_err omni_chunks_bind(omni_chunks *a, omni_inbox *inbox, void (*woken)(void *), void *arg);
/* Loop's thread: woken does not run afterwards. */
void omni_chunks_unbind(omni_chunks *a);

/* Sender. Enqueues a snapshot (takes over the reference if OK; NULL = nil); never waits. ECLOSED after stop, EINVAL for
 * a bad request id (empty, over OMNI_CHUNK_REQ_MAX bytes) or an adapter that cannot send. */
omni_err omni_chunks_save(omni_chunks *a, const char *req, omni_blob *snapshot, bool is_final);
/* What is queued and not final is dropped, what comes later too; the final goes out with nil data. Before the first
 * save it makes the request's state, which then lasts until its final or omni_chunks_cleanup_sender. */
void omni_chunks_cancel_sender(omni_chunks *a, const char *req);
/* May one more chunk (of so many bytes, 0 = unknown) be saved now under window and budget? OK: yes. EFULL: no; woken()
 * will run when that may have changed, then ask again, or give up. EPUT, ERUN: the request's stream has failed.
 * ECLOSED. A request with nothing outstanding always has credit. */
omni_err omni_chunks_credit(omni_chunks *a, const char *req, uint64_t bytes);
/* The same without a look at the system and without queueing for it: for deciding whom to wake. */
omni_err omni_chunks_credit_peek(omni_chunks *a, const char *req, uint64_t bytes);
/* Nobody waits for credit of this request any more. */
void omni_chunks_credit_giveup(omni_chunks *a, const char *req);
/* Forgets a request: drops what is queued, removes its unconsumed keys. Returns how many keys were removed. A put that
 * is under way is undone by SAVE when it ends. */
size_t omni_chunks_cleanup_sender(omni_chunks *a, const char *req);

/* Receiver. Registers a request (idempotent) from chunk 0 on. */
omni_err omni_chunks_load(omni_chunks *a, const char *req);
/* Takes all that was committed since the last call, oldest first per request; the list is the caller's. */
omni_chunk *omni_chunks_poll(omni_chunks *a);
/* Whether a poll would give something. */
bool omni_chunks_pending(omni_chunks *a);
void omni_chunk_free(omni_chunk *chunk);
/* How many chunks of this request its run waits for: RECV takes so many, even if the prefetch is less. */
void omni_chunks_want(omni_chunks *a, const char *req, uint32_t n);
/* Tells that n chunks of req that poll returned were consumed by run: counts against the window, and that many are
 * wanted less. Callers that do not use a window need not call it. */
void omni_chunks_consumed(omni_chunks *a, const char *req, uint32_t n);
/* The commit fence: when it returns nothing of the present registration is delivered any more. With discard, also
 * removes the keys next ... next + window + 1 and what follows them without a gap, so that nothing is
 * left even if the sender is dead. */
void omni_chunks_cleanup_receiver(omni_chunks *a, const char *req, bool discard);

/* Ends both sides; returns at once whatever the threads do (a SAVE that builds finishes on its own; its payload is
 * dropped). Queued saves are dropped; keys put stay; what was received can still be polled. Idempotent. */
void omni_chunks_stop(omni_chunks *a);
bool omni_chunks_stopped(omni_chunks *a);
/* Whether a wake may come without the consumer's doing: requests are registered or being sent, or others hold a handle.
 */
bool omni_chunks_hopeful(omni_chunks *a);

void omni_chunks_read_stats(omni_chunks *a, omni_chunks_stats *stats);

/* Waits for the process's SAVE and RECV threads to end, which they do when nobody uses them. At once where somebody
 * does. Called at exit, and by tests that look for what is left. */
void omni_chunks_join_threads(void);

#endif
