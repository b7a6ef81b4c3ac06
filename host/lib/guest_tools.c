/* The guest's side of its tools: functions that encode their arguments, wait for the run, and deliver what came. */
#include "lib/guest.h"

#include <stdio.h>
#include <string.h>

static char tools_key;   /* registry key of the list of the tools' functions */
static char message_key; /* registry key of the last error that a tool gave */

void guest_push_tool(lua_State *L, uint32_t tool) {
  lua_pushlightuserdata(L, &tools_key);
  lua_rawget(L, LUA_REGISTRYINDEX);
  lua_rawgeti(L, -1, (int)tool + 1);
  lua_remove(L, -2);
}

/* ---- a call ---- */

/* Raises the text on top at the line of the call, and remembers that it was this tool's. */
static int raise_error(lua_State *L, guest_program *p, uint32_t tool, uint32_t site, const char *code) {
  guest_drop_later(p, site);
  luaL_where(L, 1);
  lua_insert(L, -2);
  lua_concat(L, 2);
  p->blame = tool;
  snprintf(p->blame_code, sizeof p->blame_code, "%s", code);
  lua_pushlightuserdata(L, &message_key);
  lua_pushvalue(L, -2);
  lua_rawset(L, LUA_REGISTRYINDEX);
  return lua_error(L);
}

/* The run cannot go on: a limit of the whole program. */
static int raise_limit(lua_State *L, omni_err err) {
  switch (err) {
  case OMNI_EDEADLINE:
    (void)vm_guest_expired(); /* it says how long it was */
    return vm_guest_trip(L, OMNI_EDEADLINE, "the program's time is over");
  case OMNI_ECALLS: return vm_guest_trip(L, OMNI_ECALLS, "the budget of tool calls is used up");
  case OMNI_ENOMEM: return vm_guest_trip(L, OMNI_EMEMORY, "there is no memory for a tool call");
  default: return vm_guest_trip(L, OMNI_ECANCELED, "the run was cancelled");
  }
}

static int deliver(lua_State *L, guest_program *p, uint32_t tool, uint32_t site) {
  int n = 0;
  char code[32];
  bool ok = guest_decode_response(L, p->response, &n, code, sizeof code);
  omni_blob_unref(p->response);
  p->response = NULL;
  return ok ? n : raise_error(L, p, tool, site, code);
}

/* Upvalue 1: the tool's index. */
static int call_tool(lua_State *L) {
  guest_program *p = vm_guest_arg();
  uint32_t tool = (uint32_t)lua_tointeger(L, lua_upvalueindex(1)), site;
  uint32_t handle = guest_claim(p, tool, &site);
  omni_blob *args = guest_encode_values(L, lua_gettop(L));
  if (args == NULL) {
    if (handle != 0) omni_run_cancel_handle(p->run, handle);
    lua_pushfstring(L, "%s: its arguments cannot be sent: %s", p->tools[tool].name, lua_tostring(L, -1));
    return raise_error(L, p, tool, site, "EJSON");
  }
  int line = vm_guest_line(L);
  omni_blob_unref(p->response); /* of a delivery that an error ended */
  p->response = NULL;
  omni_err err = omni_run_resolve(p->run, handle, p->tools[tool].id, args, line, &p->response);
  if (err == OMNI_OK) return deliver(L, p, tool, site);
  guest_drop_later(p, site);
  return raise_limit(L, err);
}

/* ---- the environment ---- */

/* Puts the function on top where a dotted name says; tables are made on the way. The environment is at `env`. */
static void place_tool(lua_State *L, int env, const char *name) {
  int function = lua_gettop(L);
  const char *dot;
  lua_pushvalue(L, env);
  for (; (dot = strchr(name, '.')) != NULL; name = dot + 1) {
    lua_pushlstring(L, name, (size_t)(dot - name));
    lua_rawget(L, -2);
    if (lua_istable(L, -1)) continue;
    lua_pop(L, 1);
    lua_newtable(L);
    lua_pushlstring(L, name, (size_t)(dot - name));
    lua_pushvalue(L, -2);
    lua_rawset(L, -4);
  }
  lua_pushvalue(L, function);
  lua_setfield(L, -2, name);
  lua_settop(L, function - 1);
}

static void open_tools(lua_State *L, guest_program *p) {
  int env = lua_gettop(L);
  lua_pushlightuserdata(L, &tools_key);
  lua_createtable(L, (int)p->tool_count, 0);
  for (uint32_t i = 0; i < p->tool_count; i++) {
    lua_pushinteger(L, (lua_Integer)i);
    lua_pushcclosure(L, call_tool, 1);
    lua_pushvalue(L, -1);
    lua_rawseti(L, -3, (int)i + 1);
    place_tool(L, env, p->tools[i].name);
  }
  lua_rawset(L, LUA_REGISTRYINDEX);
}

static void open_environment(lua_State *L, void *arg) {
  guest_program *p = arg;
  guest_values_open(L);
  open_tools(L, p);
  if (p->inputs != NULL)
    guest_decode(L, p->inputs);
  else
    lua_newtable(L);
  lua_setfield(L, -2, "inputs");
}

/* ---- beginning and end ---- */

/* A program that the pass left alone gets nothing. */
static int push_arguments(lua_State *L, void *arg) {
  guest_program *p = arg;
  if (p->plan_count == 0) return 0;
  guest_push_prepare(L);
  return 2;
}

static void take_results(lua_State *L, void *arg) {
  guest_program *p = arg;
  p->results = guest_encode_values(L, lua_gettop(L));
  if (p->results != NULL) return;
  lua_pushfstring(L, "the program's results cannot be returned: %s", lua_tostring(L, -1));
  lua_error(L);
}

static void note_blame(lua_State *L, void *arg) {
  guest_program *p = arg;
  lua_pushlightuserdata(L, &message_key);
  lua_rawget(L, LUA_REGISTRYINDEX);
  p->blamed = !lua_isnil(L, -1) && lua_rawequal(L, -1, 1);
  lua_pop(L, 1);
}

const vm_guest_ops omni_guest_ops = {open_environment, push_arguments, take_results, note_blame, guest_program_ended};
