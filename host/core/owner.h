/*
 * Ownership: host-made namespaces, the lock that lives as long as any process of theirs, the sweep of dead ones, and
 * what must be killed and removed when the process ends in a hurry.
 */
#ifndef OMNI_CORE_OWNER_H
#define OMNI_CORE_OWNER_H

#include "err.h"
#include "shm.h"
#include <sys/types.h>

/* Makes a namespace ("o" and 8 base-32 digits a-z2-7) with <shm_dir>/<ns>.owner, locked (created under a temporary
 * name, locked, renamed), and <shm_dir>/<ns>.d (0700). *fd is the lock's descriptor (close-on-exec; children get it as
 * fd 4 by dup). shm_dir NULL = /dev/shm. */
omni_err omni_owner_create(const char *shm_dir, char ns[OMNI_SHM_NAMESPACE_MAX + 1], int *fd, char *text, size_t size);

/* True for a name of the host-made form. */
bool omni_owner_is_owned_name(const char *ns);

/* Whether some process of a host-made namespace lives (its owner file is locked). False where there is no such file. */
bool omni_owner_alive(const char *shm_dir, const char *ns);

/* Removes everything of one host-made namespace by exact names: segments, lock files, <ns>.d, the owner file last.
 * Returns how many segments it removed. */
size_t omni_owner_sweep(const char *shm_dir, const char *ns);

/* Sweeps the namespaces of this user whose owners are all dead (EX|NB with the inode check succeeds); returns how many
 * namespaces, and the segments in *segments (may be NULL). */
size_t omni_owner_sweep_dead(const char *shm_dir, size_t *segments);

/* Process groups and namespaces that omni_owner_emergency kills and sweeps. Any thread; never fails (beyond 4096
 * entries it is a no-op). */
void omni_owner_note_group(pid_t pgid, bool alive);
void omni_owner_note_namespace(const char *shm_dir, const char *ns, bool alive);

/* Kills the noted groups, waits up to 100 ms for them, sweeps the noted namespaces. For the last moment of a process
 * that cannot unwind; async-signal-unsafe, run it on a thread. */
void omni_owner_emergency(void);

#endif
