/*
 * A thread that runs while somebody uses it: started by the first user, gone after the last.
 *
 *   user:   use (starts it where it does not run) ... release (never waits: the thread may be in somebody's callback)
 *   thread: under the lock, nobody uses it -> puts its things away -> over -> returns
 * An ended thread is joined by the next use or by omni_service_join, whichever comes first.
 */
#ifndef OMNI_CORE_SERVICE_H
#define OMNI_CORE_SERVICE_H

#include "err.h"
#include "sys.h"

/* Where the thread is in its life. */
typedef enum omni_service_state {
  OMNI_SERVICE_OFF,  /* no thread */
  OMNI_SERVICE_ON,   /* started, not over */
  OMNI_SERVICE_OVER, /* past its last use of anything, to be joined */
} omni_service_state;

typedef struct omni_service {
  omni_mutex lock; /* guards this and whatever else the owner keeps beside it */
  omni_cond ended; /* broadcast when state becomes OVER */
  unsigned users;  /* the thread ends when it sees 0 */
  omni_service_state state;
  omni_thread thread;     /* while ON or OVER */
  const char *name;       /* of the thread */
  omni_err (*open)(void); /* before each start, lock held; may be NULL */
  void (*run)(void);      /* the thread: called with the lock held, returns with it held when users == 0 */
  void (*wake)(void);     /* lock held: makes run look at users */
} omni_service;

/* A service that is off. */
#define OMNI_SERVICE_INIT(thread_name, open_fn, run_fn, wake_fn)                                                       \
  {                                                                                                                    \
    .lock = PTHREAD_MUTEX_INITIALIZER, .ended = PTHREAD_COND_INITIALIZER, .name = (thread_name), .open = (open_fn),    \
    .run = (run_fn), .wake = (wake_fn)                                                                                 \
  }

/* One more user; starts the thread where needed. Takes the lock. */
omni_err omni_service_use(omni_service *service);

/* One user less; never waits for the thread. Takes the lock. */
void omni_service_release(omni_service *service);

/* Waits until the thread has ended and joins it; returns at once while somebody uses it. Not from the thread. */
void omni_service_join(omni_service *service);

#endif
