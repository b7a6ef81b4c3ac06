/*
 * Host-made namespaces and their sweep.
 *
 * An owner file is locked from before it has its name until the last process that inherited its description is gone, so
 * whoever can lock one (and then finds the path leading to it still) knows that all are dead. As everywhere, nobody
 * unlinks a lock file without holding its flock; what is held by somebody stays, and the owner file with it, for the
 * next sweep.
 */
#include "core/owner.h"
#include "core/sys.h"

#include <string.h>

#define DEFAULT_DIR "/dev/shm"
#define DIGITS "abcdefghijklmnopqrstuvwxyz234567"
#define NAME_TRIES 16
#define FILE_NAME 64  /* room for every name that we make */
#define BUSY_TRIES 20 /* milliseconds that a sweep gives who holds a lock */

/* ---- names ---- */

/* Whether name is a host-made namespace followed by exactly this suffix; copies the namespace. */
static bool owned_with(const char *name, const char *suffix, char ns[OMNI_SHM_NAMESPACE_MAX + 1]) {
  if (name[0] != 'o' || strspn(name + 1, DIGITS) < OMNI_SHM_NAMESPACE_MAX - 1) return false;
  if (strcmp(name + OMNI_SHM_NAMESPACE_MAX, suffix) != 0) return false;
  memcpy(ns, name, OMNI_SHM_NAMESPACE_MAX);
  ns[OMNI_SHM_NAMESPACE_MAX] = '\0';
  return true;
}

bool omni_owner_is_owned_name(const char *ns) {
  char copy[OMNI_SHM_NAMESPACE_MAX + 1];
  return owned_with(ns, "", copy);
}

/* "<ns>_<20 hex digits><suffix>", nothing else. */
static bool is_value_name(const char *name, const char *ns, const char *suffix) {
  size_t n = strlen(ns);
  if (strncmp(name, ns, n) != 0 || name[n] != '_') return false;
  name += n + 1;
  return strspn(name, "0123456789abcdef") >= 20 && strcmp(name + 20, suffix) == 0;
}

/* A replica's directory. */
static bool is_plain_name(const char *name) {
  static const char *const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-";
  return name[0] != '\0' && strcmp(name, ".") != 0 && strcmp(name, "..") != 0 && name[strspn(name, plain)] == '\0';
}

static int open_dir(int at, const char *path, int more) {
  return omni_sys_openat(at, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | more, 0);
}

static int open_shm_dir(const char *shm_dir) { return open_dir(AT_FDCWD, shm_dir != NULL ? shm_dir : DEFAULT_DIR, 0); }

/* ---- locks ---- */

typedef enum held { HELD, HELD_BY_OTHER, HELD_NOT } held;

/* Whether the path leads to the open file. */
static bool leads_to(int dir, const char *name, int fd) {
  struct stat own, path;
  return omni_sys_fstat(fd, &own) == 0 && omni_sys_fstatat(dir, name, &path, AT_SYMLINK_NOFOLLOW) == 0 &&
         own.st_ino == path.st_ino && own.st_dev == path.st_dev;
}

static bool is_ours(int fd) {
  struct stat st;
  return omni_sys_fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid();
}

static void let_go(int fd) {
  omni_sys_flock(fd, LOCK_UN);
  omni_sys_close(fd);
}

/* One try to lock a file of ours by its name. HELD: *fd holds the flock and the path leads to it. */
static held hold(int dir, const char *name, int *fd) {
  *fd = omni_sys_openat(dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0);
  if (*fd == -1) return HELD_NOT;
  bool ours = is_ours(*fd), locked = ours && omni_sys_flock(*fd, LOCK_EX | LOCK_NB) == 0;
  if (locked && leads_to(dir, name, *fd)) return HELD;
  if (locked)
    let_go(*fd);
  else
    omni_sys_close(*fd);
  return ours && !locked ? HELD_BY_OTHER : HELD_NOT;
}

/* ---- making a namespace ---- */

static bool random_name(char ns[OMNI_SHM_NAMESPACE_MAX + 1]) {
  unsigned char bytes[OMNI_SHM_NAMESPACE_MAX - 1];
  int fd = omni_sys_openat(AT_FDCWD, "/dev/urandom", O_RDONLY | O_CLOEXEC, 0);
  if (fd == -1) return false;
  bool full = omni_sys_read(fd, bytes, sizeof bytes) == (ssize_t)sizeof bytes;
  int saved = errno;
  omni_sys_close(fd);
  errno = saved;
  ns[0] = 'o';
  for (size_t i = 0; i < sizeof bytes; i++)
    ns[i + 1] = DIGITS[bytes[i] % 32];
  ns[OMNI_SHM_NAMESPACE_MAX] = '\0';
  return full;
}

/* Locks the file under its temporary name, where only a sweep can come between, then gives it its name. EEXIST: the
 * name is taken or a sweep was quicker. */
static omni_err lock_and_name(int dir, const char *temporary, const char *owner, int fd) {
  struct stat st;
  if (omni_sys_flock(fd, LOCK_EX | LOCK_NB) == -1)
    return errno == EWOULDBLOCK ? OMNI_EEXIST : omni_err_from_errno(errno);
  if (!leads_to(dir, temporary, fd)) return OMNI_EEXIST;
  if (omni_sys_fstatat(dir, owner, &st, AT_SYMLINK_NOFOLLOW) == 0) return OMNI_EEXIST;
  return omni_sys_renameat(dir, temporary, dir, owner) == 0 ? OMNI_OK : omni_err_from_errno(errno);
}

static omni_err claim(int dir, const char *ns, int *out) {
  char temporary[FILE_NAME], owner[FILE_NAME], place[FILE_NAME];
  snprintf(temporary, sizeof temporary, "%s.owner.tmp", ns);
  snprintf(owner, sizeof owner, "%s.owner", ns);
  snprintf(place, sizeof place, "%s.d", ns);
  int fd = omni_sys_openat(dir, temporary, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd == -1) return omni_err_from_errno(errno);
  omni_err err = lock_and_name(dir, temporary, owner, fd);
  if (err != OMNI_OK) {
    if (leads_to(dir, temporary, fd)) omni_sys_unlinkat(dir, temporary, 0);
  } else if (omni_sys_mkdirat(dir, place, 0700) == -1) {
    err = omni_err_from_errno(errno);
    omni_sys_unlinkat(dir, owner, 0);
  }
  if (err == OMNI_OK)
    *out = fd;
  else
    let_go(fd);
  return err;
}

omni_err omni_owner_create(const char *shm_dir, char ns[OMNI_SHM_NAMESPACE_MAX + 1], int *fd, char *text, size_t size) {
  omni_err err = OMNI_EEXIST;
  int dir = open_shm_dir(shm_dir);
  *fd = -1;
  if (dir == -1) err = omni_err_from_errno(errno);
  for (int tries = 0; err == OMNI_EEXIST && tries < NAME_TRIES; tries++)
    err = random_name(ns) ? claim(dir, ns, fd) : omni_err_from_errno(errno);
  if (err != OMNI_OK)
    snprintf(text, size, "a namespace cannot be made in %s: %s", shm_dir != NULL ? shm_dir : DEFAULT_DIR,
             omni_err_text(err));
  if (dir != -1) omni_sys_close(dir);
  return err;
}

/* ---- sweeping one ---- */

typedef struct sweep {
  int dir; /* shm_dir */
  const char *ns;
  size_t segments; /* removed */
  bool held;       /* somebody holds a lock of it */
} sweep;

/* Calls visit for each name in the directory. */
static void each_name(int dir, void (*visit)(void *arg, int dir, const char *name), void *arg) {
  int fd = open_dir(dir, ".", 0);
  if (fd == -1) return;
  DIR *names = fdopendir(fd);
  if (names == NULL) {
    omni_sys_close(fd);
    return;
  }
  for (struct dirent *entry; (entry = omni_sys_readdir(names)) != NULL;)
    visit(arg, dir, entry->d_name);
  closedir(names);
}

static held hold_patiently(int dir, const char *name, int *fd) {
  held how = hold(dir, name, fd);
  for (int tries = 0; how == HELD_BY_OTHER && tries < BUSY_TRIES; tries++) {
    struct timespec millisecond = {.tv_nsec = 1000000};
    omni_sys_ppoll(NULL, 0, &millisecond);
    how = hold(dir, name, fd);
  }
  return how;
}

static void sweep_lock(void *arg, int dir, const char *name) {
  sweep *s = arg;
  if (!is_value_name(name, s->ns, ".lock")) return;
  int fd;
  held how = hold_patiently(dir, name, &fd);
  if (how == HELD_BY_OTHER) s->held = true;
  if (how != HELD) return;
  char segment[FILE_NAME];
  snprintf(segment, sizeof segment, "%.*s", (int)(strlen(name) - strlen(".lock")), name);
  if (omni_sys_unlinkat(s->dir, segment, 0) == 0) s->segments++;
  omni_sys_unlinkat(dir, name, 0);
  let_go(fd);
}

/* Entries of <ns>.d: lock files and the replicas' directories with theirs. */
static void sweep_place_entry(void *arg, int dir, const char *name) {
  sweep *s = arg;
  if (is_value_name(name, s->ns, ".lock")) {
    sweep_lock(arg, dir, name);
    return;
  }
  int replica = is_plain_name(name) ? open_dir(dir, name, O_NOFOLLOW) : -1;
  if (replica == -1) return;
  each_name(replica, sweep_lock, arg);
  omni_sys_close(replica);
  omni_sys_unlinkat(dir, name, AT_REMOVEDIR);
}

/* A segment without a lock file: its writer or its reader died in between. */
static void sweep_segment(void *arg, int dir, const char *name) {
  sweep *s = arg;
  if (is_value_name(name, s->ns, "") && omni_sys_unlinkat(dir, name, 0) == 0) s->segments++;
}

static void sweep_place(sweep *s, const char *name) {
  int place = open_dir(s->dir, name, O_NOFOLLOW);
  if (place == -1) return;
  each_name(place, sweep_place_entry, s);
  omni_sys_close(place);
  omni_sys_unlinkat(s->dir, name, AT_REMOVEDIR);
}

/* Returns the number of segments; *clean: nothing was held, the owner file is gone too. */
static size_t sweep_namespace(int dir, const char *ns, bool *clean) {
  sweep s = {.dir = dir, .ns = ns};
  char name[FILE_NAME];
  each_name(dir, sweep_lock, &s);
  snprintf(name, sizeof name, "%s.d", ns);
  sweep_place(&s, name);
  *clean = !s.held;
  if (s.held) return s.segments;
  each_name(dir, sweep_segment, &s);
  snprintf(name, sizeof name, "%s.owner", ns);
  omni_sys_unlinkat(dir, name, 0);
  return s.segments;
}

size_t omni_owner_sweep(const char *shm_dir, const char *ns) {
  if (!omni_owner_is_owned_name(ns)) return 0;
  int dir = open_shm_dir(shm_dir);
  if (dir == -1) return 0;
  bool clean;
  size_t segments = sweep_namespace(dir, ns, &clean);
  omni_sys_close(dir);
  return segments;
}

bool omni_owner_alive(const char *shm_dir, const char *ns) {
  char owner[FILE_NAME];
  snprintf(owner, sizeof owner, "%s.owner", ns);
  int dir = open_shm_dir(shm_dir);
  if (dir == -1) return false;
  int fd = omni_sys_openat(dir, owner, O_RDONLY | O_CLOEXEC | O_NOFOLLOW, 0);
  omni_sys_close(dir);
  if (fd == -1) return false;
  /* Shared, so that two who look at once do not see each other. */
  bool alive = omni_sys_flock(fd, LOCK_SH | LOCK_NB) == -1 && errno == EWOULDBLOCK;
  let_go(fd);
  return alive;
}

/* ---- sweeping the dead ---- */

typedef struct dead {
  size_t namespaces, segments;
} dead;

static void sweep_owner(void *arg, int dir, const char *name) {
  dead *d = arg;
  char ns[OMNI_SHM_NAMESPACE_MAX + 1];
  bool temporary = owned_with(name, ".owner.tmp", ns);
  if (!temporary && !owned_with(name, ".owner", ns)) return;
  int fd;
  if (hold(dir, name, &fd) != HELD) return;
  bool clean = false;
  if (temporary)
    omni_sys_unlinkat(dir, name, 0);
  else
    d->segments += sweep_namespace(dir, ns, &clean);
  if (clean) d->namespaces++;
  let_go(fd);
}

size_t omni_owner_sweep_dead(const char *shm_dir, size_t *segments) {
  dead d = {0};
  int dir = open_shm_dir(shm_dir);
  if (dir != -1) {
    each_name(dir, sweep_owner, &d);
    omni_sys_close(dir);
  }
  if (segments != NULL) *segments = d.segments;
  return d.namespaces;
}
