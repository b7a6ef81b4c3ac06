#include "watch_private.h"

#include <string.h>

watch_state omni_watch_all = {.service = OMNI_SERVICE_INIT("omni-recv", watch_open, watch_run, watch_wake),
                              .settled = PTHREAD_COND_INITIALIZER,
                              .inotify = -1,
                              .bell = -1};

/* ---- keys in and out ---- */

void watch_take_out(omni_watch_key *key) {
  watch_due_clear(key);
  omni_table_remove(&W.keys, &key->node);
  W.stats.keys--;
  watch_dir_leave(key->dir, key->what);
  key->dir = NULL;
  key->state = 0;
}

static omni_err put_in(const char *path, omni_watch_key *key) {
  watch_dir *dir = watch_dir_get(path);
  if (dir == NULL) return OMNI_ENOMEM;
  dir->waits[key->what]++;
  if (!omni_table_add(&W.keys, &key->node, watch_hash(dir, key->name))) {
    watch_dir_leave(dir, key->what);
    return OMNI_ENOMEM;
  }
  key->dir = dir;
  key->state = KEY_IN;
  key->tries = 0;
  key->gone = false;
  W.stats.keys++;
  watch_dir_update(dir); /* the watch first, then the probe */
  watch_due_now(key);
  return OMNI_OK;
}

omni_err omni_watch_add(const char *path, omni_watch_key *key) {
  omni_mutex_lock(&W.service.lock);
  omni_err err;
  if (key->state & KEY_IN) {
    key->state &= (unsigned char)~KEY_LEAVING;
    watch_due_now(key);
    err = OMNI_EEXIST;
  } else if (W.service.users == 0) {
    err = OMNI_ECLOSED;
  } else {
    err = put_in(path, key);
  }
  watch_wake();
  omni_mutex_unlock(&W.service.lock);
  return err;
}

void omni_watch_kick(omni_watch_key *key) {
  omni_mutex_lock(&W.service.lock);
  if (key->state & KEY_IN) {
    watch_due_now(key);
    watch_wake();
  }
  omni_mutex_unlock(&W.service.lock);
}

void omni_watch_remove(omni_watch_key *key) {
  omni_mutex_lock(&W.service.lock);
  if (key->state & KEY_RUNNING) {
    key->state |= KEY_LEAVING | KEY_FENCED;
    while (key->state & KEY_RUNNING)
      omni_cond_wait(&W.settled, &W.service.lock);
  } else if (key->state & KEY_IN) {
    watch_take_out(key);
  }
  omni_mutex_unlock(&W.service.lock);
}

void omni_watch_drop(omni_watch_key *key) {
  omni_mutex_lock(&W.service.lock);
  bool out = false;
  if (key->state & KEY_RUNNING) {
    key->state |= KEY_LEAVING;
  } else if (key->state & KEY_IN) {
    watch_take_out(key);
    out = true;
  }
  omni_mutex_unlock(&W.service.lock);
  if (out && key->done != NULL) key->done(key);
}

/* ---- users and figures ---- */

omni_err omni_watch_start(void) { return omni_service_use(&W.service); }

void omni_watch_release(void) { omni_service_release(&W.service); }

void omni_watch_join(void) { omni_service_join(&W.service); }

void omni_watch_stop(void) {
  omni_watch_release();
  omni_watch_join();
}

void omni_watch_read_stats(omni_watch_stats *stats) {
  omni_mutex_lock(&W.service.lock);
  *stats = W.stats;
  stats->watches = 0;
  stats->polling = watch_any_polled() || (W.bell < 0 && W.service.state == OMNI_SERVICE_ON);
  for (const watch_dir *dir = W.dirs; dir != NULL; dir = dir->next)
    if (dir->wd >= 0) stats->watches++;
  omni_mutex_unlock(&W.service.lock);
}
