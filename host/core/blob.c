#include "core/blob.h"

#include <stdlib.h>
#include <string.h>

omni_blob *omni_blob_alloc(size_t len) {
  if (len > SIZE_MAX - sizeof(omni_blob)) return NULL;
  omni_blob *blob = malloc(sizeof *blob + len);
  if (blob == NULL) return NULL;
  atomic_init(&blob->refs, 1);
  blob->tag = 0;
  blob->len = len;
  return blob;
}

omni_blob *omni_blob_new(const void *data, size_t len) {
  omni_blob *blob = omni_blob_alloc(len);
  if (blob != NULL && len > 0) memcpy(blob->data, data, len);
  return blob;
}

omni_blob *omni_blob_ref(omni_blob *blob) {
  atomic_fetch_add_explicit(&blob->refs, 1, memory_order_relaxed);
  return blob;
}

void omni_blob_unref(omni_blob *blob) {
  /* acq_rel: what other holders wrote to the blob's owner comes before the free. */
  if (blob != NULL && atomic_fetch_sub_explicit(&blob->refs, 1, memory_order_acq_rel) == 1) free(blob);
}
