/*
 * Threads that a state starts: each runs a state of its own. Nothing Lua is shared; arguments and results are blobs and
 * references to C objects.
 *
 * Life: the parent starts it (one reference each for parent's handle, parent's list and the thread); the thread posts
 * `done` to the parent's inbox when its state is closed; the parent then joins the thread and takes it off its list
 * once somebody has seen its result.
 */
#ifndef OMNI_VM_CHILD_H
#define OMNI_VM_CHILD_H

#include "core/sys.h"
#include "vm/state.h"

/* One object that crosses with the arguments. */
typedef struct vm_passed {
  const vm_class *class;
  void *object; /* a reference */
} vm_passed;

typedef struct vm_child vm_child;
struct vm_child {
  atomic_uint refs;
  char name[VM_NAME_MAX];
  omni_thread thread;
  /* set before the start */
  omni_blob *payload; /* what the thread's Lua gets first */
  vm_passed *passed;  /* then these */
  size_t passed_count;
  omni_inbox *parent_inbox; /* a reference */
  /* the parent's thread only */
  vm_state *parent;
  vm_child *next;   /* in the parent's list */
  vm_ticket waiter; /* of the task in join */
  bool joined;      /* pthread-joined: the thread is gone */
  bool seen;        /* somebody took the result */
  omni_event done;
  /* under the mutex */
  omni_mutex mutex;
  omni_cond ended_cond;
  omni_inbox *inbox; /* the child state's while it runs */
  bool ended;
  bool stopping; /* somebody asked it to stop */
  omni_event stop;
  vm_state *state; /* the child's; its own thread and `stop` only */
  /* the thread's until it has ended, then the parent's */
  omni_blob *result;
  bool ok;
};

/* Starts a thread; payload's reference and those of passed are taken over. NULL when none can be had. */
vm_child *vm_child_start(vm_state *parent, const char *name, omni_blob *payload, vm_passed *passed, size_t n);
void vm_child_unref(vm_child *child);
bool vm_child_ended(vm_child *child);
/* The child of the running state, or NULL on the main state. */
vm_child *vm_child_of(vm_state *S);
/* Takes over result: what join returns (ok), or why the thread failed. */
void vm_child_finish(vm_child *child, bool ok, omni_blob *result);
/* Asks it to stop; returns at once. */
void vm_child_stop(vm_child *child);

#endif
