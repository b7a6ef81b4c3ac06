/* Immutable, reference-counted bytes: the one thing besides refcounted objects that crosses threads. */
#ifndef OMNI_CORE_BLOB_H
#define OMNI_CORE_BLOB_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

typedef struct omni_blob {
  atomic_uint refs;     /* freed when it reaches 0 */
  uint32_t tag;         /* free for the owner: kind of encoding */
  size_t len;           /* bytes in data */
  unsigned char data[]; /* written by the maker before it is shared, read-only afterwards */
} omni_blob;

/* A blob of len bytes that the caller fills before it shares it; NULL when out of memory. One reference. */
omni_blob *omni_blob_alloc(size_t len);

/* A blob with a copy of len bytes at data; NULL when out of memory. One reference. */
omni_blob *omni_blob_new(const void *data, size_t len);

/* One more reference; returns its argument. */
omni_blob *omni_blob_ref(omni_blob *blob);

/* Drops a reference (NULL is allowed). */
void omni_blob_unref(omni_blob *blob);

#endif
