/* Lock files: their presence says "an unread value", their flock says "being written or read". */
#include "core/shm_private.h"

#define LOCK_FLAGS (O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY)

/* Where the lock file's path leads: 0 and its inode, or an errno. */
static int path_inode(omni_shm *shm, const char *name, ino_t *inode) {
  struct stat st;
  int rc;
  OMNI_SHM_RETRY(rc, omni_sys_fstatat(shm->lock_fd, name, &st, AT_SYMLINK_NOFOLLOW));
  *inode = rc == 0 ? st.st_ino : 0;
  return rc == 0 ? 0 : errno;
}

bool omni_shm_gone(omni_shm *shm, const omni_shm_names *names, ino_t inode) {
  ino_t now;
  int why = path_inode(shm, names->lock, &now);
  return why == ENOENT || (why == 0 && now != inode);
}

omni_err omni_shm_trust(omni_shm *shm, const struct stat *st) {
  return S_ISREG(st->st_mode) && st->st_uid == shm->uid ? OMNI_OK : OMNI_EACCES;
}

static omni_shm_locked failed(omni_err *err) {
  *err = omni_err_from_errno(errno);
  return OMNI_SHM_LOCK_FAILED;
}

static omni_shm_locked open_lock(omni_shm *shm, const char *name, bool create, omni_shm_lock *lock, omni_err *err) {
  lock->created = false;
  if (create) {
    /* Exclusively first: only who made the file may tidy it away when it comes to nothing. */
    OMNI_SHM_RETRY(lock->fd, omni_sys_openat(shm->lock_fd, name, O_CREAT | O_EXCL | O_RDWR | LOCK_FLAGS, 0600));
    lock->created = lock->fd >= 0;
    if (lock->created) return OMNI_SHM_LOCKED;
    if (errno == ENOENT) return OMNI_SHM_LOCK_ABSENT;
    if (errno != EEXIST) return failed(err);
  }
  /* Readers open read-only: flock allows it, and their close must not look like a writer's to a watch. */
  OMNI_SHM_RETRY(lock->fd, omni_sys_openat(shm->lock_fd, name, (create ? O_RDWR : O_RDONLY) | LOCK_FLAGS, 0));
  if (lock->fd >= 0) return OMNI_SHM_LOCKED;
  if (errno != ENOENT) return failed(err);
  return create ? OMNI_SHM_LOCK_STALE : OMNI_SHM_LOCK_ABSENT;
}

/* With the flock ours: whose file is it, and does the path still lead to it? Between our open and our flock a reader
 * may have taken the value and unlinked the file; a value stored under the orphan would never be found. */
static omni_shm_locked check_lock(omni_shm *shm, const char *name, bool create, omni_shm_lock *lock, omni_err *err) {
  struct stat own, path;
  if (omni_sys_fstat(lock->fd, &own) == -1) return failed(err);
  lock->inode = own.st_ino;
  *err = omni_shm_trust(shm, &own);
  if (*err != OMNI_OK) return OMNI_SHM_LOCK_FAILED;
  int rc;
  OMNI_SHM_RETRY(rc, omni_sys_fstatat(shm->lock_fd, name, &path, AT_SYMLINK_NOFOLLOW));
  if (rc == -1 && errno != ENOENT) return failed(err);
  if (rc == -1) return create ? OMNI_SHM_LOCK_STALE : OMNI_SHM_LOCK_ABSENT;
  return path.st_ino == own.st_ino && path.st_dev == own.st_dev ? OMNI_SHM_LOCKED : OMNI_SHM_LOCK_STALE;
}

static omni_shm_locked lock_opened(omni_shm *shm, const char *name, bool create, omni_shm_lock *lock, omni_err *err) {
  int rc;
  OMNI_SHM_RETRY(rc, omni_sys_flock(lock->fd, LOCK_EX | LOCK_NB));
  if (rc == 0) return check_lock(shm, name, create, lock, err);
  if (errno != EWOULDBLOCK) return failed(err);
  struct stat st;
  lock->inode = lock->created && omni_sys_fstat(lock->fd, &st) == 0 ? st.st_ino : 0;
  return OMNI_SHM_LOCK_BUSY;
}

/* Something went wrong with a file that we just made: it goes again, if nobody has stored anything under it since. */
static void tidy(omni_shm *shm, const omni_shm_names *names, int fd) {
  struct stat own, st;
  ino_t now;
  if (omni_sys_flock(fd, LOCK_EX | LOCK_NB) == -1 || omni_sys_fstat(fd, &own) == -1) return;
  if (path_inode(shm, names->lock, &now) != 0 || now != own.st_ino) return;
  if (omni_sys_fstatat(shm->dir_fd, names->segment, &st, AT_SYMLINK_NOFOLLOW) == -1 && errno == ENOENT)
    omni_sys_unlinkat(shm->lock_fd, names->lock, 0);
}

omni_shm_locked omni_shm_lock_take(omni_shm *shm, const omni_shm_names *names, bool create, omni_shm_lock *lock,
                                   omni_err *err) {
  omni_shm_locked locked = open_lock(shm, names->lock, create, lock, err);
  if (locked != OMNI_SHM_LOCKED) return locked;
  locked = lock_opened(shm, names->lock, create, lock, err);
  if (locked == OMNI_SHM_LOCKED) return locked;
  if (locked == OMNI_SHM_LOCK_FAILED && lock->created) tidy(shm, names, lock->fd);
  if (locked == OMNI_SHM_LOCK_BUSY)
    omni_sys_close(lock->fd);
  else
    omni_shm_lock_release(lock);
  return locked;
}

void omni_shm_lock_release(omni_shm_lock *lock) {
  /* Unlock first: a close alone tells the watchers before it drops the flock, and a forked child may hold the
   * description for a while longer. */
  omni_sys_flock(lock->fd, LOCK_UN);
  omni_sys_close(lock->fd);
  lock->fd = -1;
}
