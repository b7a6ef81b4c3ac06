/* The Lua modules that are compiled into the program; the table is generated from lua/omni by scripts/embed.lua. */
#ifndef OMNI_VM_BUILTIN_H
#define OMNI_VM_BUILTIN_H

#include <stddef.h>

/* One module. */
struct omni_builtin {
  const char *name;          /* as in require: "omni.sink"; lua/omni/init.lua is "omni" */
  const unsigned char *code; /* bytecode of the chunk named "@builtin/omni/sink.lua", not stripped */
  size_t len;                /* bytes in code */
};

/* All of them, ordered by file name; ends with a NULL name. */
extern const struct omni_builtin omni_builtins[];

#endif
