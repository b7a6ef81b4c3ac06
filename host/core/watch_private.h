/*
 * What the rooms of the watch share: watch.c (keys in and out), watch_dir.c (what is due, directories), watch_loop.c
 * (the thread). Nobody else includes it.
 */
#ifndef OMNI_CORE_WATCH_PRIVATE_H
#define OMNI_CORE_WATCH_PRIVATE_H

#include "service.h"
#include "watch.h"

/* Bits of omni_watch_key.state. */
enum {
  KEY_IN = 1,       /* in the table */
  KEY_PROBE = 2,    /* in the list of keys to run now */
  KEY_RETRY = 4,    /* in the list of keys to run at retry_at */
  KEY_RUNNING = 8,  /* fn runs */
  KEY_AGAIN = 16,   /* added or kicked while fn ran: run it once more */
  KEY_LEAVING = 32, /* dropped or removed while fn ran: takes effect when it returns */
  KEY_FENCED = 64   /* ... by a remove, which waits: done does not run */
};

/* A directory in which keys wait. */
typedef struct omni_watch_dir {
  struct omni_watch_dir *next;
  int wd;            /* -1: not watched. Two paths of one directory share it */
  uint32_t mask;     /* events asked for */
  bool gone;         /* removed: there is nothing to wait for */
  unsigned waits[2]; /* keys per omni_watch_what; freed when both are 0 */
  char path[];
} watch_dir;

/* Keys that are due, oldest first. */
typedef struct due_list {
  omni_watch_key *head, *tail;
  size_t len;
} due_list;

/* All of the watch. service.lock guards it; it is a leaf for callers: no callback and no lock but the log's is taken
 * under it. */
typedef struct watch_state {
  omni_service service;
  omni_cond settled; /* a callback returned while a remove waited for it */
  int inotify, bell; /* -1: could not be had */
  bool moved;        /* since the last wait a key went on to another name: something was taken */
  unsigned streak;   /* waits in a row that were short and followed by that: a burst */
  bool asleep, rung; /* the thread is in ppoll, or about to be; its bell was rung since */
  watch_dir *dirs;   /* few: one per receiving replica that we read from or wait for */
  omni_table keys;   /* by directory and name */
  due_list probes, retries;
  bool complained; /* about watches that could not be had: said once */
  omni_watch_stats stats;
} watch_state;
extern watch_state omni_watch_all;
#define W omni_watch_all

/* All of these: under the lock. */

/* ---- watch_dir.c ---- */

/* The key runs at once; one that is running now runs again. */
void watch_due_now(omni_watch_key *key);
/* The key runs after its next pause. */
void watch_due_later(omni_watch_key *key);
/* The key is not due any more. */
void watch_due_clear(omni_watch_key *key);

/* Where a name in a directory is in the table. */
uint64_t watch_hash(const watch_dir *dir, const char *name);
/* The directory of this path, made where it is missing; NULL when out of memory. */
watch_dir *watch_dir_get(const char *path);
/* Brings the kernel's watch in line with what is waited for. */
void watch_dir_update(watch_dir *dir);
/* One key waits less; the last one takes the directory with it. */
void watch_dir_leave(watch_dir *dir, omni_watch_what what);
/* Whether its keys, or those of any, must be polled. */
bool watch_dir_polled(const watch_dir *dir);
bool watch_any_polled(void);

/* ---- watch.c ---- */

/* The key leaves the table. */
void watch_take_out(omni_watch_key *key);

/* ---- watch_loop.c ---- */

/* The thread's life, for the service. */
omni_err watch_open(void);
void watch_run(void);
/* Wakes the thread where it sleeps. */
void watch_wake(void);

#endif
