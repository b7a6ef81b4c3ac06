/*
 * Watch: the process's one inotify instance and the one thread (RECV) that reads it. Keys wait for events on lock
 * files; nothing polls while nothing happens.
 *
 * Invariant: a key is in the event table before its first probe; so either the probe sees the change or an event finds
 * the key. A callback asks for a retry where no event may come (a held lock). Exception: where no watch can be had
 * (EMFILE, ENOSPC) the keys of that directory are probed every millisecond.
 */
#ifndef OMNI_CORE_WATCH_H
#define OMNI_CORE_WATCH_H

#include "err.h"
#include "sys.h"
#include "table.h"

typedef struct omni_watch_key omni_watch_key;

/* What a key waits for. */
typedef enum omni_watch_what {
  OMNI_WATCH_PUBLISHED, /* IN_CLOSE_WRITE: something may have been put */
  OMNI_WATCH_CONSUMED   /* IN_DELETE: something may have been taken */
} omni_watch_what;

/* What a callback wants next. */
typedef enum omni_watch_next {
  OMNI_WATCH_STAY,  /* wait for the next event */
  OMNI_WATCH_AGAIN, /* call again once all others that are due had their turn */
  OMNI_WATCH_RETRY, /* call again soon: 50 us, 0.2, 1, 5 ms ... while it asks; also on the next event */
  OMNI_WATCH_DONE   /* leave the table; the key is the caller's again */
} omni_watch_next;

/* Owned by the waiter; stays put while in the table. Zero it, then set the first four. */
struct omni_watch_key {
  char name[40]; /* file name in the directory ("ns_hash.lock"). fn may change it: it then waits for the new one */
  omni_watch_what what; /* set by the waiter */
  /* Runs on the watch thread, without locks held. The directory gone: see gone. */
  omni_watch_next (*fn)(omni_watch_key *self);
  /* If not NULL: the key left the table by OMNI_WATCH_DONE or omni_watch_drop and is the waiter's again. Without locks
   * held; may free the key. */
  void (*done)(omni_watch_key *self);
  bool gone; /* set before fn runs when the directory was removed: no event will come */
  /* private to watch.c */
  omni_node node;
  struct omni_watch_key *due_next, *due_prev;
  struct omni_watch_dir *dir;
  uint64_t retry_at;
  unsigned char tries, state;
};

typedef struct omni_watch_stats {
  uint64_t wakes;  /* returns of the thread's wait */
  uint64_t events; /* inotify events read */
  uint64_t overflows;
  uint64_t retries; /* retries run */
  uint64_t keys;    /* in the table now */
  uint64_t watches; /* directories watched now */
  bool polling;     /* for some directory no watch could be had, or no bell: polls at 1 ms */
} omni_watch_stats;

/* Starts the watch thread where it does not run; one more user. */
omni_err omni_watch_start(void);
/* One user less; at 0 the thread ends and its fds are closed before this returns. Not from fn or done. */
void omni_watch_stop(void);
/* The same, but never waits: at 0 the thread ends by itself as soon as it can. From anywhere. */
void omni_watch_release(void);
/* Waits for a thread that nobody uses any more. Not from fn or done. */
void omni_watch_join(void);

/* Puts the key into the table, watches dir, then runs fn once on the watch thread (the first probe). Any thread.
 * EEXIST: fn of this key had not finished leaving the table; it stays in and fn runs once more. ECLOSED: nobody uses
 * the thread. ENOMEM. */
omni_err omni_watch_add(const char *dir, omni_watch_key *key);

/* Runs fn of a key that is in the table once more (no-op if it is not). Any thread. */
void omni_watch_kick(omni_watch_key *key);

/* Takes the key out; when it returns fn does not run and will not; done does not run. Not from within fn of the same
 * key, and without any lock held that fn takes. */
void omni_watch_remove(omni_watch_key *key);

/* Takes the key out without waiting; done runs when fn does not any more: here, or on the watch thread. Nothing happens
 * for a key that is not in the table. Any thread, also from within fn. */
void omni_watch_drop(omni_watch_key *key);

void omni_watch_read_stats(omni_watch_stats *stats);

#endif
