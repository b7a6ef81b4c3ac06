/* The connector's handle: its directories, its life, its metrics. The protocol is in shm_put.c and shm_get.c. */
#include "core/owner.h"
#include "core/shm_private.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_DIR "/dev/shm"
#define DEFAULT_VIEW_LIMIT (UINT64_C(1) << 30)

/* ---- calls under way ---- */

bool omni_shm_enter(omni_shm *shm) {
  /* From 0 there is no way back: the directories are closed. acquire: they are open as long as we count. */
  unsigned users = atomic_load_explicit(&shm->users, memory_order_relaxed);
  do
    if (users == 0 || atomic_load_explicit(&shm->closed, memory_order_relaxed)) return false;
  while (!atomic_compare_exchange_weak_explicit(&shm->users, &users, users + 1, memory_order_acquire,
                                                memory_order_relaxed));
  return true;
}

void omni_shm_leave(omni_shm *shm) {
  /* acq_rel: what other calls did with the directories comes before their close. */
  if (atomic_fetch_sub_explicit(&shm->users, 1, memory_order_acq_rel) != 1) return;
  if (shm->lock_fd >= 0 && shm->lock_fd != shm->dir_fd) omni_sys_close(shm->lock_fd);
  if (shm->dir_fd >= 0) omni_sys_close(shm->dir_fd);
  shm->lock_fd = shm->dir_fd = -1;
}

void omni_shm_close(omni_shm *shm) {
  if (atomic_exchange(&shm->closed, true)) return;
  omni_shm_wake_waiters(shm);
  omni_shm_leave(shm);
}

/* ---- opening ---- */

/* Explains, with the path, and returns err. */
static omni_err explain(omni_err err, char *text, size_t size, const char *what, const char *path) {
  snprintf(text, size, "%s %s: %s", what, path, omni_err_text(err));
  return err;
}

static omni_err check_namespace(const omni_shm_opts *opts, char *text, size_t size) {
  const char *ns = opts->namespace;
  size_t n = ns != NULL ? strlen(ns) : 0;
  if (n == 0 || n > OMNI_SHM_NAMESPACE_MAX || strspn(ns, "abcdefghijklmnopqrstuvwxyz0123456789") != n) {
    snprintf(text, size, "namespace \"%.40s\" must be 1 to %d characters of a-z and 0-9", ns != NULL ? ns : "",
             OMNI_SHM_NAMESPACE_MAX);
    return OMNI_EINVAL;
  }
  if (omni_owner_is_owned_name(ns) == opts->owned) return OMNI_OK;
  snprintf(text, size, "namespace \"%s\" %s", ns,
           opts->owned ? "is not one that a host made"
                       : "has the form that hosts make for their pipelines (o and 8 of a-z2-7)");
  return OMNI_EINVAL;
}

/* An O_PATH descriptor of a directory; make: create it where its parent exists. */
static omni_err open_dir(const char *path, bool make, int *fd) {
  int flags = O_PATH | O_DIRECTORY | O_CLOEXEC;
  OMNI_SHM_RETRY(*fd, omni_sys_openat(AT_FDCWD, path, flags, 0));
  if (*fd == -1 && errno == ENOENT && make) {
    if (omni_sys_mkdirat(AT_FDCWD, path, 0700) == -1 && errno != EEXIST) return omni_err_from_errno(errno);
    OMNI_SHM_RETRY(*fd, omni_sys_openat(AT_FDCWD, path, flags, 0));
  }
  return *fd == -1 ? omni_err_from_errno(errno) : OMNI_OK;
}

static omni_err open_dirs(omni_shm *shm, bool make, char *text, size_t size) {
  omni_err err = open_dir(shm->dir, false, &shm->dir_fd);
  if (err != OMNI_OK) return explain(err, text, size, "shm_dir", shm->dir);
  if (strcmp(shm->dir, shm->lock_dir) == 0) {
    shm->lock_fd = shm->dir_fd;
    return OMNI_OK;
  }
  err = open_dir(shm->lock_dir, make, &shm->lock_fd);
  return err == OMNI_OK ? OMNI_OK : explain(err, text, size, "lock_dir", shm->lock_dir);
}

/* Labels are unique per handle, so that its stats are its own. */
static void open_metrics(omni_shm *shm) {
  static atomic_uint_fast64_t serial;
  char labels[80];
  snprintf(labels, sizeof labels, "namespace=\"%s\",connector=\"%" PRIuFAST64 "\"", shm->namespace,
           atomic_fetch_add_explicit(&serial, 1, memory_order_relaxed));
#define X(field, kind, name) shm->metrics.field = omni_metric_new(kind, name, labels);
  OMNI_SHM_METRICS(X)
#undef X
}

static omni_err fill(omni_shm *shm, const omni_shm_opts *opts, char *text, size_t size) {
  const char *dir = opts->shm_dir != NULL ? opts->shm_dir : DEFAULT_DIR;
  atomic_init(&shm->refs, 1);
  atomic_init(&shm->users, 1);
  shm->dir_fd = shm->lock_fd = -1;
  shm->uid = geteuid();
  shm->view_limit = opts->view_limit != 0 ? opts->view_limit : DEFAULT_VIEW_LIMIT;
  strcpy(shm->namespace, opts->namespace);
  omni_mutex_init(&shm->waiters_mutex);
  open_metrics(shm);
  shm->dir = strdup(dir);
  shm->lock_dir = strdup(opts->lock_dir != NULL ? opts->lock_dir : dir);
  if (shm->dir == NULL || shm->lock_dir == NULL || !omni_shm_keys_init(&shm->written) ||
      !omni_shm_keys_init(&shm->torn))
    return explain(OMNI_ENOMEM, text, size, "connector of namespace", opts->namespace);
  return open_dirs(shm, !opts->owned, text, size);
}

omni_err omni_shm_open(const omni_shm_opts *opts, omni_shm **handle, char *text, size_t size) {
  *handle = NULL;
  omni_err err = check_namespace(opts, text, size);
  if (err != OMNI_OK) return err;
  omni_shm *shm = calloc(1, sizeof *shm);
  if (shm == NULL) return explain(OMNI_ENOMEM, text, size, "connector of namespace", opts->namespace);
  err = fill(shm, opts, text, size);
  if (err == OMNI_OK)
    *handle = shm;
  else
    omni_shm_unref(shm);
  return err;
}

omni_shm *omni_shm_ref(omni_shm *shm) {
  atomic_fetch_add_explicit(&shm->refs, 1, memory_order_relaxed);
  return shm;
}

void omni_shm_unref(omni_shm *shm) {
  if (shm == NULL || atomic_fetch_sub_explicit(&shm->refs, 1, memory_order_acq_rel) != 1) return;
  omni_shm_close(shm);
#define X(field, kind, name) omni_metric_unref(shm->metrics.field);
  OMNI_SHM_METRICS(X)
#undef X
  omni_shm_keys_free(&shm->written);
  omni_shm_keys_free(&shm->torn);
  omni_mutex_destroy(&shm->waiters_mutex);
  free(shm->dir);
  free(shm->lock_dir);
  free(shm);
}

/* ---- what it is called ---- */

const char *omni_shm_namespace(omni_shm *shm) { return shm->namespace; }

const char *omni_shm_dir(omni_shm *shm) { return shm->dir; }

const char *omni_shm_lock_dir(omni_shm *shm) { return shm->lock_dir; }

void omni_shm_name(omni_shm *shm, const char *key, size_t keylen, char name[OMNI_SHM_NAME_MAX + 1]) {
  omni_shm_names names;
  omni_shm_names_of(shm->namespace, omni_shm_id_of(key, keylen), &names);
  memcpy(name, names.segment, sizeof names.segment);
}
