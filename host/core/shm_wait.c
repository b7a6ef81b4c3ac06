/*
 * Waiting for a key on a loop. The watch thread looks whether the lock file is there and only then rings the loop, so
 * that events of other keys, or of a key that is gone again, cost the loop nothing.
 */
#include "core/shm_private.h"
#include "core/watch.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

struct omni_shm_waiter {
  atomic_uint refs;              /* the owner's, and one while the event is in the inbox */
  omni_shm *shm;                 /* one reference */
  omni_inbox *inbox;             /* one reference */
  void (*woken)(void *), *arg;   /* loop's thread only; NULL when nobody waits any more */
  atomic_bool gone;              /* the directory was removed */
  omni_shm_waiter *next, **link; /* in the handle's list; link NULL: not in it */
  omni_shm_names names;
  omni_watch_key key;
  omni_event event;
};

#define WAITER_OF(member, pointer) ((omni_shm_waiter *)((char *)(pointer)-offsetof(omni_shm_waiter, member)))

static void unref(omni_shm_waiter *waiter) {
  if (atomic_fetch_sub_explicit(&waiter->refs, 1, memory_order_acq_rel) != 1) return;
  omni_inbox_unref(waiter->inbox);
  omni_shm_unref(waiter->shm);
  free(waiter);
}

static void delivered(omni_event *event) {
  omni_shm_waiter *waiter = WAITER_OF(event, event);
  if (waiter->woken != NULL) waiter->woken(waiter->arg);
  unref(waiter);
}

static void dropped(omni_event *event) { unref(WAITER_OF(event, event)); }

/* Any thread that knows the waiter to be alive. */
static void ring(omni_shm_waiter *waiter) {
  atomic_fetch_add_explicit(&waiter->refs, 1, memory_order_relaxed);
  if (omni_inbox_post(waiter->inbox, &waiter->event) != OMNI_POSTED) unref(waiter);
}

/* Runs on the watch thread. */
static omni_watch_next changed(omni_watch_key *key) {
  omni_shm_waiter *waiter = WAITER_OF(key, key);
  struct stat st;
  if (key->gone) {
    atomic_store(&waiter->gone, true);
    ring(waiter);
    return OMNI_WATCH_STAY;
  }
  if (!omni_shm_enter(waiter->shm)) return OMNI_WATCH_STAY;
  bool there = omni_sys_fstatat(waiter->shm->lock_fd, waiter->names.lock, &st, AT_SYMLINK_NOFOLLOW) == 0;
  omni_shm_leave(waiter->shm);
  if (there) ring(waiter);
  return OMNI_WATCH_STAY;
}

static void enlist(omni_shm_waiter *waiter) {
  omni_shm *shm = waiter->shm;
  omni_mutex_lock(&shm->waiters_mutex);
  waiter->next = shm->waiters;
  waiter->link = &shm->waiters;
  if (waiter->next != NULL) waiter->next->link = &waiter->next;
  shm->waiters = waiter;
  omni_mutex_unlock(&shm->waiters_mutex);
}

static void delist(omni_shm_waiter *waiter) {
  omni_shm *shm = waiter->shm;
  omni_mutex_lock(&shm->waiters_mutex);
  *waiter->link = waiter->next;
  if (waiter->next != NULL) waiter->next->link = waiter->link;
  omni_mutex_unlock(&shm->waiters_mutex);
}

/* Lock order: waiters_mutex, then the inbox's. */
void omni_shm_wake_waiters(omni_shm *shm) {
  omni_mutex_lock(&shm->waiters_mutex);
  for (omni_shm_waiter *waiter = shm->waiters; waiter != NULL; waiter = waiter->next)
    ring(waiter);
  omni_mutex_unlock(&shm->waiters_mutex);
}

omni_err omni_shm_waiter_new(omni_shm *shm, const char *key, size_t keylen, omni_inbox *inbox, void (*woken)(void *),
                             void *arg, omni_shm_waiter **out) {
  omni_shm_waiter *waiter = calloc(1, sizeof *waiter);
  if (waiter == NULL) return OMNI_ENOMEM;
  omni_err err = omni_watch_start();
  if (err != OMNI_OK) {
    free(waiter);
    return err;
  }
  atomic_init(&waiter->refs, 1);
  waiter->shm = omni_shm_ref(shm);
  waiter->inbox = omni_inbox_ref(inbox);
  waiter->woken = woken;
  waiter->arg = arg;
  omni_shm_names_of(shm->namespace, omni_shm_id_of(key, keylen), &waiter->names);
  omni_event_init(&waiter->event, delivered, dropped);
  memcpy(waiter->key.name, waiter->names.lock, sizeof waiter->names.lock);
  waiter->key.what = OMNI_WATCH_PUBLISHED;
  waiter->key.fn = changed;
  enlist(waiter);
  err = omni_watch_add(shm->lock_dir, &waiter->key);
  if (err == OMNI_OK) {
    *out = waiter;
    return OMNI_OK;
  }
  delist(waiter);
  omni_watch_stop();
  unref(waiter);
  return err;
}

/* As long as we hold a descriptor of the directory the kernel tells the watch nothing of its end, so we look. */
bool omni_shm_waiter_gone(omni_shm_waiter *waiter) {
  struct stat st;
  if (atomic_load(&waiter->gone) || !omni_shm_enter(waiter->shm)) return atomic_load(&waiter->gone);
  bool gone = omni_sys_fstat(waiter->shm->lock_fd, &st) == 0 && st.st_nlink == 0;
  omni_shm_leave(waiter->shm);
  return gone;
}

void omni_shm_waiter_free(omni_shm_waiter *waiter) {
  if (waiter == NULL) return;
  omni_watch_remove(&waiter->key);
  omni_watch_stop();
  delist(waiter);
  waiter->woken = NULL;
  unref(waiter);
}
