/* The one list of Lua modules written in C: module name, opener. `require "omni.native.NAME"`. */
#ifndef OMNI_LIB_MODULES_H
#define OMNI_LIB_MODULES_H

#include <lua.h>

#define OMNI_MODULES(X)                                                                                                \
  X("omni.native.chunks", omni_open_chunks)                                                                            \
  X("omni.native.guest", omni_open_guest)                                                                              \
  X("omni.native.host", omni_open_host)                                                                                \
  X("omni.native.json", omni_open_json)                                                                                \
  X("omni.native.log", omni_open_log)                                                                                  \
  X("omni.native.metrics", omni_open_metrics)                                                                          \
  X("omni.native.owner", omni_open_owner)                                                                              \
  X("omni.native.plm", omni_open_plm)                                                                                  \
  X("omni.native.router", omni_open_router)                                                                            \
  X("omni.native.sched", omni_open_sched)                                                                              \
  X("omni.native.shm", omni_open_shm)                                                                                  \
  X("omni.native.sink", omni_open_sink)                                                                                \
  X("omni.native.sys", omni_open_sys)                                                                                  \
  X("omni.native.thread", omni_open_thread)

#define X(name, open) int open(lua_State *L);
OMNI_MODULES(X)
#undef X

/* Puts all of them into package.preload. */
void omni_preload_modules(lua_State *L);

#endif
