/* What must be killed and removed when the process ends without unwinding. */
#include "core/owner.h"
#include "core/sys.h"

#include <stdlib.h>
#include <string.h>

#define NOTES 4096
#define PATIENCE 50 /* rounds of 2 ms */

typedef struct namespace_note {
  char ns[OMNI_SHM_NAMESPACE_MAX + 1];
  char dir[]; /* "" = the default */
} namespace_note;

/* Lock order: the mutex is a leaf. */
static struct {
  omni_mutex mutex;
  size_t groups, namespaces; /* entries in use */
  pid_t group[NOTES];
  namespace_note *namespace[NOTES];
} notes = {.mutex = PTHREAD_MUTEX_INITIALIZER};

void omni_owner_note_group(pid_t pgid, bool alive) {
  if (pgid <= 1) return; /* -1 and 0 would mean everybody, or ourselves */
  omni_mutex_lock(&notes.mutex);
  size_t at = 0;
  while (at < notes.groups && notes.group[at] != pgid)
    at++;
  if (alive && at == notes.groups && at < NOTES) notes.group[notes.groups++] = pgid;
  if (!alive && at < notes.groups) notes.group[at] = notes.group[--notes.groups];
  omni_mutex_unlock(&notes.mutex);
}

static namespace_note *new_note(const char *dir, const char *ns) {
  namespace_note *note = malloc(sizeof *note + strlen(dir) + 1);
  if (note == NULL) return NULL;
  strcpy(note->ns, ns);
  strcpy(note->dir, dir);
  return note;
}

void omni_owner_note_namespace(const char *shm_dir, const char *ns, bool alive) {
  const char *dir = shm_dir != NULL ? shm_dir : "";
  if (!omni_owner_is_owned_name(ns)) return;
  omni_mutex_lock(&notes.mutex);
  size_t at = 0;
  while (at < notes.namespaces &&
         (strcmp(notes.namespace[at] -> ns, ns) != 0 || strcmp(notes.namespace[at] -> dir, dir) != 0))
    at++;
  if (alive && at == notes.namespaces && at < NOTES) {
    namespace_note *note = new_note(dir, ns);
    if (note != NULL) notes.namespace[notes.namespaces++] = note;
  }
  if (!alive && at < notes.namespaces) {
    free(notes.namespace[at]);
    notes.namespace[at] = notes.namespace[--notes.namespaces];
  }
  omni_mutex_unlock(&notes.mutex);
}

/* Takes our dead children of the group off the process table, so that the group can be seen to be empty. */
static bool is_gone(pid_t pgid) {
  while (omni_sys_waitpid(-pgid, NULL, WNOHANG) > 0)
    ;
  return omni_sys_kill(-pgid, 0) == -1 && errno == ESRCH;
}

static bool all_gone(void) {
  bool gone = true;
  for (size_t i = 0; i < notes.groups; i++)
    gone = is_gone(notes.group[i]) && gone;
  return gone;
}

void omni_owner_emergency(void) {
  struct timespec pause = {.tv_nsec = 2000000};
  omni_mutex_lock(&notes.mutex);
  for (size_t i = 0; i < notes.groups; i++)
    omni_sys_kill(-notes.group[i], SIGKILL);
  for (int round = 0; !all_gone() && round < PATIENCE; round++)
    omni_sys_ppoll(NULL, 0, &pause);
  for (size_t i = 0; i < notes.namespaces; i++) {
    const namespace_note *note = notes.namespace[i];
    omni_owner_sweep(note->dir[0] != '\0' ? note->dir : NULL, note->ns);
  }
  omni_mutex_unlock(&notes.mutex);
}
