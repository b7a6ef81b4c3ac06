/* put: a value appears under its key as a whole, or not at all. The steps are numbered in shm.h. */
#include "core/shm_private.h"

#include <stdlib.h>
#include <string.h>

/* Each further try means that somebody else got on; this many of them and the caller comes back later. */
#define LOCK_TRIES 64
/* So many remembered keys are kept without looking whether they were consumed. */
#define UNPRUNED 64

/* ---- the segment ---- */

/* Step 4: what lies in the segment's place goes, if it is a value of ours. */
static omni_err unlink_stale(omni_shm *shm, const char *segment) {
  struct stat st;
  int rc;
  OMNI_SHM_RETRY(rc, omni_sys_fstatat(shm->dir_fd, segment, &st, AT_SYMLINK_NOFOLLOW));
  if (rc == -1) return errno == ENOENT ? OMNI_OK : omni_err_from_errno(errno);
  omni_err err = omni_shm_trust(shm, &st);
  if (err != OMNI_OK) return err;
  if (omni_sys_unlinkat(shm->dir_fd, segment, 0) == 0 || errno == ENOENT) return OMNI_OK;
  return omni_err_from_errno(errno);
}

static int create_exclusively(omni_shm *shm, const char *segment) {
  int fd;
  OMNI_SHM_RETRY(fd, omni_sys_openat(shm->dir_fd, segment, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC | O_NOFOLLOW, 0600));
  return fd;
}

static omni_err create_segment(omni_shm *shm, const char *segment, int *fd) {
  *fd = create_exclusively(shm, segment);
  if (*fd == -1 && errno == EEXIST) {
    omni_err err = unlink_stale(shm, segment);
    if (err != OMNI_OK) return err;
    *fd = create_exclusively(shm, segment);
  }
  return *fd == -1 ? omni_err_from_errno(errno) : OMNI_OK;
}

/* Forgets the first `done` bytes; returns how many pieces are left. */
static int advance(struct iovec **iov, int n, size_t done) {
  while (n > 0 && done >= (*iov)->iov_len) {
    done -= (*iov)->iov_len;
    ++*iov;
    n--;
  }
  if (n > 0) {
    (*iov)->iov_base = (char *)(*iov)->iov_base + done;
    (*iov)->iov_len -= done;
  }
  return n;
}

/* Mostly one call; the kernel writes at most 2 GiB at once, and less when space runs out. */
static omni_err write_all(int fd, struct iovec *iov, int n) {
  off_t at = 0;
  for (n = advance(&iov, n, 0); n > 0;) {
    ssize_t done;
    OMNI_SHM_RETRY(done, omni_sys_pwritev(fd, iov, n, at));
    if (done == -1) return omni_err_from_errno(errno);
    if (done == 0) return OMNI_EIO;
    at += done;
    n = advance(&iov, n, (size_t)done);
  }
  return OMNI_OK;
}

/* Step 5. Written, never mapped: a full directory is an error here and would be a signal there. */
static omni_err store(omni_shm *shm, const char *segment, const struct iovec *pieces, int n, uint64_t len) {
  unsigned char header[OMNI_SHM_HEADER];
  struct iovec iov[OMNI_SHM_PIECES_MAX + 1] = {{header, sizeof header}};
  for (int i = 0; i < OMNI_SHM_HEADER; i++)
    header[i] = (unsigned char)(len >> (8 * i));
  if (n > 0) memcpy(iov + 1, pieces, (size_t)n * sizeof *pieces);
  int fd;
  omni_err err = create_segment(shm, segment, &fd);
  if (err != OMNI_OK) return err;
  err = write_all(fd, iov, n + 1);
  if (omni_sys_close(fd) == -1 && errno != EINTR && err == OMNI_OK) err = omni_err_from_errno(errno);
  if (err != OMNI_OK) omni_sys_unlinkat(shm->dir_fd, segment, 0);
  return err;
}

/* ---- the key ---- */

/* Steps 1 to 3. */
static omni_err lock_key(omni_shm *shm, const omni_shm_names *names, omni_shm_lock *lock) {
  omni_err err = OMNI_EBUSY;
  for (int tries = 0; tries < LOCK_TRIES; tries++)
    switch (omni_shm_lock_take(shm, names, true, lock, &err)) {
    case OMNI_SHM_LOCKED: return OMNI_OK;
    case OMNI_SHM_LOCK_ABSENT: return OMNI_ENOENT;
    case OMNI_SHM_LOCK_BUSY: return OMNI_EBUSY;
    case OMNI_SHM_LOCK_FAILED: return err;
    case OMNI_SHM_LOCK_STALE: break;
    }
  return OMNI_EBUSY;
}

static void remember(omni_shm *shm, omni_shm_key *entry, ino_t inode, bool stored) {
  entry->inode = inode;
  entry->stored = stored;
  omni_shm_keys_set(&shm->written, entry);
}

/* After a failure under the lock: the lock file goes, unless an older value could not be removed and is whole still. */
static void undo(omni_shm *shm, const omni_shm_names *names) {
  struct stat st;
  int rc;
  OMNI_SHM_RETRY(rc, omni_sys_fstatat(shm->dir_fd, names->segment, &st, AT_SYMLINK_NOFOLLOW));
  if (rc == 0 && omni_shm_trust(shm, &st) == OMNI_OK) return;
  omni_sys_unlinkat(shm->lock_fd, names->lock, 0);
  omni_shm_keys_drop(&shm->written, names->id, 0);
}

/* Takes entry over. */
static omni_err put_key(omni_shm *shm, const omni_shm_names *names, const struct iovec *pieces, int n, uint64_t len,
                        omni_shm_key *entry) {
  omni_shm_lock lock = {0};
  omni_err err = lock_key(shm, names, &lock);
  if (err != OMNI_OK) {
    /* A reader got hold of the lock file that we made: only cleanup_prefix can tidy it, should no put follow. */
    if (err == OMNI_EBUSY && lock.created && lock.inode != 0)
      remember(shm, entry, lock.inode, false);
    else
      free(entry);
    return err;
  }
  omni_sys_point("shm.put.locked");
  err = store(shm, names->segment, pieces, n, len);
  if (err == OMNI_OK) {
    /* Before the unlock: once others can take the value, it must be known as ours. */
    remember(shm, entry, lock.inode, true);
    omni_sys_point("shm.put.stored");
  } else {
    free(entry);
    undo(shm, names);
  }
  omni_shm_lock_release(&lock);
  return err;
}

/* Forgets consumed keys, the oldest first, so that the set stays within a small factor of what is unread. Stops at an
 * unread one: most are read in the order in which they were put. */
static void prune(omni_shm *shm) {
  for (int looks = 0; looks < 2; looks++) {
    omni_shm_mark mark;
    omni_shm_names names;
    if (atomic_load_explicit(&shm->written.count, memory_order_relaxed) <= UNPRUNED) return;
    if (!omni_shm_keys_rotate(&shm->written, &mark)) return;
    omni_shm_names_of(shm->namespace, mark.id, &names);
    if (!omni_shm_gone(shm, &names, mark.inode)) return;
    omni_shm_keys_drop(&shm->written, mark.id, mark.inode);
  }
}

/* The sum of the pieces; false beyond what a file can hold. */
static bool total(const struct iovec *pieces, int n, uint64_t *len) {
  *len = 0;
  for (int i = 0; i < n; i++) {
    if (pieces[i].iov_len > INT64_MAX - OMNI_SHM_HEADER - *len) return false;
    *len += pieces[i].iov_len;
  }
  return true;
}

omni_err omni_shm_put(omni_shm *shm, const char *key, size_t keylen, const struct iovec *pieces, int n) {
  uint64_t len;
  if (n < 0 || n > OMNI_SHM_PIECES_MAX) return OMNI_EINVAL;
  if (!total(pieces, n, &len)) return OMNI_E2BIG;
  if (!omni_shm_enter(shm)) return OMNI_ECLOSED;
  omni_shm_names names;
  omni_shm_names_of(shm->namespace, omni_shm_id_of(key, keylen), &names);
  omni_shm_key *entry = omni_shm_key_new(names.id, key, keylen);
  omni_err err = entry != NULL ? put_key(shm, &names, pieces, n, len, entry) : OMNI_ENOMEM;
  if (err == OMNI_OK) {
    omni_metric_add(shm->metrics.puts, 1);
    omni_metric_add(shm->metrics.put_bytes, (int64_t)len);
    prune(shm);
  }
  if (err == OMNI_EBUSY) omni_metric_add(shm->metrics.busy, 1);
  omni_shm_leave(shm);
  return err;
}
