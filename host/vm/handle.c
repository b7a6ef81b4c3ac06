/* Userdata that hold one reference to a refcounted C object. */
#include "vm/vm.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char marker; /* its address begins each userdata of ours, and no other: none that Lua code can fill */

void vm_handle_release(vm_handle *handle) {
  void *object = handle->object;
  if (object == NULL) return;
  if (handle->release != NULL) handle->release(handle);
  handle->object = NULL;
  handle->class->unref(object);
}

static int handle_gc(lua_State *L) {
  vm_handle_release(lua_touserdata(L, 1));
  return 0;
}

static int handle_tostring(lua_State *L) {
  vm_handle *handle = lua_touserdata(L, 1);
  if (handle->object != NULL)
    lua_pushfstring(L, "%s: %p", handle->class->name, handle->object);
  else
    lua_pushfstring(L, "%s (released)", handle->class->name);
  return 1;
}

/* Two handles are equal when they stand for one object. */
static int handle_eq(lua_State *L) {
  vm_handle *a = vm_handle_test(L, 1), *b = vm_handle_test(L, 2);
  lua_pushboolean(L, a != NULL && b != NULL && a->object != NULL && a->object == b->object);
  return 1;
}

static void class_make(lua_State *L, const vm_class *class) {
  static const luaL_Reg common[] = {
      {"__gc", handle_gc}, {"__tostring", handle_tostring}, {"__eq", handle_eq}, {NULL, NULL}};
  lua_newtable(L);
  lua_newtable(L);
  for (const luaL_Reg *method = class->methods; method != NULL && method->name != NULL; method++) {
    lua_pushcfunction(L, method->func);
    lua_setfield(L, strncmp(method->name, "__", 2) == 0 ? -3 : -2, method->name);
  }
  lua_setfield(L, -2, "__index");
  luaL_register(L, NULL, common);
  lua_pushstring(L, class->name);
  lua_setfield(L, -2, "__name");
}

void vm_class_push(lua_State *L, const vm_class *class) {
  lua_pushlightuserdata(L, (void *)class);
  lua_rawget(L, LUA_REGISTRYINDEX);
  if (!lua_isnil(L, -1)) return;
  lua_pop(L, 1);
  class_make(L, class);
  lua_pushlightuserdata(L, (void *)class);
  lua_pushvalue(L, -2);
  lua_rawset(L, LUA_REGISTRYINDEX);
}

void vm_class_methods(lua_State *L, const vm_class *class, const char *field) {
  vm_class_push(L, class);
  lua_getfield(L, -1, "__index");
  lua_setfield(L, -3, field);
  lua_pop(L, 1);
}

vm_handle *vm_handle_push(lua_State *L, const vm_class *class, void *object) {
  vm_handle *handle = lua_newuserdata(L, sizeof *handle);
  handle->marker = &marker;
  handle->class = class;
  handle->object = NULL; /* until the metatable is set: an error before it must not leave a half-made handle */
  handle->extra = NULL;
  handle->release = NULL;
  vm_class_push(L, class);
  lua_setmetatable(L, -2);
  handle->object = object;
  return handle;
}

vm_handle *vm_handle_test(lua_State *L, int idx) {
  if (lua_type(L, idx) != LUA_TUSERDATA || lua_objlen(L, idx) != sizeof(vm_handle)) return NULL;
  vm_handle *handle = lua_touserdata(L, idx);
  return handle->marker == &marker ? handle : NULL;
}

vm_handle *vm_handle_check(lua_State *L, int idx, const vm_class *class) {
  vm_handle *handle = vm_handle_test(L, idx);
  if (handle == NULL || handle->class != class) {
    const char *got = handle != NULL ? handle->class->name : luaL_typename(L, idx);
    luaL_argerror(L, idx, lua_pushfstring(L, "%s expected, got %s", class->name, got));
  }
  return handle;
}

void *vm_object_check(lua_State *L, int idx, const vm_class *class) {
  vm_handle *handle = vm_handle_check(L, idx, class);
  if (handle->object == NULL) luaL_argerror(L, idx, lua_pushfstring(L, "this %s is released", class->name));
  return handle->object;
}

int vm_fail(lua_State *L, omni_err err, const char *fmt, ...) {
  lua_pushnil(L);
  lua_pushstring(L, omni_err_name(err));
  if (fmt == NULL) {
    lua_pushfstring(L, "%s: %s", omni_err_name(err), omni_err_text(err));
  } else {
    va_list args;
    va_start(args, fmt);
    const char *text = lua_pushvfstring(L, fmt, args);
    va_end(args);
    lua_pushfstring(L, "%s: %s", omni_err_name(err), text);
    lua_remove(L, -2);
  }
  lua_insert(L, -2);
  return 3;
}

void vm_place(lua_State *at, char *text, size_t size) {
  lua_Debug ar;
  snprintf(text, size, "(built-in code)");
  for (int level = 0; lua_getstack(at, level, &ar); level++) {
    lua_getinfo(at, "Sl", &ar);
    if (ar.currentline < 0 || strncmp(ar.source, "@builtin/", 9) == 0) continue;
    snprintf(text, size, "%s:%d", ar.short_src, ar.currentline);
    return;
  }
}

int vm_misuse(lua_State *L, const char *fmt, ...) {
  char where[LUA_IDSIZE + 16];
  vm_place(L, where, sizeof where);
  lua_pushfstring(L, "%s: ", where);
  va_list args;
  va_start(args, fmt);
  lua_pushvfstring(L, fmt, args);
  va_end(args);
  lua_concat(L, 2);
  return lua_error(L);
}
