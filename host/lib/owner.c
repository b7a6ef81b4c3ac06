/* omni.native.owner: namespaces that hosts make, their sweep, and what an emergency must kill and remove. */
#include "core/owner.h"

#include "lib/modules.h"
#include "vm/vm.h"

/* create([shm_dir]) -> namespace, descriptor of its lock | nil, "ECODE: ...", "ECODE" */
static int owner_create(lua_State *L) {
  char ns[OMNI_SHM_NAMESPACE_MAX + 1], text[256];
  int fd;
  omni_err err = omni_owner_create(luaL_optstring(L, 1, NULL), ns, &fd, text, sizeof text);
  if (err != OMNI_OK) return vm_fail(L, err, "%s", text);
  lua_pushstring(L, ns);
  lua_pushinteger(L, fd);
  return 2;
}

/* is_owned_name(namespace) -> boolean */
static int owner_is_owned_name(lua_State *L) {
  lua_pushboolean(L, omni_owner_is_owned_name(luaL_checkstring(L, 1)));
  return 1;
}

/* alive(namespace[, shm_dir]) -> boolean: some process holds the lock of its owner file. */
static int owner_alive(lua_State *L) {
  const char *ns = luaL_checkstring(L, 1);
  lua_pushboolean(L, omni_owner_alive(luaL_optstring(L, 2, NULL), ns));
  return 1;
}

/* sweep(namespace[, shm_dir]) -> segments removed */
static int owner_sweep(lua_State *L) {
  const char *ns = luaL_checkstring(L, 1);
  lua_pushnumber(L, (lua_Number)omni_owner_sweep(luaL_optstring(L, 2, NULL), ns));
  return 1;
}

/* sweep_dead([shm_dir]) -> namespaces, segments removed */
static int owner_sweep_dead(lua_State *L) {
  size_t segments;
  lua_pushnumber(L, (lua_Number)omni_owner_sweep_dead(luaL_optstring(L, 1, NULL), &segments));
  lua_pushnumber(L, (lua_Number)segments);
  return 2;
}

/* note_group(pgid, alive) */
static int owner_note_group(lua_State *L) {
  omni_owner_note_group((pid_t)luaL_checkinteger(L, 1), lua_toboolean(L, 2));
  return 0;
}

/* note_namespace(namespace, alive[, shm_dir]) */
static int owner_note_namespace(lua_State *L) {
  const char *ns = luaL_checkstring(L, 1);
  omni_owner_note_namespace(luaL_optstring(L, 3, NULL), ns, lua_toboolean(L, 2));
  return 0;
}

static const luaL_Reg functions[] = {{"create", owner_create},
                                     {"is_owned_name", owner_is_owned_name},
                                     {"alive", owner_alive},
                                     {"sweep", owner_sweep},
                                     {"sweep_dead", owner_sweep_dead},
                                     {"note_group", owner_note_group},
                                     {"note_namespace", owner_note_namespace},
                                     {NULL, NULL}};

int omni_open_owner(lua_State *L) {
  lua_newtable(L);
  luaL_register(L, NULL, functions);
  return 1;
}
