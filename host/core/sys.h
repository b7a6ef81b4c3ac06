/*
 * The one seam between the core and the system: kernel calls, clock, threads.
 *
 * In a build with OMNI_SYS_HOOKS every call first asks omni_sys_enter, which may fail it, hold it, or kill the process,
 * and tells omni_sys_leave when it is done; a named point (omni_sys_point) is a step that has no system call of its
 * own. In other builds all this compiles to the plain call.
 */
#ifndef OMNI_CORE_SYS_H
#define OMNI_CORE_SYS_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define OMNI_SYS_MAP(X)                                                                                                \
  X(POINT)                                                                                                             \
  X(OPENAT)                                                                                                            \
  X(CLOSE)                                                                                                             \
  X(FLOCK)                                                                                                             \
  X(FSTAT)                                                                                                             \
  X(FSTATAT)                                                                                                           \
  X(PWRITEV)                                                                                                           \
  X(PREADV)                                                                                                            \
  X(PWRITE)                                                                                                            \
  X(READ)                                                                                                              \
  X(WRITE)                                                                                                             \
  X(UNLINKAT)                                                                                                          \
  X(RENAMEAT)                                                                                                          \
  X(MKDIRAT)                                                                                                           \
  X(MMAP)                                                                                                              \
  X(MUNMAP)                                                                                                            \
  X(PPOLL)                                                                                                             \
  X(EVENTFD)                                                                                                           \
  X(INOTIFY_INIT)                                                                                                      \
  X(INOTIFY_ADD)                                                                                                       \
  X(INOTIFY_RM)                                                                                                        \
  X(CLOCK)                                                                                                             \
  X(THREAD)                                                                                                            \
  X(KILL)                                                                                                              \
  X(READDIR)                                                                                                           \
  X(WAITPID)

typedef enum omni_sys_op {
#define X(op) OMNI_SYS_##op,
  OMNI_SYS_MAP(X)
#undef X
      OMNI_SYS_OP_MAX
} omni_sys_op;

#ifdef OMNI_SYS_HOOKS
/* Asked before a call; detail is its path or name, or NULL. Returns 0 to go on, or the errno to fail with. */
int omni_sys_enter(omni_sys_op op, const char *detail);
/* Told after a call; keeps errno. */
void omni_sys_leave(omni_sys_op op, const char *detail);
#define OMNI_SYS_CALL(type, op, detail, call)                                                                          \
  do {                                                                                                                 \
    int omni_fault = omni_sys_enter(OMNI_SYS_##op, (detail));                                                          \
    if (omni_fault != 0) {                                                                                             \
      errno = omni_fault;                                                                                              \
      return (type)-1;                                                                                                 \
    }                                                                                                                  \
    type omni_result = (call);                                                                                         \
    omni_sys_leave(OMNI_SYS_##op, (detail));                                                                           \
    return omni_result;                                                                                                \
  } while (0)
/* A step with a name: test builds can hold or kill here. */
#define omni_sys_point(name) ((void)omni_sys_enter(OMNI_SYS_POINT, (name)), omni_sys_leave(OMNI_SYS_POINT, (name)))
#else
#define OMNI_SYS_CALL(type, op, detail, call) return (call)
#define omni_sys_point(name) ((void)0)
#endif

/* Each is its namesake; -1 and errno on failure. */
static inline int omni_sys_openat(int dir, const char *path, int flags, mode_t mode) {
  OMNI_SYS_CALL(int, OPENAT, path, openat(dir, path, flags, mode));
}
static inline int omni_sys_close(int fd) { OMNI_SYS_CALL(int, CLOSE, NULL, close(fd)); }
static inline int omni_sys_flock(int fd, int how) { OMNI_SYS_CALL(int, FLOCK, NULL, flock(fd, how)); }
static inline int omni_sys_fstat(int fd, struct stat *st) { OMNI_SYS_CALL(int, FSTAT, NULL, fstat(fd, st)); }
static inline int omni_sys_fstatat(int dir, const char *path, struct stat *st, int flags) {
  OMNI_SYS_CALL(int, FSTATAT, path, fstatat(dir, path, st, flags));
}
static inline ssize_t omni_sys_pwritev(int fd, const struct iovec *iov, int n, off_t at) {
  OMNI_SYS_CALL(ssize_t, PWRITEV, NULL, pwritev(fd, iov, n, at));
}
static inline ssize_t omni_sys_preadv(int fd, const struct iovec *iov, int n, off_t at) {
  OMNI_SYS_CALL(ssize_t, PREADV, NULL, preadv(fd, iov, n, at));
}
static inline ssize_t omni_sys_pwrite(int fd, const void *p, size_t n, off_t at) {
  OMNI_SYS_CALL(ssize_t, PWRITE, NULL, pwrite(fd, p, n, at));
}
static inline ssize_t omni_sys_read(int fd, void *p, size_t n) { OMNI_SYS_CALL(ssize_t, READ, NULL, read(fd, p, n)); }
static inline ssize_t omni_sys_write(int fd, const void *p, size_t n) {
  OMNI_SYS_CALL(ssize_t, WRITE, NULL, write(fd, p, n));
}
static inline int omni_sys_unlinkat(int dir, const char *path, int flags) {
  OMNI_SYS_CALL(int, UNLINKAT, path, unlinkat(dir, path, flags));
}
static inline int omni_sys_renameat(int d1, const char *from, int d2, const char *to) {
  OMNI_SYS_CALL(int, RENAMEAT, to, renameat(d1, from, d2, to));
}
static inline int omni_sys_mkdirat(int dir, const char *path, mode_t mode) {
  OMNI_SYS_CALL(int, MKDIRAT, path, mkdirat(dir, path, mode));
}
static inline void *omni_sys_mmap(size_t len, int prot, int flags, int fd, off_t at) {
  OMNI_SYS_CALL(void *, MMAP, NULL, mmap(NULL, len, prot, flags, fd, at));
}
static inline int omni_sys_munmap(void *p, size_t len) { OMNI_SYS_CALL(int, MUNMAP, NULL, munmap(p, len)); }
static inline int omni_sys_ppoll(struct pollfd *fds, nfds_t n, const struct timespec *timeout) {
  OMNI_SYS_CALL(int, PPOLL, NULL, ppoll(fds, n, timeout, NULL));
}
static inline int omni_sys_eventfd(void) { OMNI_SYS_CALL(int, EVENTFD, NULL, eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)); }
static inline int omni_sys_inotify_init(void) {
  OMNI_SYS_CALL(int, INOTIFY_INIT, NULL, inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
}
static inline int omni_sys_inotify_add(int fd, const char *path, uint32_t mask) {
  OMNI_SYS_CALL(int, INOTIFY_ADD, path, inotify_add_watch(fd, path, mask));
}
static inline int omni_sys_inotify_rm(int fd, int wd) {
  OMNI_SYS_CALL(int, INOTIFY_RM, NULL, inotify_rm_watch(fd, wd));
}
static inline int omni_sys_kill(pid_t pid, int signal) { OMNI_SYS_CALL(int, KILL, NULL, kill(pid, signal)); }
static inline pid_t omni_sys_waitpid(pid_t pid, int *status, int flags) {
  OMNI_SYS_CALL(pid_t, WAITPID, NULL, waitpid(pid, status, flags));
}
/* The next name in a directory that fdopendir opened; NULL at its end or (errno set) on failure. */
static inline struct dirent *omni_sys_readdir(DIR *dir) {
#ifdef OMNI_SYS_HOOKS
  int fault = omni_sys_enter(OMNI_SYS_READDIR, NULL);
  if (fault != 0) {
    errno = fault;
    return NULL;
  }
#endif
  struct dirent *entry = readdir(dir);
#ifdef OMNI_SYS_HOOKS
  omni_sys_leave(OMNI_SYS_READDIR, NULL);
#endif
  return entry;
}

/* Monotonic nanoseconds. Test builds can drive it. */
uint64_t omni_sys_now(void);
/* Nanoseconds since 1970, for people: never measured with. */
static inline uint64_t omni_sys_wall(void) {
  struct timespec ts;
  clock_gettime(CLOCK_REALTIME, &ts);
  return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* Whether a descriptor is a terminal. */
static inline bool omni_sys_isatty(int fd) { return isatty(fd) == 1; }

/* Threads. They have 8 MiB of stack, where nothing else is said, and block every signal but the synchronous ones. */
typedef pthread_t omni_thread;
typedef pthread_mutex_t omni_mutex;
typedef pthread_cond_t omni_cond; /* waits are measured on the monotonic clock */

/* Starts fn(arg) in a thread with this name (15 bytes at most); 0 or an errno. */
int omni_thread_start(omni_thread *thread, const char *name, void *(*fn)(void *), void *arg);
/* The same with a stack of another size. */
int omni_thread_start_sized(omni_thread *thread, const char *name, size_t stack, void *(*fn)(void *), void *arg);
/* Waits for its end. */
void omni_thread_join(omni_thread thread);

void omni_mutex_init(omni_mutex *mutex);
void omni_mutex_destroy(omni_mutex *mutex);
static inline void omni_mutex_lock(omni_mutex *mutex) { (void)pthread_mutex_lock(mutex); }
static inline void omni_mutex_unlock(omni_mutex *mutex) { (void)pthread_mutex_unlock(mutex); }

void omni_cond_init(omni_cond *cond);
void omni_cond_destroy(omni_cond *cond);
static inline void omni_cond_signal(omni_cond *cond) { (void)pthread_cond_signal(cond); }
static inline void omni_cond_broadcast(omni_cond *cond) { (void)pthread_cond_broadcast(cond); }
/* Waits until signalled; spurious returns are possible. */
void omni_cond_wait(omni_cond *cond, omni_mutex *mutex);
/* Waits until signalled or until omni_sys_now() passes deadline (nanoseconds); false on timeout. */
bool omni_cond_wait_until(omni_cond *cond, omni_mutex *mutex, uint64_t deadline);

#endif
