/* omni.native.guest: guest programs as handles of the state that started them. lua/omni/plm/runner.lua waits for them.
 */
#include "lib/guest.h"
#include "lib/modules.h"
#include "lib/plm.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const vm_class guest_class;

/* ---- life ---- */

static void free_program(guest_program *p) {
  if (p->guest != NULL) vm_guest_free(p->guest);
  for (uint32_t i = 0; p->tools != NULL && i < p->tool_count; i++)
    free(p->tools[i].name);
  for (uint32_t i = 1; p->plans != NULL && i <= p->plan_count; i++)
    free(p->plans[i]);
  free(p->tools);
  free(p->sites);
  free(p->plans);
  free(p->plan_lens);
  omni_blob_unref(p->inputs);
  omni_blob_unref(p->response);
  omni_blob_unref(p->results);
  if (p->run != NULL) omni_run_unref(p->run);
  if (p->inbox != NULL) omni_inbox_unref(p->inbox);
  free(p);
}

static void unref_program(void *object) {
  guest_program *p = object;
  if (atomic_fetch_sub_explicit(&p->refs, 1, memory_order_acq_rel) == 1) free_program(p);
}

/* The guest's thread, as its last act. */
void guest_program_ended(void *object) {
  guest_program *p = object;
  atomic_fetch_add_explicit(&p->refs, 1, memory_order_relaxed);
  /* Where the owner's loop is gone, its handle still has a reference: it joins before it gives it back. */
  if (omni_inbox_post(p->inbox, &p->done) != OMNI_POSTED) unref_program(p);
}

static guest_program *program_of(omni_event *event) {
  return (guest_program *)(void *)((char *)event - offsetof(guest_program, done));
}

static void on_done(omni_event *event) {
  guest_program *p = program_of(event);
  vm_guest_join(p->guest);
  p->ended = true;
  vm_unpark(p->owner, p->waiter);
  unref_program(p);
}

static void on_dropped(omni_event *event) { unref_program(program_of(event)); }

/* Ends the program, whatever it does, and waits for its thread: it unwinds at its next instruction. */
static void release_program(vm_handle *handle) {
  guest_program *p = handle->object;
  if (p->guest == NULL) return;
  vm_guest_cancel(p->guest);
  if (!p->ended && p->run != NULL) omni_run_cancel(p->run);
  vm_guest_join(p->guest);
}

/* ---- start ---- */

static omni_blob *blob_field(lua_State *L, const char *name) {
  size_t len;
  lua_getfield(L, 1, name);
  const char *text = lua_tolstring(L, -1, &len);
  omni_blob *blob = text != NULL ? omni_blob_new(text, len) : NULL;
  lua_pop(L, 1);
  return blob;
}

static double number_field(lua_State *L, int idx, const char *name, double otherwise) {
  lua_getfield(L, idx, name);
  double value = lua_isnumber(L, -1) ? lua_tonumber(L, -1) : otherwise;
  lua_pop(L, 1);
  return value;
}

/* Pushes the list in a field; how long it is (0 for none). */
static uint32_t push_list(lua_State *L, const char *name) {
  lua_getfield(L, 1, name);
  return lua_istable(L, -1) ? (uint32_t)lua_objlen(L, -1) : 0;
}

static void *allocate(lua_State *L, size_t count, size_t size) {
  void *memory = calloc(count > 0 ? count : 1, size);
  if (memory == NULL) luaL_error(L, "out of memory");
  return memory;
}

/* tools = { { name =, id = }, ... } */
static void read_tools(lua_State *L, guest_program *p) {
  uint32_t n = push_list(L, "tools");
  p->tools = allocate(L, n, sizeof *p->tools);
  for (uint32_t i = 0; i < n; i++) {
    lua_rawgeti(L, -1, (int)i + 1);
    lua_getfield(L, -1, "name");
    p->tools[i].name = strdup(luaL_checkstring(L, -1));
    lua_pop(L, 1);
    p->tools[i].id = (uint32_t)number_field(L, -1, "id", 0);
    p->tool_count = i + 1;
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
}

/* sites = { { tool = index from 1, last =, line = }, ... } */
static void read_sites(lua_State *L, guest_program *p) {
  uint32_t n = push_list(L, "sites");
  p->sites = allocate(L, n + 1, sizeof *p->sites);
  for (uint32_t i = 1; i <= n; i++) {
    lua_rawgeti(L, -1, (int)i);
    int at = lua_gettop(L);
    uint32_t tool = (uint32_t)number_field(L, at, "tool", 0), last = (uint32_t)number_field(L, at, "last", i);
    if (tool < 1 || tool > p->tool_count || last < i || last > n)
      luaL_error(L, "guest.start: site %d is wrong", (int)i);
    p->sites[i] = (guest_site){.tool = tool - 1, .last = last, .line = (int)number_field(L, at, "line", 0)};
    lua_pop(L, 1);
  }
  p->site_count = n;
  lua_pop(L, 1);
}

/* plans = { text, ... } */
static void read_plans(lua_State *L, guest_program *p) {
  uint32_t n = push_list(L, "plans");
  p->plans = allocate(L, n + 1, sizeof *p->plans);
  p->plan_lens = allocate(L, n + 1, sizeof *p->plan_lens);
  for (uint32_t i = 1; i <= n; i++) {
    lua_rawgeti(L, -1, (int)i);
    const char *text = luaL_checklstring(L, -1, &p->plan_lens[i]);
    p->plans[i] = allocate(L, p->plan_lens[i] + 1, 1);
    memcpy(p->plans[i], text, p->plan_lens[i]);
    p->plan_count = i;
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
}

static vm_guest_limits read_limits(lua_State *L) {
  double deadline = number_field(L, 1, "deadline", 0), instructions = number_field(L, 1, "instructions", 1e9);
  return (vm_guest_limits){.memory = (size_t)number_field(L, 1, "memory", 64 << 20),
                           .output = (size_t)number_field(L, 1, "output", 1 << 20),
                           .seconds = number_field(L, 1, "seconds", 0),
                           .instructions = instructions < 1e18 ? (uint64_t)instructions : (uint64_t)1e18,
                           .deadline = deadline > 0 ? (uint64_t)llround(deadline * 1e9) : 0};
}

/*
 * start{ source=, chunk=, inputs=JSON, run=, tools=, sites=, plans=, memory=, output=, instructions=, deadline= } ->
 * guest. What is wrong with the table raises; the handle that is there already then frees what was read.
 */
static int guest_start(lua_State *L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  lua_settop(L, 1);
  guest_program *p = calloc(1, sizeof *p);
  if (p == NULL) return luaL_error(L, "out of memory");
  atomic_init(&p->refs, 1);
  vm_handle *handle = vm_handle_push(L, &guest_class, p);
  handle->release = release_program;
  p->owner = vm_of(L);
  p->inbox = omni_inbox_ref(vm_inbox(p->owner));
  omni_event_init(&p->done, on_done, on_dropped);
  read_tools(L, p);
  read_sites(L, p);
  read_plans(L, p);
  p->blame = p->tool_count;
  p->inputs = blob_field(L, "inputs");
  lua_getfield(L, 1, "run");
  if (!lua_isnil(L, -1)) p->run = omni_run_ref(omni_plm_run_check(L, lua_gettop(L)));
  if (p->run == NULL && p->tool_count > 0) return luaL_error(L, "guest.start: tools need a run");
  vm_guest_limits limits = read_limits(L);
  lua_getfield(L, 1, "chunk");
  lua_getfield(L, 1, "source");
  size_t len;
  const char *source = luaL_checklstring(L, -1, &len);
  p->guest = vm_guest_start(source, len, luaL_optstring(L, -2, "=guest"), &limits, &omni_guest_ops, p);
  if (p->guest == NULL) return vm_fail(L, OMNI_ENOMEM, "no thread can be started for a guest");
  lua_settop(L, 2);
  return 1;
}

/* ---- the handle ---- */

static guest_program *check(lua_State *L) { return vm_object_check(L, 1, &guest_class); }

static int guest_ended(lua_State *L) {
  lua_pushboolean(L, check(L)->ended);
  return 1;
}

/* _wait(): suspends until the program has ended. */
static int guest_wait(lua_State *L) {
  guest_program *p = check(L);
  p->waiter = vm_ticket_next(L, "runner:run");
  return vm_park(L, "runner:run", -1, 1);
}

static int guest_hope(lua_State *L) {
  lua_pushboolean(L, !check(L)->ended);
  return 1;
}

/* cancel(): the program ends soon, with ECANCELED. */
static int guest_cancel(lua_State *L) {
  guest_program *p = check(L);
  vm_guest_cancel(p->guest);
  if (p->run != NULL) omni_run_cancel(p->run);
  return 0;
}

static void set_text(lua_State *L, const char *name, const char *text) {
  lua_pushstring(L, text);
  lua_setfield(L, -2, name);
}

static void set_number(lua_State *L, const char *name, double value) {
  lua_pushnumber(L, value);
  lua_setfield(L, -2, name);
}

static void set_error(lua_State *L, const guest_program *p, const vm_guest_outcome *out) {
  bool tools = p->blamed && p->blame < p->tool_count;
  set_text(L, "code", tools && p->blame_code[0] != '\0' ? p->blame_code : omni_err_name(out->code));
  set_text(L, "message", out->message);
  set_text(L, "traceback", out->traceback);
  if (out->line > 0) set_number(L, "line", out->line);
  if (tools) set_text(L, "tool", p->tools[p->blame].name);
}

/* _result() -> table: how the program ended. */
static int guest_result(lua_State *L) {
  guest_program *p = check(L);
  const vm_guest_outcome *out = vm_guest_join(p->guest);
  lua_newtable(L);
  lua_pushboolean(L, out->code == OMNI_OK);
  lua_setfield(L, -2, "ok");
  if (out->code != OMNI_OK) set_error(L, p, out);
  if (p->results != NULL) {
    lua_pushlstring(L, (const char *)p->results->data, p->results->len);
    lua_setfield(L, -2, "results");
  }
  lua_pushlstring(L, out->printed_len > 0 ? out->printed : "", out->printed_len);
  lua_setfield(L, -2, "printed");
  set_number(L, "printed_lost", (double)out->printed_lost);
  set_number(L, "memory_peak", (double)out->memory_peak);
  set_number(L, "memory_left", (double)out->memory_left);
  set_number(L, "instructions", (double)out->instructions);
  set_number(L, "started", (double)out->started / 1e9);
  set_number(L, "ended", (double)out->ended / 1e9);
  return 1;
}

static const luaL_Reg methods[] = {{"_ended", guest_ended},  {"_wait", guest_wait},  {"_result", guest_result},
                                   {"cancel", guest_cancel}, {"__hope", guest_hope}, {NULL, NULL}};

static const vm_class guest_class = {"omni.guest", NULL, unref_program, methods};

int omni_open_guest(lua_State *L) {
  static const luaL_Reg functions[] = {{"start", guest_start}, {NULL, NULL}};
  lua_newtable(L);
  luaL_register(L, NULL, functions);
  vm_class_push(L, &guest_class);
  lua_getfield(L, -1, "__index");
  lua_setfield(L, -3, "methods");
  lua_pop(L, 1);
  return 1;
}
