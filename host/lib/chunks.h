/* What the two rooms of the chunk binding share: chunks.c (handles, waiting), chunks_value.c (values, builders). */
#ifndef OMNI_LIB_CHUNKS_H
#define OMNI_LIB_CHUNKS_H

#include "core/chunk.h"
#include <lua.h>

/* How an adapter writes values other than strings and nil. */
typedef enum chunks_encoding {
  CHUNKS_BUFFER, /* LuaJIT's string.buffer */
  CHUNKS_JSON,   /* omni.json */
  CHUNKS_BYTES   /* strings only */
} chunks_encoding;

/* Encodes the value at idx, an absolute index. False and a message on the stack when it cannot be carried. *out = NULL
 * stands for nil. */
bool chunks_encode(lua_State *L, int idx, chunks_encoding encoding, omni_blob **out);

/* C function (chunk as light userdata) -> value. Raises on corrupt bytes and no memory. */
int chunks_decode(lua_State *L);

/* A builder: the module that turns snapshots into payloads, loaded on the SAVE thread in a state of its own when the
 * first chunk is built. NULL when out of memory. */
typedef struct chunks_builder chunks_builder;
chunks_builder *chunks_builder_new(const char *module, chunks_encoding encoding);
/* omni_chunk_build and build_free of the adapter; ud is the builder. */
omni_err chunks_builder_run(void *ud, const char *req, omni_blob *in, bool is_final, omni_blob **out, char *text,
                            size_t size);
void chunks_builder_free(void *ud);

#endif
