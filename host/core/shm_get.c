/* get and get_view: a value is taken whole and once, without ever waiting. The steps are numbered in shm.h. */
#include "core/shm_private.h"

#include <stdlib.h>

/* Segments up to here are read in one call together with their header, for a view as well: a map costs a page fault for
 * each page of it, a copy to memory that malloc has at hand does not. */
#define ONE_READ (128 * 1024)

struct omni_shm_view {
  omni_shm *shm;   /* one reference */
  omni_blob *copy; /* of a small segment's data, or NULL */
  void *map;       /* of a large one: page-aligned, header first */
  size_t size;     /* of the segment */
  size_t len;      /* of the data */
};

/* What a get makes of an open segment. */
typedef omni_shm_got (*fetch_fn)(omni_shm *shm, int fd, uint64_t size, void *out, omni_err *err);

static omni_shm_got failed(omni_err *err, omni_err why) {
  *err = why;
  return OMNI_SHM_FAILED;
}

/* ---- is it whole? ---- */

static uint64_t read_length(const unsigned char header[OMNI_SHM_HEADER]) {
  uint64_t len = 0;
  for (int i = OMNI_SHM_HEADER - 1; i >= 0; i--)
    len = len << 8 | header[i];
  return len;
}

/* The file's size proves it: it is header and data, or that rounded up to a page by a writer that maps. (Rounded up
 * with nothing in it looks the same before its header is written, so that does not count.) */
static omni_shm_got judge(uint64_t size, uint64_t len, omni_err *err) {
  if (len > INT64_MAX - OMNI_SHM_HEADER - OMNI_SHM_PAGE) return failed(err, OMNI_E2BIG);
  uint64_t whole = OMNI_SHM_HEADER + len;
  uint64_t pages = (whole + OMNI_SHM_PAGE - 1) / OMNI_SHM_PAGE * OMNI_SHM_PAGE;
  return size == whole || (size == pages && len > 0) ? OMNI_SHM_GOT : OMNI_SHM_TORN;
}

static omni_shm_got read_all(int fd, struct iovec *iov, int n, off_t at, size_t want, omni_err *err) {
  while (want > 0) {
    ssize_t done;
    OMNI_SHM_RETRY(done, omni_sys_preadv(fd, iov, n, at));
    if (done == -1) return failed(err, omni_err_from_errno(errno));
    if (done == 0) return OMNI_SHM_TORN;
    at += done;
    want -= (size_t)done;
    for (; n > 0 && (size_t)done >= iov->iov_len; iov++, n--)
      done -= (ssize_t)iov->iov_len;
    if (n == 0) break;
    iov->iov_base = (char *)iov->iov_base + done;
    iov->iov_len -= (size_t)done;
  }
  return OMNI_SHM_GOT;
}

static omni_shm_got read_header(int fd, uint64_t size, uint64_t *len, omni_err *err) {
  unsigned char header[OMNI_SHM_HEADER];
  struct iovec iov = {header, sizeof header};
  if (size < OMNI_SHM_HEADER) return OMNI_SHM_TORN;
  omni_shm_got got = read_all(fd, &iov, 1, 0, sizeof header, err);
  if (got != OMNI_SHM_GOT) return got;
  *len = read_length(header);
  return judge(size, *len, err);
}

/* ---- step 5: copy or map ---- */

static omni_shm_got copy_small(int fd, uint64_t size, omni_blob **out, omni_err *err) {
  unsigned char header[OMNI_SHM_HEADER];
  omni_blob *blob = omni_blob_alloc((size_t)size - OMNI_SHM_HEADER);
  if (blob == NULL) return failed(err, OMNI_ENOMEM);
  struct iovec iov[2] = {{header, sizeof header}, {blob->data, blob->len}};
  omni_shm_got got = read_all(fd, iov, 2, 0, (size_t)size, err);
  if (got == OMNI_SHM_GOT) got = judge(size, read_length(header), err);
  if (got == OMNI_SHM_GOT) {
    blob->len = (size_t)read_length(header);
    *out = blob;
  } else
    omni_blob_unref(blob);
  return got;
}

/* The header first: a size alone is no reason to reserve so much memory. */
static omni_shm_got copy_large(int fd, uint64_t size, omni_blob **out, omni_err *err) {
  uint64_t len;
  omni_shm_got got = read_header(fd, size, &len, err);
  if (got != OMNI_SHM_GOT) return got;
  omni_blob *blob = omni_blob_alloc((size_t)len);
  if (blob == NULL) return failed(err, OMNI_ENOMEM);
  struct iovec iov = {blob->data, blob->len};
  got = read_all(fd, &iov, 1, OMNI_SHM_HEADER, blob->len, err);
  if (got == OMNI_SHM_GOT)
    *out = blob;
  else
    omni_blob_unref(blob);
  return got;
}

static omni_shm_got fetch_copy(omni_shm *shm, int fd, uint64_t size, void *out, omni_err *err) {
  (void)shm;
  if (size < OMNI_SHM_HEADER) return OMNI_SHM_TORN;
  return size <= ONE_READ ? copy_small(fd, size, out, err) : copy_large(fd, size, out, err);
}

/* Reserves first, so that many threads together stay below the limit. */
static bool reserve(omni_shm *shm, uint64_t size) {
  uint64_t before = atomic_fetch_add_explicit(&shm->view_bytes, size, memory_order_relaxed);
  if (size <= shm->view_limit && before <= shm->view_limit - size) return true;
  atomic_fetch_sub_explicit(&shm->view_bytes, size, memory_order_relaxed);
  return false;
}

/* A view of what it is given: a copy, or the whole segment to map. Takes copy over. */
static omni_shm_got make_view(omni_shm *shm, omni_blob *copy, int fd, uint64_t len, omni_shm_view **out,
                              omni_err *err) {
  uint64_t size = OMNI_SHM_HEADER + len;
  omni_shm_view *view = malloc(sizeof *view);
  if (view == NULL || !reserve(shm, size)) {
    omni_err why = view == NULL ? OMNI_ENOMEM : OMNI_E2BIG;
    free(view);
    omni_blob_unref(copy);
    return failed(err, why);
  }
  *view = (omni_shm_view){.shm = omni_shm_ref(shm), .copy = copy, .size = (size_t)size, .len = (size_t)len};
  omni_metric_add(shm->metrics.live_views, 1);
  omni_metric_add(shm->metrics.view_bytes, (int64_t)size);
  view->map = copy != NULL ? NULL : omni_sys_mmap(view->size, PROT_READ, MAP_SHARED, fd, 0);
  if (view->map == MAP_FAILED) {
    *err = omni_err_from_errno(errno);
    omni_shm_view_close(view);
    return OMNI_SHM_FAILED;
  }
  *out = view;
  return OMNI_SHM_GOT;
}

static omni_shm_got fetch_view(omni_shm *shm, int fd, uint64_t size, void *out, omni_err *err) {
  uint64_t len;
  omni_blob *copy = NULL;
  bool small = size >= OMNI_SHM_HEADER && size <= ONE_READ;
  omni_shm_got got = small ? copy_small(fd, size, &copy, err) : read_header(fd, size, &len, err);
  if (got != OMNI_SHM_GOT) return got;
  return make_view(shm, copy, fd, copy != NULL ? copy->len : len, out, err);
}

const void *omni_shm_view_data(omni_shm_view *view, size_t *len) {
  *len = view->len;
  return view->copy != NULL ? (const void *)view->copy->data : (const char *)view->map + OMNI_SHM_HEADER;
}

void omni_shm_view_close(omni_shm_view *view) {
  if (view->map != NULL && view->map != MAP_FAILED) omni_sys_munmap(view->map, view->size);
  omni_blob_unref(view->copy);
  atomic_fetch_sub_explicit(&view->shm->view_bytes, view->size, memory_order_relaxed);
  omni_metric_add(view->shm->metrics.live_views, -1);
  omni_metric_add(view->shm->metrics.view_bytes, -(int64_t)view->size);
  omni_shm_unref(view->shm);
  free(view);
}

/* ---- the key ---- */

/* Reported each time, counted once per segment. */
static void note_torn(omni_shm *shm, omni_shm_id id, const char *key, size_t keylen, ino_t inode) {
  omni_shm_key *entry = omni_shm_key_new(id, key, keylen);
  if (entry == NULL) return;
  entry->inode = inode;
  if (!omni_shm_keys_set(&shm->torn, entry)) omni_metric_add(shm->metrics.incomplete, 1);
}

/* Steps 4 and 5, under the lock. */
static omni_shm_got open_and_fetch(omni_shm *shm, const omni_shm_names *names, const char *key, size_t keylen,
                                   fetch_fn fetch, void *out, omni_err *err) {
  int fd, flags = O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
  OMNI_SHM_RETRY(fd, omni_sys_openat(shm->dir_fd, names->segment, flags, 0));
  if (fd == -1) return errno == ENOENT ? OMNI_SHM_NO_SEGMENT : failed(err, omni_err_from_errno(errno));
  struct stat st;
  omni_shm_got got = OMNI_SHM_FAILED;
  if (omni_sys_fstat(fd, &st) == -1)
    *err = omni_err_from_errno(errno);
  else if ((*err = omni_shm_trust(shm, &st)) == OMNI_OK)
    got = fetch(shm, fd, (uint64_t)st.st_size, out, err);
  if (got == OMNI_SHM_TORN) note_torn(shm, names->id, key, keylen, st.st_ino);
  omni_sys_close(fd);
  return got;
}

/* Steps 6 and 7. The value is ours only if it is we who unlinked the segment. */
static omni_shm_got consume(omni_shm *shm, const omni_shm_names *names, ino_t inode, omni_err *err) {
  *err = OMNI_OK;
  if (!omni_shm_unlink_both(shm, names, err)) return *err == OMNI_OK ? OMNI_SHM_ABSENT : OMNI_SHM_FAILED;
  omni_shm_keys_drop(&shm->written, names->id, inode);
  omni_shm_keys_drop(&shm->torn, names->id, 0);
  return OMNI_SHM_GOT;
}

static void drop_copy(void *out) { omni_blob_unref(*(omni_blob **)out); }

static void drop_view(void *out) { omni_shm_view_close(*(omni_shm_view **)out); }

static omni_shm_got take(omni_shm *shm, const char *key, size_t keylen, fetch_fn fetch, void (*drop)(void *), void *out,
                         omni_err *err) {
  omni_shm_names names;
  omni_shm_lock lock;
  omni_shm_names_of(shm->namespace, omni_shm_id_of(key, keylen), &names);
  switch (omni_shm_lock_take(shm, &names, false, &lock, err)) {
  case OMNI_SHM_LOCKED: break;
  case OMNI_SHM_LOCK_ABSENT: return OMNI_SHM_ABSENT;
  case OMNI_SHM_LOCK_BUSY:
  case OMNI_SHM_LOCK_STALE: return OMNI_SHM_BUSY;
  case OMNI_SHM_LOCK_FAILED: return OMNI_SHM_FAILED;
  }
  omni_sys_point("shm.get.locked");
  omni_shm_got got = open_and_fetch(shm, &names, key, keylen, fetch, out, err);
  if (got == OMNI_SHM_GOT) {
    omni_sys_point("shm.get.fetched");
    got = consume(shm, &names, lock.inode, err);
    if (got != OMNI_SHM_GOT) drop(out);
  }
  omni_shm_lock_release(&lock);
  return got;
}

static omni_shm_got counted(omni_shm *shm, omni_shm_got got, size_t len) {
  if (got == OMNI_SHM_BUSY) omni_metric_add(shm->metrics.busy, 1);
  if (got == OMNI_SHM_GOT) {
    omni_metric_add(shm->metrics.gets, 1);
    omni_metric_add(shm->metrics.get_bytes, (int64_t)len);
  }
  omni_shm_leave(shm);
  return got;
}

omni_shm_got omni_shm_get(omni_shm *shm, const char *key, size_t keylen, omni_blob **data, omni_err *err) {
  if (!omni_shm_enter(shm)) return failed(err, OMNI_ECLOSED);
  omni_blob *blob = NULL;
  omni_shm_got got = take(shm, key, keylen, fetch_copy, drop_copy, &blob, err);
  *data = got == OMNI_SHM_GOT ? blob : NULL;
  return counted(shm, got, *data != NULL ? blob->len : 0);
}

omni_shm_got omni_shm_get_view(omni_shm *shm, const char *key, size_t keylen, omni_shm_view **view, omni_err *err) {
  if (!omni_shm_enter(shm)) return failed(err, OMNI_ECLOSED);
  omni_shm_view *mapped = NULL;
  omni_shm_got got = take(shm, key, keylen, fetch_view, drop_view, &mapped, err);
  *view = got == OMNI_SHM_GOT ? mapped : NULL;
  return counted(shm, got, *view != NULL ? mapped->len : 0);
}
