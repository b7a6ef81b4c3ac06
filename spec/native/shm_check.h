/* What the stress programs of the connector share: values that betray tearing, and the look at what is left. */
#ifndef NATIVE_SHM_CHECK_H
#define NATIVE_SHM_CHECK_H

#include "core/shm.h"
#include "core/sys.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(cond)                                                                                                    \
  do {                                                                                                                 \
    if (!(cond)) {                                                                                                     \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #cond);                                                       \
      exit(1);                                                                                                         \
    }                                                                                                                  \
  } while (0)

static char test_namespace[OMNI_SHM_NAMESPACE_MAX + 1];
static pid_t test_pid;

/* Entries of /dev/shm that are ours; remove: unlinks them. */
static inline int count_left(bool remove) {
  int n = 0;
  size_t len = strlen(test_namespace);
  DIR *dir = opendir("/dev/shm");
  CHECK(dir != NULL);
  for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
    if (strncmp(entry->d_name, test_namespace, len) != 0 || entry->d_name[len] != '_') continue;
    n++;
    if (remove) unlinkat(dirfd(dir), entry->d_name, 0);
  }
  closedir(dir);
  return n;
}

static inline void tidy_at_exit(void) {
  if (getpid() == test_pid) count_left(true);
}

/* A namespace of this process's own; a failed run leaves nothing either. */
static inline void begin_namespace(void) {
  test_pid = getpid();
  snprintf(test_namespace, sizeof test_namespace, "n%d", test_pid % 10000000);
  atexit(tidy_at_exit);
}

static inline void check_nothing_left(void) { CHECK(count_left(false) == 0); }

static inline omni_shm *open_handle(const char *lock_dir) {
  char text[200];
  omni_shm *handle;
  omni_shm_opts opts = {.namespace = test_namespace, .lock_dir = lock_dir};
  CHECK(omni_shm_open(&opts, &handle, text, sizeof text) == OMNI_OK);
  return handle;
}

static inline unsigned next_random(unsigned *seed) {
  *seed = *seed * 1103515245u + 12345u;
  return *seed >> 8 & 0x7fffff;
}

static inline size_t key_name(char name[16], unsigned key) { return (size_t)snprintf(name, 16, "key_%u", key); }

/* Some of one page, some of more, some beyond what is read in one call. */
static inline size_t value_size(uint64_t number) { return 8 + (number % 7 == 1 ? 140000 : number * 37 % 9000); }

static inline unsigned char pattern(uint64_t number, size_t i) { return (unsigned char)(number * 131 + i * 7); }

/* malloc'd: the number, then its pattern. */
static inline unsigned char *make_value(uint64_t number) {
  size_t size = value_size(number);
  unsigned char *value = malloc(size);
  CHECK(value != NULL);
  memcpy(value, &number, 8);
  for (size_t i = 8; i < size; i++)
    value[i] = pattern(number, i);
  return value;
}

/* Returns the number; a mixture of two values does not pass. */
static inline uint64_t check_value(const unsigned char *data, size_t len) {
  uint64_t number;
  CHECK(len >= 8);
  memcpy(&number, data, 8);
  CHECK(len == value_size(number));
  for (size_t i = 8; i < len; i++)
    CHECK(data[i] == pattern(number, i));
  return number;
}

static inline omni_err put_value(omni_shm *handle, unsigned key, uint64_t number) {
  char name[16];
  unsigned char *value = make_value(number);
  struct iovec piece = {value, value_size(number)};
  omni_err err = omni_shm_put(handle, name, key_name(name, key), &piece, 1);
  free(value);
  return err;
}

/* The number of the value that is there, UINT64_MAX where there is none. */
static inline uint64_t get_value(omni_shm *handle, unsigned key, omni_shm_got *got) {
  char name[16];
  omni_blob *blob;
  omni_err err = OMNI_OK;
  *got = omni_shm_get(handle, name, key_name(name, key), &blob, &err);
  if (*got != OMNI_SHM_GOT) return UINT64_MAX;
  uint64_t number = check_value(blob->data, blob->len);
  omni_blob_unref(blob);
  return number;
}

/* Whatever happened to it, a key is not stuck: nobody holds it, a fresh value arrives, and then nothing more. */
static inline void check_key_works(omni_shm *handle, unsigned key) {
  omni_shm_got got;
  (void)get_value(handle, key, &got);
  CHECK(got != OMNI_SHM_BUSY && got != OMNI_SHM_FAILED);
  CHECK(put_value(handle, key, 1000003) == OMNI_OK);
  CHECK(get_value(handle, key, &got) == 1000003 && got == OMNI_SHM_GOT);
  (void)get_value(handle, key, &got);
  CHECK(got == OMNI_SHM_ABSENT);
}

#endif
