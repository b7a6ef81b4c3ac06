/*
 * Guests: programs of others, in a Lua state of their own on a thread of their own. The state has no loop, no libraries
 * but the allow-listed ones of guest_env.c, a memory cap, a deadline and a budget of instructions.
 *
 * Invariant: a limit that was tripped once stays tripped: every later instruction of the guest raises again, so that no
 * pcall keeps it alive. What one instruction or one call into C can cost is bounded (blocks and strings by size,
 * matching by steps, callbacks by the C stack), so that a guest ends soon after its limit, wherever it is.
 *
 * A guest is semi-trusted code. Code that is hostile needs a process of its own.
 */
#ifndef OMNI_VM_GUEST_H
#define OMNI_VM_GUEST_H

#include "core/blob.h"
#include "core/err.h"

#include <lua.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct vm_guest vm_guest;

typedef struct vm_guest_limits {
  size_t memory;         /* bytes that the state may hold */
  size_t output;         /* bytes of print that are kept */
  uint64_t instructions; /* of the virtual machine; work in C is charged too */
  uint64_t deadline;     /* on omni_sys_now's clock; 0 = none */
  double seconds;        /* how long that was, for the message */
} vm_guest_limits;

/* How it ended. Lives until the guest is freed; strings are NULL where there is nothing to say. */
typedef struct vm_guest_outcome {
  omni_err code;           /* OMNI_OK, a limit's, ESYNTAX or ERUN */
  char *message;           /* of the error, as the guest's code raised it */
  int line;                /* where it was raised; 0 = unknown */
  char *traceback;         /* the guest's frames */
  const char *printed;     /* what print wrote, up to the limit */
  size_t printed_len;      /* its bytes */
  size_t printed_lost;     /* bytes beyond the limit */
  size_t memory_peak;      /* most bytes held at once */
  size_t memory_left;      /* bytes held after the state's end: 0 */
  uint64_t instructions;   /* counted and charged */
  uint64_t started, ended; /* on omni_sys_now's clock */
} vm_guest_outcome;

/* What the embedder adds. All run on the guest's thread under a protected call, but for `ended`. */
typedef struct vm_guest_ops {
  void (*open)(lua_State *L, void *arg);     /* adds globals to the table on top of the stack */
  int (*arguments)(lua_State *L, void *arg); /* pushes the chunk's arguments; returns how many */
  void (*results)(lua_State *L, void *arg);  /* the chunk's results are the whole stack */
  void (*blame)(lua_State *L, void *arg);    /* the error value of a program that failed is at index 1: note whose */
  void (*ended)(void *arg);                  /* the thread's last act; the outcome is there */
} vm_guest_ops;

/* Starts a guest; source and chunk name are copied, as is `limits`. NULL when no thread can be had. */
vm_guest *vm_guest_start(const char *source, size_t len, const char *chunk, const vm_guest_limits *limits,
                         const vm_guest_ops *ops, void *arg);

/* Makes it end soon, with ECANCELED. Any thread; a call that waits in C is the embedder's to wake. */
void vm_guest_cancel(vm_guest *guest);

/* Waits for the thread's end (idempotent; owner's thread) and gives the outcome. */
const vm_guest_outcome *vm_guest_join(vm_guest *guest);

/* Joins and frees. */
void vm_guest_free(vm_guest *guest);

/* ---- for functions that the embedder offers to guests ---- */

/* The guest of the running thread, and the `arg` it was started with. */
vm_guest *vm_guest_self(void);
void *vm_guest_arg(void);

/* Trips a limit: the running function raises now, and every later instruction raises again. Does not return. */
int vm_guest_trip(lua_State *L, omni_err code, const char *text);

/* Charges units of work (about an instruction each); raises when a limit is reached. */
void vm_guest_charge(lua_State *L, size_t units);

/* True once the guest has to end: for work that can stop by itself. */
bool vm_guest_expired(void);

/* Raises a catchable "C stack overflow" where little of the thread's stack is left: before each call into Lua. */
void vm_guest_check_stack(lua_State *L);

/* The line of the guest's code that the running C function was called from; 0 = unknown, as after a tail call. */
int vm_guest_line(lua_State *L);

#endif
