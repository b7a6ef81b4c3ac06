/*
 * What the rooms of the connector share: shm.c (handle), shm_keys.c (names, sets of keys), shm_lock.c (lock files),
 * shm_put.c, shm_get.c, shm_remove.c and shm_wait.c. Nobody else includes it.
 */
#ifndef OMNI_CORE_SHM_PRIVATE_H
#define OMNI_CORE_SHM_PRIVATE_H

#include "metrics.h"
#include "shm.h"
#include "sys.h"

#include <stdatomic.h>
#include <sys/types.h>

#define OMNI_SHM_HEADER 8 /* bytes of the length before the data, little-endian */
#define OMNI_SHM_PAGE 4096

/* Again while a signal handler interrupts. */
#define OMNI_SHM_RETRY(result, call)                                                                                   \
  do                                                                                                                   \
    (result) = (call);                                                                                                 \
  while ((result) == -1 && errno == EINTR)

/* ---- names ---- */

/* What a key stands for. Two keys of one namespace are the same iff their digests are. */
typedef struct omni_shm_id {
  unsigned char bytes[10]; /* start of SHA-256(key): the 20 hex digits */
} omni_shm_id;

/* The names of one key. */
typedef struct omni_shm_names {
  omni_shm_id id;
  char segment[OMNI_SHM_NAME_MAX + 1]; /* in shm_dir */
  char lock[OMNI_SHM_LOCK_NAME];       /* in lock_dir */
} omni_shm_names;

/* The digest of a key. */
omni_shm_id omni_shm_id_of(const char *key, size_t len);
/* The names that belong to a digest. */
void omni_shm_names_of(const char *namespace, omni_shm_id id, omni_shm_names *names);

/* ---- sets of keys ---- */

/* One key of a set; inode is the one it was last seen under. */
typedef struct omni_shm_key {
  struct omni_shm_key *chain;         /* next in its bucket */
  struct omni_shm_key *older, *newer; /* by age */
  omni_shm_id id;
  bool stored; /* a put succeeded; false: a try left a lock file and no more */
  ino_t inode;
  size_t len;
  char bytes[]; /* the key itself, for prefixes */
} omni_shm_key;

/* A set of keys, ordered by age. Its mutex is a leaf: no system call is made under it. */
typedef struct omni_shm_keys {
  omni_mutex mutex;
  omni_shm_key **buckets;
  size_t mask; /* buckets - 1 */
  omni_shm_key *oldest, *newest;
  atomic_size_t count; /* read without the mutex as a hint */
} omni_shm_keys;

/* A copy of what identifies an entry, taken under the mutex and used without it. */
typedef struct omni_shm_mark {
  omni_shm_id id;
  ino_t inode;
  bool stored;
} omni_shm_mark;

bool omni_shm_keys_init(omni_shm_keys *keys);
void omni_shm_keys_free(omni_shm_keys *keys);
/* An entry that is in no set yet; NULL when out of memory. Freed with free() if it never enters one. */
omni_shm_key *omni_shm_key_new(omni_shm_id id, const char *key, size_t len);
/* Takes the entry over; replaces one of the same key. Returns whether it was there before with the same inode. */
bool omni_shm_keys_set(omni_shm_keys *keys, omni_shm_key *entry);
/* Looks a key up. */
bool omni_shm_keys_find(omni_shm_keys *keys, omni_shm_id id, omni_shm_mark *mark);
/* Removes the key if it still stands for this inode; inode 0: whatever it stands for. */
void omni_shm_keys_drop(omni_shm_keys *keys, omni_shm_id id, ino_t inode);
/* The oldest key; it becomes the newest. False when there is none. */
bool omni_shm_keys_rotate(omni_shm_keys *keys, omni_shm_mark *mark);
/* Marks of all keys that start with prefix, oldest first; free() it. NULL when there are none. */
omni_shm_mark *omni_shm_keys_match(omni_shm_keys *keys, const char *prefix, size_t len, size_t *n);

/* ---- the handle ---- */

/* Its metrics: field, kind, name. */
#define OMNI_SHM_METRICS(X)                                                                                            \
  X(puts, OMNI_COUNTER, "omni_shm_puts_total")                                                                         \
  X(gets, OMNI_COUNTER, "omni_shm_gets_total")                                                                         \
  X(put_bytes, OMNI_COUNTER, "omni_shm_put_bytes_total")                                                               \
  X(get_bytes, OMNI_COUNTER, "omni_shm_get_bytes_total")                                                               \
  X(busy, OMNI_COUNTER, "omni_shm_busy_total")                                                                         \
  X(incomplete, OMNI_COUNTER, "omni_shm_incomplete_total")                                                             \
  X(cleaned, OMNI_COUNTER, "omni_shm_cleaned_total")                                                                   \
  X(live_views, OMNI_GAUGE, "omni_shm_live_views")                                                                     \
  X(view_bytes, OMNI_GAUGE, "omni_shm_view_bytes")

struct omni_shm {
  atomic_uint refs;
  atomic_uint users; /* calls under way, plus 1 while open: at 0 the directories are closed */
  atomic_bool closed;
  char namespace[OMNI_SHM_NAMESPACE_MAX + 1];
  char *dir, *lock_dir; /* paths as shown to users */
  int dir_fd, lock_fd;  /* O_PATH; equal where the directories are the same */
  uid_t uid;            /* whose files are trusted */
  uint64_t view_limit;
  atomic_uint_fast64_t view_bytes; /* that live views hold; what the limit is compared with */
  omni_shm_keys written;           /* keys put through this handle, by their lock's inode */
  omni_shm_keys torn;              /* keys reported as torn, by their segment's inode */
  omni_mutex waiters_mutex;        /* of the list below; posting to inboxes is done under it */
  omni_shm_waiter *waiters;
#define X(field, kind, name) omni_metric *field;
  struct {
    OMNI_SHM_METRICS(X)
  } metrics;
#undef X
};

/* Begins a call; false when the handle is closed. */
bool omni_shm_enter(omni_shm *shm);
/* Ends a call that omni_shm_enter began. */
void omni_shm_leave(omni_shm *shm);

/* Whether the value under this lock inode is consumed for sure: the path is gone, or names another. */
bool omni_shm_gone(omni_shm *shm, const omni_shm_names *names, ino_t inode);
/* EACCES unless it is a regular file of our own. */
omni_err omni_shm_trust(omni_shm *shm, const struct stat *st);

/* ---- lock files ---- */

typedef struct omni_shm_lock {
  int fd;       /* holds the flock */
  ino_t inode;  /* which the path named when the lock was taken */
  bool created; /* by us: it was not there before */
} omni_shm_lock;

typedef enum omni_shm_locked {
  OMNI_SHM_LOCKED,      /* ours until omni_shm_lock_release; the path names its inode */
  OMNI_SHM_LOCK_ABSENT, /* no such file (where one is to be created: no such directory) */
  OMNI_SHM_LOCK_BUSY,   /* held by somebody; inode and created are set, fd is closed */
  OMNI_SHM_LOCK_STALE,  /* the path named another inode by the time the lock was ours: try again */
  OMNI_SHM_LOCK_FAILED  /* *err says why */
} omni_shm_locked;

/* One try to take a key's lock without waiting. create: make the file where it is missing. */
omni_shm_locked omni_shm_lock_take(omni_shm *shm, const omni_shm_names *names, bool create, omni_shm_lock *lock,
                                   omni_err *err);
/* Unlocks, then closes. */
void omni_shm_lock_release(omni_shm_lock *lock);

/* ---- removal ---- */

/* Under the lock: unlinks the segment and then the lock file. False if the segment was not there, or could not be
 * removed (then the lock file stays as well and *err is set). */
bool omni_shm_unlink_both(omni_shm *shm, const omni_shm_names *names, omni_err *err);

/* Wakes everybody who waits on this handle. */
void omni_shm_wake_waiters(omni_shm *shm);

#endif
