/*
 * Shared-memory connector: keyed put and get between processes through /dev/shm, agreed by names and flock alone.
 *
 *   name = namespace "_" first 20 hex digits of SHA-256(key); segment <shm_dir>/<name>; lock <lock_dir>/<name>.lock
 *   put: 1 open lock (create)  2 flock EX|NB  3 the path still names this inode, else 1  4 unlink a stale segment
 *        5 create it anew, one pwritev of header and data, close  6 flock UN  7 close the lock
 *   get: 1 open lock (read-only)  2 flock EX|NB  3 inode check  4 segment complete?  5 copy or map
 *        6 unlink segment  7 unlink lock, still held  8 flock UN  9 close
 * Unlock comes before close: the kernel queues IN_CLOSE_WRITE before a close drops a flock.
 * Invariants: whoever can lock finds no segment or a whole one; whoever unlinks a lock file holds its flock and has
 * checked its inode; so keys may be put again and again, with nothing lost or stuck.
 */
#ifndef OMNI_CORE_SHM_H
#define OMNI_CORE_SHM_H

#include "blob.h"
#include "err.h"
#include "inbox.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#define OMNI_SHM_NAMESPACE_MAX 9 /* [a-z0-9]{1,9} */
#define OMNI_SHM_NAME_MAX 30     /* namespace, underscore, 20 hex digits */
#define OMNI_SHM_PIECES_MAX 16
#define OMNI_SHM_LOCK_NAME (OMNI_SHM_NAME_MAX + 6) /* name, ".lock", NUL */

typedef struct omni_shm omni_shm;

typedef struct omni_shm_opts {
  const char *namespace; /* required */
  const char *shm_dir;   /* NULL: /dev/shm */
  const char *lock_dir;  /* NULL: shm_dir. Made (0700) where its parent exists, but not for a host-made namespace: a
                             pipeline's folder that is gone must not come back empty */
  bool owned;            /* a host-made namespace (o + 8 base-32 digits), refused otherwise */
  uint64_t view_limit;   /* bytes that live views may hold together; 0 = 1 GiB */
} omni_shm_opts;

/* A segment mapped by get_view, or the copy of a small one: read-only bytes that outlive the unlinked names. */
typedef struct omni_shm_view omni_shm_view;

typedef struct omni_shm_stats {
  uint64_t puts, gets; /* that succeeded */
  uint64_t put_bytes, get_bytes;
  uint64_t busy;          /* tries that found the lock held */
  uint64_t incomplete;    /* segments found torn: their writer died (once per inode) */
  uint64_t cleaned;       /* keys removed by cleanup_prefix and discard */
  uint64_t live_segments; /* keys written through this handle and not consumed yet (looked up now) */
  uint64_t live_views, view_bytes;
} omni_shm_stats;

/* What a get found; only OMNI_SHM_GOT has data. */
typedef enum omni_shm_got {
  OMNI_SHM_GOT,        /* data */
  OMNI_SHM_ABSENT,     /* no lock file: never written, or consumed. An event will announce it */
  OMNI_SHM_BUSY,       /* lock held, or replaced meanwhile: try again soon, no event may come */
  OMNI_SHM_NO_SEGMENT, /* free lock without a segment: try again soon */
  OMNI_SHM_TORN,       /* free lock, incomplete segment: the writer died */
  OMNI_SHM_FAILED      /* *err says why (EACCES: foreign owner or a symlink; E2BIG: absurd length, view limit; ...) */
} omni_shm_got;

/* Opens a connector handle. On failure *handle is NULL and text (size bytes) says what and where. */
omni_err omni_shm_open(const omni_shm_opts *opts, omni_shm **handle, char *text, size_t size);
omni_shm *omni_shm_ref(omni_shm *shm);
void omni_shm_unref(omni_shm *shm);

const char *omni_shm_namespace(omni_shm *shm);
const char *omni_shm_dir(omni_shm *shm);      /* shm_dir */
const char *omni_shm_lock_dir(omni_shm *shm); /* lock_dir */

/* Writes the name of a key (NUL-terminated, at most OMNI_SHM_NAME_MAX bytes) into name. */
void omni_shm_name(omni_shm *shm, const char *key, size_t keylen, char name[OMNI_SHM_NAME_MAX + 1]);

/* One try to put the concatenation of n pieces (at most OMNI_SHM_PIECES_MAX); never waits in the kernel. EBUSY:
 * somebody holds the lock, try again later, or let cleanup_prefix remove what the tries left. ENOSPC, EACCES, EIO,
 * ENOENT (the directory is gone), ENOMEM, ECLOSED: nothing is left behind, an older unread value neither. Any thread.
 */
omni_err omni_shm_put(omni_shm *shm, const char *key, size_t keylen, const struct iovec *pieces, int n);

/* One try to get; never waits. The blob is the caller's. Any thread. */
omni_shm_got omni_shm_get(omni_shm *shm, const char *key, size_t keylen, omni_blob **data, omni_err *err);

/* As get, but maps a large segment instead of copying it. */
omni_shm_got omni_shm_get_view(omni_shm *shm, const char *key, size_t keylen, omni_shm_view **view, omni_err *err);
const void *omni_shm_view_data(omni_shm_view *view, size_t *len);
void omni_shm_view_close(omni_shm_view *view); /* unmaps and frees */

/* Looks whether a key is still there unconsumed (its lock file exists). No side effect, one system call. */
bool omni_shm_present(omni_shm *shm, const char *key, size_t keylen);

/* The same for one put: true while the path names the inode that this handle's last put of the key locked. */
bool omni_shm_unconsumed(omni_shm *shm, const char *key, size_t keylen);

/* Removes one key whoever wrote it, under its lock. OK: its segment is removed; ENOENT: it had none (a lock file that a
 * death left alone is removed too); EBUSY: held. */
omni_err omni_shm_discard(omni_shm *shm, const char *key, size_t keylen);

/* The same for the key whose segment has this name. EINVAL: not a name of this namespace. */
omni_err omni_shm_discard_name(omni_shm *shm, const char *name);

/* Removes the keys written through this handle that start with prefix and are unconsumed; returns how many. Keys whose
 * lock is held by a reader at that moment are being consumed and do not count. */
size_t omni_shm_cleanup_prefix(omni_shm *shm, const char *prefix, size_t len);

/* Later calls fail with ECLOSED, whoever waits is woken, the directories are let go when the last call under way is
 * over; what was put stays (data outlives its writer). Any thread, idempotent. */
void omni_shm_close(omni_shm *shm);

void omni_shm_read_stats(omni_shm *shm, omni_shm_stats *stats);

/* ---- waiting on a loop ---- */

/* Tells a loop that a key may have been put: in the watch's table from new to free. */
typedef struct omni_shm_waiter omni_shm_waiter;

/* From now on woken(arg) runs on the inbox's loop when the key may be there, when the handle is closed, and when the
 * directory is gone (the next get then says so, or omni_shm_waiter_gone does). Get once more after this call, then
 * wait: the table comes first. A get that found the lock held must be retried on a timer. */
omni_err omni_shm_waiter_new(omni_shm *shm, const char *key, size_t keylen, omni_inbox *inbox, void (*woken)(void *),
                             void *arg, omni_shm_waiter **waiter);
/* True when the lock directory was removed: nothing will ever come. */
bool omni_shm_waiter_gone(omni_shm_waiter *waiter);
/* The loop's thread; woken does not run afterwards. NULL is allowed. */
void omni_shm_waiter_free(omni_shm_waiter *waiter);

#endif
