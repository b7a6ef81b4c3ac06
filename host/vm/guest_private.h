/* Inside of a guest: shared by the guest_*.c files only. */
#ifndef OMNI_VM_GUEST_PRIVATE_H
#define OMNI_VM_GUEST_PRIVATE_H

#include "core/buf.h"
#include "core/sys.h"
#include "vm/guest.h"

#include <lauxlib.h>
#include <stdatomic.h>
#include <time.h>

#define GUEST_STACK ((size_t)1 << 20) /* of the thread */
/* Of it, for calls from C into Lua. Not more: an error is unwound through each of them, which takes about 0.1 ms. */
#define GUEST_STACK_CALLS ((size_t)128 << 10)
#define GUEST_HOOK 100                      /* instructions between two looks */
#define GUEST_BLOCK_MAX ((size_t)32 << 20)  /* one allocation: bounds what a rehash or a copy can cost */
#define GUEST_STRING_MAX ((size_t)16 << 20) /* what a function of the string or table library may build */
#define GUEST_SOURCE_MAX ((size_t)1 << 20)  /* of the program */

/* Where the state's memory comes from (guest_heap.c). Zeroed = empty. */
typedef struct guest_heap {
  struct guest_hole *holes[40]; /* free blocks, by class */
  struct guest_piece *chunks;   /* of small blocks */
  struct guest_piece *large;    /* blocks on their own */
  char *at, *end;               /* what is left of the newest chunk */
  size_t chunk_size;            /* of the newest one */
  bool ending;                  /* the state is being closed: nothing is freed one by one */
} guest_heap;

/* As realloc, with the old size given; a block that shrinks stays if nothing else can be had. */
void *guest_heap_resize(guest_heap *heap, void *block, size_t old, size_t size);
void guest_heap_free(guest_heap *heap, void *block, size_t size);
/* Gives everything back. */
void guest_heap_end(guest_heap *heap);

struct vm_guest {
  vm_guest_limits limits;
  const vm_guest_ops *ops;
  void *arg;
  omni_blob *source;
  char chunk[120];
  omni_thread thread;
  bool joined;
  vm_guest_outcome outcome;
  /* the thread's */
  lua_State *L;
  guest_heap heap;
  char *stack_end;       /* C frames below this address may call no Lua */
  size_t used;           /* bytes held by the state */
  size_t fresh;          /* bytes allocated since the last collection that the hook asked for */
  uint64_t instructions; /* so far */
  size_t unchecked;      /* charged since the last look at the limits */
  unsigned looks;        /* of the hook: the clock is read in some of them */
  bool armed;            /* guest code runs: the hook is set */
  bool reporting;        /* its error is described: with some memory beyond the limit */
  int last_line;         /* where a hook out of turn saw the guest */
  omni_err trip;         /* the limit that was reached, OMNI_OK while none is */
  char trip_text[160];   /* its message */
  char trip_place[140];  /* "file:line: " where it was raised first */
  omni_buf printed;
  size_t printed_lost;
  timer_t timer; /* sends the alarm */
  bool timed;    /* there is a timer */
  /* any thread's */
  atomic_bool alarm;     /* set by the signal: look at the limits now */
  atomic_bool cancelled; /* by vm_guest_cancel */
  omni_mutex mutex;      /* guards alive */
  bool alive;            /* the thread can be signalled */
};

/* guest_limits.c */
void *guest_alloc(void *ud, void *ptr, size_t osize, size_t nsize);
void guest_arm(vm_guest *g, lua_State *L); /* from here on guest code runs */
void guest_disarm(vm_guest *g, lua_State *L);
void guest_alarm_install(void); /* once per process */
void guest_set_self(vm_guest *g);
const char *guest_trip_message(vm_guest *g); /* "ECODE: text" */

/* guest_env.c: builds the environment and makes it the state's globals. */
void guest_env_open(lua_State *L);
/* Pushes the string for a value as guests see it: no addresses, __tostring honoured. Raises. */
const char *guest_tolstring(lua_State *L, int idx, size_t *len);
/* Pushes the run-local number of an object (table, function, coroutine); gives it one where it has none. */
lua_Number guest_object_number(lua_State *L, int idx);

/* Each opens a part of the environment: the library table on top, where functions are replaced and added. */
void guest_order_open(lua_State *L);     /* the environment: next, pairs */
void guest_coroutine_open(lua_State *L); /* coroutine */
void guest_string_open(lua_State *L);    /* string */
void guest_table_open(lua_State *L);     /* table */
int guest_format(lua_State *L);          /* string.format; upvalue 1: LuaJIT's own, for numbers */

/* Takes functions of an opened library over into the table on top of the stack. */
void guest_take(lua_State *L, const char *library, const char *const *names);

/* A buffer in a userdata on the Lua stack: the state's memory, so that the cap sees it and errors leave nothing. */
typedef struct guest_out {
  lua_State *L;
  int idx;    /* of the userdata */
  char *data; /* its bytes */
  size_t len, room;
} guest_out;
void guest_out_open(guest_out *out, lua_State *L, size_t room); /* pushes the userdata */
void guest_out_add(guest_out *out, const char *data, size_t len);
void guest_out_push(guest_out *out); /* pushes the string */

/* guest_match.c: patterns, without Lua calls. */
#define GUEST_CAPTURES 32
typedef struct guest_capture {
  const char *start;
  ptrdiff_t len; /* or one of these */
} guest_capture;
#define GUEST_CAPTURE_OPEN (-1)
#define GUEST_CAPTURE_POSITION (-2)

typedef struct guest_matcher {
  lua_State *L;
  const char *text, *text_end; /* the subject */
  const char *pattern_end;
  int depth;    /* C recursion left */
  size_t steps; /* not charged yet */
  int captures; /* begun so far */
  guest_capture capture[GUEST_CAPTURES];
} guest_matcher;

void guest_matcher_init(guest_matcher *m, lua_State *L, const char *text, size_t len, const char *pattern, size_t plen);
/* Matches the pattern from `at` on; the end of the match, or NULL. Raises for a malformed pattern or a limit. */
const char *guest_matcher_at(guest_matcher *m, const char *at, const char *pattern);
/* Pushes capture i, or the whole match where there are none. */
void guest_matcher_push(guest_matcher *m, int i, const char *from, const char *to);
/* Pushes all of them (the whole match if there are none and from is given); how many. */
int guest_matcher_push_all(guest_matcher *m, const char *from, const char *to);
/* Charges the steps that are left. */
void guest_matcher_done(guest_matcher *m);

#endif
