/*
 * How states live: a LuaJIT state with its own loop on its own thread, its tasks, and what crosses to other states.
 * Bindings (host/lib) use this header and core; nothing in core knows it.
 */
#ifndef OMNI_VM_VM_H
#define OMNI_VM_VM_H

#include "core/blob.h"
#include "core/err.h"
#include "core/inbox.h"
#include <lauxlib.h>
#include <lua.h>
#include <stdbool.h>
#include <uv.h>

typedef struct vm_state vm_state;

/* What all states of the process share; set once by main before the first state. */
typedef struct vm_config {
  const char *exe;        /* path of this program */
  const char *script_dir; /* folder of the script: modules are found here and in its lua/ first; "" = none */
  const char *lua_root;   /* OMNIHOST_LUA: source tree used instead of the compiled-in Lua; NULL = none */
} vm_config;
extern vm_config vm_conf;

/* ---- states ---- */

/* A state with its loop, libraries and built-in modules; NULL when memory or descriptors are short. The calling thread
 * is its thread from now on. */
vm_state *vm_state_new(const char *name);

/* Starts the function and n arguments on top of the main Lua stack as the state's main task. */
void vm_state_start(vm_state *S, int nargs);

/* Runs until nothing is left, or until a failure or exit; returns the exit code. */
int vm_state_run(vm_state *S);

/* Ends in order: handles closed, loop run dry, lua_close, uv_loop_close() == 0. */
void vm_state_close(vm_state *S);

/* The state of a lua_State (any of its coroutines). */
vm_state *vm_of(lua_State *L);
lua_State *vm_main(vm_state *S); /* the main Lua thread */
uv_loop_t *vm_loop(vm_state *S);
omni_inbox *vm_inbox(vm_state *S);

/* Marks the run as failed or finished with this code and stops the loop as soon as the present callback returns. */
void vm_exit(vm_state *S, int code);

/* Reports an error of a task or callback and fails the run, unless a test run takes it. */
void vm_report(vm_state *S, const char *text);

/* Message handler for pcall and xpcall: error value -> text and the traceback, from the script's first frame on. nil
 * stays nil. */
int vm_traceback(lua_State *L);

/* Runs a function with n arguments on the main Lua stack from a loop callback: no task is current, errors are reported
 * as those of `where`, tasks that became ready run afterwards. Pops function and arguments. */
void vm_callback(vm_state *S, int nargs, const char *where);

/* ---- tasks ---- */

/* Stands for one suspension of one task; 0 is no ticket. A ticket whose suspension is over wakes nobody. */
typedef uint64_t vm_ticket;

/* The ticket of the running task's next park. Raises where the code cannot suspend (names omni.spawn). `what` is the
 * function's name for the message. */
vm_ticket vm_ticket_next(lua_State *L, const char *what);

/* Suspends: use as `return vm_park(...)`. timeout in seconds, negative = none. hope: stack index of a userdata or table
 * whose metatable's __hope(obj) tells whether somebody outside this state can still end the wait, or 0 = nobody can,
 * but for this loop's own handles. To Lua it returns what vm_unpark pushed, or false on timeout. `what` must be a
 * string constant: it is shown for tasks that wait for ever. */
int vm_park(lua_State *L, const char *what, double timeout, int hope);

/* Wakes: the task becomes ready and its park returns true. False if that suspension is over. Loop's thread. */
bool vm_unpark(vm_state *S, vm_ticket ticket);

/* The same, with n values popped from the top of L behind `true`. */
bool vm_unpark_values(vm_state *S, vm_ticket ticket, lua_State *L, int n);

/* True while the task of this ticket waits. */
bool vm_waits(vm_state *S, vm_ticket ticket);

/* ---- values ---- */

/* nil, "ECODE: text", "ECODE": use as `return vm_fail(...)`. fmt NULL = the default text. */
int vm_fail(lua_State *L, omni_err err, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Writes "file:line" of the first frame of L that is neither C nor built in: where the user stands. */
void vm_place(lua_State *L, char *text, size_t size);

/* Raises a misuse at the user's line: use as `return vm_misuse(...)`. */
int vm_misuse(lua_State *L, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Encodes the value at idx (strings, numbers, booleans, nil quickly; tables and cdata by string.buffer). NULL and an
 * error message on the stack when it cannot cross. */
omni_blob *vm_encode(lua_State *L, int idx);

/* A text as vm_encode gives a string, without a state; NULL when out of memory. */
omni_blob *vm_encode_text(const char *text);

/* Pushes the value; raises on corrupt bytes or no memory. */
void vm_decode(lua_State *L, const omni_blob *blob);

/* An encoded value that is copied at once. */
typedef struct vm_bytes {
  uint32_t tag;      /* as a blob's */
  const void *data;  /* Lua's memory, or `number` */
  size_t len;        /* bytes at data */
  lua_Number number; /* a number's bytes */
} vm_bytes;

/* The same without a blob: the bytes live as long as *out and the value do, for a table or cdata as long as the string
 * that is pushed for it. False and an error message on the stack when it cannot cross. */
bool vm_encode_bytes(lua_State *L, int idx, vm_bytes *out);
void vm_decode_bytes(lua_State *L, uint32_t tag, const void *data, size_t len); /* as vm_decode */

/* Serialises with LuaJIT's string.buffer: pushes the encoded string / the decoded value. Raise. */
void vm_buffer_encode(lua_State *L, int idx);
void vm_buffer_decode(lua_State *L, const char *data, size_t len);

/* Keeps the two functions on the stack (encode, decode) as the state's string.buffer codec. Called once by boot. */
void vm_codec_set(lua_State *L);

/* ---- handles: userdata that hold one reference to a refcounted C object ---- */

typedef struct vm_class {
  const char *name;        /* "omni.sink": shown by tostring and in argument errors */
  void *(*ref)(void *);    /* NULL: cannot be passed to threads */
  void (*unref)(void *);   /* from __gc or after close; never blocks */
  const luaL_Reg *methods; /* without __gc; may contain metamethods such as __hope */
} vm_class;

/* The userdata of every class. */
typedef struct vm_handle {
  const void *marker; /* tells it from others' userdata */
  const vm_class *class;
  void *object;                              /* NULL once released */
  void *extra;                               /* the binding's, freed by `release` */
  void (*release)(struct vm_handle *handle); /* before unref, on the state's thread; may be NULL */
} vm_handle;

/* Pushes the class's metatable (made on first use; its __index is the table of methods, where Lua may add more). */
void vm_class_push(lua_State *L, const vm_class *class);
/* Sets a field of the table on top of the stack to the class's table of methods, for the Lua half of a module. */
void vm_class_methods(lua_State *L, const vm_class *class, const char *field);
/* Pushes a handle; takes over one reference of object. */
vm_handle *vm_handle_push(lua_State *L, const vm_class *class, void *object);
/* The handle at idx; raises an argument error that names the actual type, or for a released one. */
vm_handle *vm_handle_check(lua_State *L, int idx, const vm_class *class);
/* Its object, the same way. */
void *vm_object_check(lua_State *L, int idx, const vm_class *class);
/* Gives the reference back now (idempotent). */
void vm_handle_release(vm_handle *handle);
/* The handle at idx if it is of any of our classes, else NULL. */
vm_handle *vm_handle_test(lua_State *L, int idx);

#endif
