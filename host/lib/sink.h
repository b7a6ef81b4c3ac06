/* Sinks for other bindings. */
#ifndef OMNI_LIB_SINK_H
#define OMNI_LIB_SINK_H

#include "core/sink.h"
#include <lua.h>

#define OMNI_LIB_STRING_TAG 1u /* of an item that becomes a string */

/* The sink at idx; raises an argument error where there is none. Not a new reference. */
omni_sink *omni_lib_sink(lua_State *L, int idx);

#endif
