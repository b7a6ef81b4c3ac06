/* Life of a guest: its thread, its state, its one program, its outcome. */
#include "vm/guest_private.h"

#include <luajit.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- errors ---- */

static char trace_key; /* registry key of what on_error found: the value itself travels on */

/* The first line of Lua code from a level on; 0 = there is none. */
static int line_from(lua_State *L, int level) {
  lua_Debug ar;
  for (; lua_getstack(L, level, &ar); level++) {
    lua_getinfo(L, "Sl", &ar);
    if (ar.currentline > 0 && strncmp(ar.source, "@builtin/", 9) != 0) return ar.currentline;
  }
  return 0;
}

/* Message handler of the guest's main chunk. It runs no code of the guest's: hooks are off in handlers. */
static int on_error(lua_State *L) {
  vm_guest *g = vm_guest_self();
  g->armed = false;
  g->reporting = true;
  g->outcome.line = line_from(L, 1);
  luaL_traceback(L, L, NULL, 1);
  lua_pushlightuserdata(L, &trace_key);
  lua_insert(L, -2);
  lua_rawset(L, LUA_REGISTRYINDEX);
  return 1;
}

static char *copy(const char *text, size_t len) {
  char *out = malloc(len + 1);
  if (out == NULL) return NULL;
  memcpy(out, text, len);
  out[len] = '\0';
  return out;
}

/* The frames of a traceback that are the guest's: ours at the bottom and C's below its main chunk say nothing. */
static char *guest_frames(const char *trace) {
  omni_buf out = {0};
  for (const char *line = strchr(trace, '\n'), *end; line != NULL; line = end) {
    end = strchr(line + 1, '\n');
    const char *text = line + 1;
    if (*text == '\t') text++;
    if (strncmp(text, "builtin/", 8) == 0 || (end == NULL && strncmp(text, "[C]", 3) == 0)) continue;
    omni_buf_put(&out, line, end != NULL ? (size_t)(end - line) : strlen(line));
  }
  omni_buf_putc(&out, '\0');
  char *frames = out.len > 1 && !out.failed ? copy(out.data + 1, out.len - 2) : NULL;
  omni_buf_free(&out);
  return frames;
}

/* Under a protected call: the message of the error value at 1, which may be an object of the guest's. */
static int describe_error(lua_State *L) {
  vm_guest *g = vm_guest_self();
  vm_guest_outcome *out = &g->outcome;
  lua_settop(L, 1);
  lua_pushlightuserdata(L, &trace_key);
  lua_rawget(L, LUA_REGISTRYINDEX);
  if (lua_isstring(L, -1)) out->traceback = guest_frames(lua_tostring(L, -1));
  lua_pop(L, 1);
  if (out->code == OMNI_ERUN && g->ops->blame != NULL) g->ops->blame(L, g->arg);
  if (lua_istable(L, 1) && !luaL_getmetafield(L, 1, "__tostring")) {
    lua_pushliteral(L, "message"); /* { message = ... }: the usual form of an error object */
    lua_rawget(L, 1);
    if (lua_type(L, -1) == LUA_TSTRING) lua_replace(L, 1);
  }
  if (out->message != NULL) return 0; /* a limit's */
  size_t len;
  const char *text = guest_tolstring(L, 1, &len);
  out->message = copy(text, len);
  return 0;
}

/* Where the text itself tells the line, as for programs that do not compile: "chunk:12: ..." */
static int line_of(const char *message) {
  const char *colon = message;
  while ((colon = strchr(colon, ':')) != NULL) {
    char *end;
    long line = strtol(++colon, &end, 10);
    if (end != colon && *end == ':' && line > 0) return (int)line;
  }
  return 0;
}

/* A limit's message tells where it was reached, not where the last pcall gave up. */
static void take_trip(vm_guest *g) {
  vm_guest_outcome *out = &g->outcome;
  char text[sizeof g->trip_place + sizeof g->trip_text];
  snprintf(text, sizeof text, "%s%s", g->trip_place, g->trip_text);
  free(out->message);
  out->message = copy(text, strlen(text));
  out->code = g->trip;
  out->line = g->trip_place[0] != '\0' ? line_of(text) : g->last_line;
}

/* The error value is on top. */
static void take_error(vm_guest *g, lua_State *L, omni_err code) {
  vm_guest_outcome *out = &g->outcome;
  g->reporting = true;
  out->code = code;
  if (g->trip != OMNI_OK) take_trip(g);
  lua_pushcfunction(L, describe_error);
  lua_insert(L, -2);
  guest_arm(g, L); /* an object's __tostring is the guest's code: limits hold for it */
  int failed = lua_pcall(L, 1, 0, 0);
  guest_disarm(g, L);
  if (failed && g->trip != OMNI_OK) take_trip(g);
  if (out->line == 0 && out->message != NULL) out->line = line_of(out->message);
}

/* ---- the program ---- */

static void open_state(vm_guest *g, lua_State *L) {
  luaJIT_setmode(L, 0, LUAJIT_MODE_ENGINE | LUAJIT_MODE_OFF); /* compiled code runs no hooks */
  lua_gc(L, LUA_GCSETPAUSE, 150);
  lua_gc(L, LUA_GCSETSTEPMUL, 400);
  guest_env_open(L);
  lua_pushvalue(L, LUA_GLOBALSINDEX);
  if (g->ops->open != NULL) g->ops->open(L, g->arg);
  lua_settop(L, 0);
}

/* A literal such as 5LL loads the FFI behind everybody's back. */
static bool opened_ffi(lua_State *L) {
  lua_getfield(L, LUA_REGISTRYINDEX, "_LOADED");
  lua_getfield(L, -1, "ffi");
  bool opened = !lua_isnil(L, -1);
  lua_pop(L, 2);
  return opened;
}

/* Leaves the chunk, or an error message and returns false. */
static bool compile(vm_guest *g, lua_State *L) {
  if (g->source->len > GUEST_SOURCE_MAX) {
    lua_pushfstring(L, "the program is larger than %d bytes", (int)GUEST_SOURCE_MAX);
    return false;
  }
  if (g->source->len > 0 && g->source->data[0] == LUA_SIGNATURE[0]) {
    lua_pushliteral(L, "the program is bytecode: only source text is run");
    return false;
  }
  if (luaL_loadbufferx(L, (const char *)g->source->data, g->source->len, g->chunk, "t") != 0) return false;
  if (!opened_ffi(L)) return true;
  lua_pop(L, 1);
  lua_pushliteral(L, "64-bit and imaginary number literals are not available here");
  return false;
}

/* Under a protected call: the chunk's results are the whole stack. */
static int take_results(lua_State *L) {
  vm_guest *g = vm_guest_self();
  if (g->ops->results != NULL) g->ops->results(L, g->arg);
  return 0;
}

/* Calls the chunk, which is on top, and then takes its results: what cannot be returned is an error of the program. */
static int call_chunk(vm_guest *g, lua_State *L) {
  lua_settop(L, 1);
  lua_pushcfunction(L, on_error);
  lua_pushcfunction(L, take_results);
  lua_insert(L, 1);
  lua_insert(L, 2); /* take_results, on_error, chunk */
  int n = g->ops->arguments != NULL ? g->ops->arguments(L, g->arg) : 0;
  guest_arm(g, L);
  int status = lua_pcall(L, n, LUA_MULTRET, 2);
  if (status == 0 && g->trip == OMNI_OK) {
    lua_remove(L, 2);
    status = lua_pcall(L, lua_gettop(L) - 1, 0, 0);
  } else if (status == 0) { /* a limit was tripped by the last that it did */
    lua_settop(L, 0);
    lua_pushnil(L);
    status = LUA_ERRRUN;
  }
  guest_disarm(g, L);
  return status;
}

/* Under lua_cpcall, for every push can find no memory. */
static int run_body(lua_State *L) {
  vm_guest *g = vm_guest_self();
  open_state(g, L);
  if (!compile(g, L)) {
    take_error(g, L, OMNI_ESYNTAX);
    return 0;
  }
  int status = call_chunk(g, L);
  if (status != 0) take_error(g, L, status == LUA_ERRMEM ? OMNI_EMEMORY : OMNI_ERUN);
  return 0;
}

static void run(vm_guest *g, lua_State *L) {
  vm_guest_outcome *out = &g->outcome;
  int status = lua_cpcall(L, run_body, NULL);
  if (status == 0 && out->code == OMNI_OK) return;
  if (g->armed) guest_disarm(g, L);
  if (out->code == OMNI_OK) {
    out->code = status == LUA_ERRMEM ? OMNI_EMEMORY : OMNI_ERUN;
    const char *text = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : "";
    out->message = copy(text, strlen(text));
  }
  if (out->message == NULL) out->message = copy("error without a message", 23);
}

static void without_memory(vm_guest *g) {
  g->outcome.code = OMNI_EMEMORY;
  g->outcome.message = copy("EMEMORY: there is no memory for a state", 39);
}

static void *thread_main(void *arg) {
  vm_guest *g = arg;
  guest_set_self(g);
  g->stack_end = (char *)__builtin_frame_address(0) - GUEST_STACK_CALLS;
  vm_guest_outcome *out = &g->outcome;
  out->started = omni_sys_now();
  g->L = lua_newstate(guest_alloc, g);
  if (g->L != NULL) {
    run(g, g->L);
    g->heap.ending = true;
    lua_close(g->L);
  } else {
    without_memory(g);
  }
  guest_heap_end(&g->heap);
  out->ended = omni_sys_now();
  out->instructions = g->instructions;
  out->memory_left = g->used;
  out->printed = g->printed.data;
  out->printed_len = g->printed.len;
  out->printed_lost = g->printed_lost;
  g->ops->ended(g->arg);
  return NULL;
}

/* ---- the owner's side ---- */

vm_guest *vm_guest_start(const char *source, size_t len, const char *chunk, const vm_guest_limits *limits,
                         const vm_guest_ops *ops, void *arg) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, guest_alarm_install);
  vm_guest *g = calloc(1, sizeof *g);
  if (g == NULL) return NULL;
  g->source = omni_blob_new(source, len);
  if (g->source == NULL) goto fail_source;
  g->limits = *limits;
  g->ops = ops;
  g->arg = arg;
  snprintf(g->chunk, sizeof g->chunk, "%s", chunk);
  omni_mutex_init(&g->mutex);
  if (omni_thread_start_sized(&g->thread, "guest", GUEST_STACK, thread_main, g) != 0) goto fail_thread;
  return g;
fail_thread:
  omni_mutex_destroy(&g->mutex);
  omni_blob_unref(g->source);
fail_source:
  free(g);
  return NULL;
}

const vm_guest_outcome *vm_guest_join(vm_guest *g) {
  if (!g->joined) omni_thread_join(g->thread);
  g->joined = true;
  return &g->outcome;
}

void vm_guest_free(vm_guest *g) {
  vm_guest_join(g);
  omni_buf_free(&g->printed);
  free(g->outcome.message);
  free(g->outcome.traceback);
  omni_mutex_destroy(&g->mutex);
  omni_blob_unref(g->source);
  free(g);
}
