#include "watch_private.h"

#include "log.h"

#include <stdlib.h>
#include <string.h>

/* ---- due lists ---- */

static void due_push(due_list *list, omni_watch_key *key) {
  key->due_next = NULL;
  key->due_prev = list->tail;
  if (list->tail != NULL)
    list->tail->due_next = key;
  else
    list->head = key;
  list->tail = key;
  list->len++;
}

static void due_unlink(due_list *list, omni_watch_key *key) {
  if (key->due_prev != NULL)
    key->due_prev->due_next = key->due_next;
  else
    list->head = key->due_next;
  if (key->due_next != NULL)
    key->due_next->due_prev = key->due_prev;
  else
    list->tail = key->due_prev;
  list->len--;
}

void watch_due_clear(omni_watch_key *key) {
  if (key->state & KEY_PROBE) due_unlink(&W.probes, key);
  if (key->state & KEY_RETRY) due_unlink(&W.retries, key);
  key->state &= (unsigned char)~(KEY_PROBE | KEY_RETRY);
}

/* A key that is running comes back by KEY_AGAIN; it can be in no list. */
void watch_due_now(omni_watch_key *key) {
  if (key->state & KEY_RUNNING) {
    key->state |= KEY_AGAIN;
    return;
  }
  if (key->state & KEY_PROBE) return;
  watch_due_clear(key);
  due_push(&W.probes, key);
  key->state |= KEY_PROBE;
}

void watch_due_later(omni_watch_key *key) {
  static const uint32_t after[] = {50000, 200000, 1000000, 5000000};
  key->retry_at = omni_sys_now() + after[key->tries];
  if (key->tries + 1u < sizeof after / sizeof *after) key->tries++;
  due_push(&W.retries, key);
  key->state |= KEY_RETRY;
}

/* ---- directories ---- */

uint64_t watch_hash(const watch_dir *dir, const char *name) {
  return omni_hash(name, strlen(name)) ^ (uint64_t)(uintptr_t)dir * UINT64_C(0x9e3779b97f4a7c15);
}

static uint32_t wanted(const watch_dir *dir) {
  return (dir->waits[OMNI_WATCH_PUBLISHED] > 0 ? IN_CLOSE_WRITE : 0u) |
         (dir->waits[OMNI_WATCH_CONSUMED] > 0 ? IN_DELETE : 0u);
}

/* What other paths of the same directory want: the kernel keeps one mask for all of them. */
static uint32_t wanted_beside(const watch_dir *dir) {
  uint32_t mask = 0;
  for (const watch_dir *d = W.dirs; dir->wd >= 0 && d != NULL; d = d->next)
    if (d != dir && d->wd == dir->wd) mask |= wanted(d);
  return mask;
}

static void complain(const char *path, int errnum) {
  if (W.complained) return;
  W.complained = true;
  omni_log(OMNI_LOG_WARN, "no inotify watch can be had for %s (errno %d): polling at 1 ms", path, errnum);
}

static void unwatch(watch_dir *dir) {
  if (dir->wd < 0) return;
  if (wanted_beside(dir) == 0) (void)omni_sys_inotify_rm(W.inotify, dir->wd);
  dir->wd = -1;
  dir->mask = 0;
}

/* Brings the watch in line with what is waited for. IN_MASK_ADD where we cannot know yet whether another path of the
 * same directory is watched. */
void watch_dir_update(watch_dir *dir) {
  uint32_t mask = wanted(dir);
  if (mask == 0) {
    unwatch(dir);
    return;
  }
  if (dir->wd >= 0 && mask == dir->mask) return;
  uint32_t flags = IN_ONLYDIR | (dir->wd < 0 ? (uint32_t)IN_MASK_ADD : wanted_beside(dir));
  int wd = W.inotify >= 0 ? omni_sys_inotify_add(W.inotify, dir->path, mask | flags) : (errno = EMFILE, -1);
  int errnum = errno;
  if (wd != dir->wd) unwatch(dir); /* the path names another directory by now */
  dir->wd = wd;
  dir->mask = wd >= 0 ? mask : 0;
  dir->gone = wd < 0 && (errnum == ENOENT || errnum == ENOTDIR);
  if (wd < 0 && !dir->gone) complain(dir->path, errnum);
}

watch_dir *watch_dir_get(const char *path) {
  for (watch_dir *dir = W.dirs; dir != NULL; dir = dir->next)
    if (strcmp(dir->path, path) == 0) return dir;
  size_t len = strlen(path) + 1;
  watch_dir *dir = calloc(1, sizeof *dir + len);
  if (dir == NULL) return NULL;
  memcpy(dir->path, path, len);
  dir->wd = -1;
  dir->next = W.dirs;
  W.dirs = dir;
  return dir;
}

void watch_dir_leave(watch_dir *dir, omni_watch_what what) {
  if (--dir->waits[what] > 0) return;
  watch_dir_update(dir);
  if (dir->waits[OMNI_WATCH_PUBLISHED] + dir->waits[OMNI_WATCH_CONSUMED] > 0) return;
  watch_dir **at = &W.dirs;
  while (*at != dir)
    at = &(*at)->next;
  *at = dir->next;
  free(dir);
}

bool watch_dir_polled(const watch_dir *dir) { return dir->wd < 0 && !dir->gone; }

bool watch_any_polled(void) {
  for (const watch_dir *dir = W.dirs; dir != NULL; dir = dir->next)
    if (watch_dir_polled(dir)) return true;
  return false;
}
