/* resume and wrap: each level of coroutines takes C stack, which is looked at before one is entered. */
#include "vm/guest_private.h"

/* Why it cannot be resumed, or NULL. */
static const char *refusal(lua_State *L, lua_State *co) {
  lua_Debug ar;
  int status = lua_status(co);
  if (status == LUA_YIELD) return NULL;
  if (status != 0) return "cannot resume dead coroutine";
  if (co == L || lua_getstack(co, 0, &ar)) return "cannot resume non-suspended coroutine";
  return lua_gettop(co) == 0 ? "cannot resume dead coroutine" : NULL;
}

/* Resumes with the n values on top. Their number, or -1 with an error value on top. */
static int resume(lua_State *L, lua_State *co, int n) {
  vm_guest_check_stack(L);
  const char *why = refusal(L, co);
  if (why == NULL && !lua_checkstack(co, n)) why = "too many arguments to resume";
  if (why != NULL) {
    lua_pushstring(L, why);
    return -1;
  }
  lua_xmove(L, co, n);
  int status = lua_resume(co, n);
  if (status != 0 && status != LUA_YIELD) {
    lua_xmove(co, L, 1);
    return -1;
  }
  int results = lua_gettop(co);
  if (!lua_checkstack(L, results + 1)) {
    lua_settop(co, 0);
    lua_pushliteral(L, "too many results to resume");
    return -1;
  }
  lua_xmove(co, L, results);
  return results;
}

static int guest_resume(lua_State *L) {
  lua_State *co = lua_tothread(L, 1);
  luaL_argcheck(L, co != NULL, 1, "coroutine expected");
  int results = resume(L, co, lua_gettop(L) - 1);
  lua_pushboolean(L, results >= 0);
  lua_insert(L, results >= 0 ? -(results + 1) : -2);
  return results >= 0 ? results + 1 : 2;
}

static int wrapped(lua_State *L) {
  int results = resume(L, lua_tothread(L, lua_upvalueindex(1)), lua_gettop(L));
  if (results >= 0) return results;
  if (lua_type(L, -1) == LUA_TSTRING) {
    luaL_where(L, 1);
    lua_insert(L, -2);
    lua_concat(L, 2);
  }
  return lua_error(L);
}

static int guest_wrap(lua_State *L) {
  luaL_checktype(L, 1, LUA_TFUNCTION);
  lua_State *co = lua_newthread(L);
  lua_pushvalue(L, 1);
  lua_xmove(L, co, 1);
  lua_pushcclosure(L, wrapped, 1);
  return 1;
}

void guest_coroutine_open(lua_State *L) {
  static const luaL_Reg functions[] = {{"resume", guest_resume}, {"wrap", guest_wrap}, {NULL, NULL}};
  luaL_register(L, NULL, functions);
}
