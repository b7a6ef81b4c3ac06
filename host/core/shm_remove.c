/* What becomes of values that nobody will read: discard, cleanup_prefix, and who is still unread. */
#include "core/shm_private.h"

#include <stdlib.h>
#include <string.h>

bool omni_shm_unlink_both(omni_shm *shm, const omni_shm_names *names, omni_err *err) {
  bool removed = omni_sys_unlinkat(shm->dir_fd, names->segment, 0) == 0;
  if (!removed && errno != ENOENT) {
    *err = omni_err_from_errno(errno);
    return false;
  }
  omni_sys_point("shm.remove.segment");
  /* Still under the flock: a writer that waits for it must find that its path leads elsewhere. */
  omni_sys_unlinkat(shm->lock_fd, names->lock, 0);
  return removed;
}

/* Removes a key under its lock; with mark only if its lock file is the one that the mark stands for. */
static omni_err remove_key(omni_shm *shm, const omni_shm_names *names, const omni_shm_mark *mark) {
  omni_shm_lock lock;
  omni_err err = OMNI_OK;
  switch (omni_shm_lock_take(shm, names, false, &lock, &err)) {
  case OMNI_SHM_LOCKED: break;
  case OMNI_SHM_LOCK_ABSENT: return OMNI_ENOENT;
  case OMNI_SHM_LOCK_BUSY:
  case OMNI_SHM_LOCK_STALE: return OMNI_EBUSY;
  case OMNI_SHM_LOCK_FAILED: return err;
  }
  struct stat st;
  bool ours = mark == NULL || mark->inode == lock.inode;
  /* Under a lock file that a try left behind, a segment is somebody else's. */
  if (ours && mark != NULL && !mark->stored)
    ours = omni_sys_fstatat(shm->dir_fd, names->segment, &st, AT_SYMLINK_NOFOLLOW) == -1 && errno == ENOENT;
  bool removed = ours && omni_shm_unlink_both(shm, names, &err);
  if (removed) omni_shm_keys_drop(&shm->torn, names->id, 0);
  omni_shm_lock_release(&lock);
  return err == OMNI_OK && !removed ? OMNI_ENOENT : err;
}

static omni_err discard_id(omni_shm *shm, omni_shm_id id) {
  if (!omni_shm_enter(shm)) return OMNI_ECLOSED;
  omni_shm_names names;
  omni_shm_names_of(shm->namespace, id, &names);
  omni_err err = remove_key(shm, &names, NULL);
  if (err == OMNI_OK) omni_metric_add(shm->metrics.cleaned, 1);
  if (err == OMNI_OK || err == OMNI_ENOENT) omni_shm_keys_drop(&shm->written, names.id, 0);
  omni_shm_leave(shm);
  return err;
}

omni_err omni_shm_discard(omni_shm *shm, const char *key, size_t keylen) {
  return discard_id(shm, omni_shm_id_of(key, keylen));
}

/* The value of a lower-case hex digit, or -1. */
static int digit(char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; }

omni_err omni_shm_discard_name(omni_shm *shm, const char *name) {
  omni_shm_id id;
  size_t prefix = strlen(shm->namespace), bytes = sizeof id.bytes;
  if (strncmp(name, shm->namespace, prefix) != 0 || name[prefix] != '_' || strlen(name) != prefix + 1 + 2 * bytes)
    return OMNI_EINVAL;
  for (size_t i = 0; i < bytes; i++) {
    int high = digit(name[prefix + 1 + 2 * i]), low = digit(name[prefix + 2 + 2 * i]);
    if (high < 0 || low < 0) return OMNI_EINVAL;
    id.bytes[i] = (unsigned char)(high << 4 | low);
  }
  return discard_id(shm, id);
}

size_t omni_shm_cleanup_prefix(omni_shm *shm, const char *prefix, size_t len) {
  if (!omni_shm_enter(shm)) return 0;
  size_t n, removed = 0;
  omni_shm_mark *marks = omni_shm_keys_match(&shm->written, prefix, len, &n);
  for (size_t i = 0; i < n; i++) {
    omni_shm_names names;
    omni_shm_names_of(shm->namespace, marks[i].id, &names);
    omni_err err = remove_key(shm, &names, &marks[i]);
    if (err == OMNI_OK) removed++;
    /* Held: somebody is taking it, or dies over it; a later call looks again. */
    if (err == OMNI_OK || err == OMNI_ENOENT) omni_shm_keys_drop(&shm->written, marks[i].id, marks[i].inode);
  }
  free(marks);
  omni_metric_add(shm->metrics.cleaned, (int64_t)removed);
  omni_shm_leave(shm);
  return removed;
}

bool omni_shm_present(omni_shm *shm, const char *key, size_t keylen) {
  if (!omni_shm_enter(shm)) return false;
  omni_shm_names names;
  struct stat st;
  int rc;
  omni_shm_names_of(shm->namespace, omni_shm_id_of(key, keylen), &names);
  OMNI_SHM_RETRY(rc, omni_sys_fstatat(shm->lock_fd, names.lock, &st, AT_SYMLINK_NOFOLLOW));
  omni_shm_leave(shm);
  return rc == 0;
}

/* Looks whether the path still names what the mark stands for; forgets it if not. */
static bool still_there(omni_shm *shm, const omni_shm_mark *mark, omni_shm_names *names) {
  omni_shm_names_of(shm->namespace, mark->id, names);
  if (!omni_shm_gone(shm, names, mark->inode)) return true;
  omni_shm_keys_drop(&shm->written, mark->id, mark->inode);
  return false;
}

bool omni_shm_unconsumed(omni_shm *shm, const char *key, size_t keylen) {
  omni_shm_mark mark;
  omni_shm_names names;
  if (!omni_shm_enter(shm)) return false;
  bool there = omni_shm_keys_find(&shm->written, omni_shm_id_of(key, keylen), &mark) && mark.stored &&
               still_there(shm, &mark, &names);
  omni_shm_leave(shm);
  return there;
}

/* Segments, not lock files, are counted: a reader that died between its two unlinks has consumed. */
static uint64_t count_live(omni_shm *shm) {
  size_t n;
  uint64_t live = 0;
  omni_shm_mark *marks = omni_shm_keys_match(&shm->written, "", 0, &n);
  for (size_t i = 0; i < n; i++) {
    omni_shm_names names;
    struct stat st;
    if (still_there(shm, &marks[i], &names) &&
        omni_sys_fstatat(shm->dir_fd, names.segment, &st, AT_SYMLINK_NOFOLLOW) == 0)
      live++;
  }
  free(marks);
  return live;
}

void omni_shm_read_stats(omni_shm *shm, omni_shm_stats *stats) {
  bool open = omni_shm_enter(shm);
  stats->live_segments = open ? count_live(shm) : 0;
#define X(field, kind, name) stats->field = (uint64_t)omni_metric_value(shm->metrics.field);
  OMNI_SHM_METRICS(X)
#undef X
  if (open) omni_shm_leave(shm);
}
