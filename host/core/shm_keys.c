/* Names of keys, and the sets in which a handle remembers what it wrote and what it found torn. */
#include "core/shm_private.h"

#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_BUCKETS 64

/* ---- names ---- */

static const EVP_MD *sha256;
static pthread_once_t sha256_once = PTHREAD_ONCE_INIT;
static pthread_key_t context_key; /* frees a thread's context when the thread ends */
static _Thread_local EVP_MD_CTX *context;

static void free_context(void *of_thread) { EVP_MD_CTX_free(of_thread); }

/* Fetching costs more than digesting, so it is done once. No clean-up at exit: threads may still digest then. */
static void fetch_sha256(void) {
  OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, NULL);
  sha256 = EVP_MD_fetch(NULL, "SHA256", NULL);
  if (sha256 == NULL) sha256 = EVP_sha256();
  if (pthread_key_create(&context_key, free_context) != 0) abort();
}

/* A context per thread, for making one costs as much as a digest. */
static bool digest(const char *key, size_t len, unsigned char out[EVP_MAX_MD_SIZE]) {
  if (context == NULL) {
    pthread_once(&sha256_once, fetch_sha256);
    context = EVP_MD_CTX_new();
    if (context == NULL || pthread_setspecific(context_key, context) != 0) return false;
  }
  return EVP_DigestInit_ex2(context, sha256, NULL) == 1 && EVP_DigestUpdate(context, key, len) == 1 &&
         EVP_DigestFinal_ex(context, out, NULL) == 1;
}

/* Who polls asks for one key again and again, so each thread remembers its last answer as well. */
omni_shm_id omni_shm_id_of(const char *key, size_t len) {
  static _Thread_local struct {
    size_t len; /* 0 = nothing yet */
    omni_shm_id id;
    char key[64];
  } last;
  unsigned char bytes[EVP_MAX_MD_SIZE];
  omni_shm_id id;
  if (len > 0 && len == last.len && memcmp(key, last.key, len) == 0) return last.id;
  /* It can fail for want of memory only; a name that nobody else makes would lose data, so there is no way on. */
  if (!digest(key, len, bytes)) abort();
  memcpy(id.bytes, bytes, sizeof id.bytes);
  if (len > sizeof last.key) return id;
  memcpy(last.key, key, len);
  last.len = len;
  last.id = id;
  return id;
}

void omni_shm_names_of(const char *namespace, omni_shm_id id, omni_shm_names *names) {
  static const char hex[] = "0123456789abcdef";
  size_t n = strlen(namespace);
  names->id = id;
  memcpy(names->segment, namespace, n);
  names->segment[n++] = '_';
  for (size_t i = 0; i < sizeof id.bytes; i++) {
    names->segment[n++] = hex[id.bytes[i] >> 4];
    names->segment[n++] = hex[id.bytes[i] & 15];
  }
  names->segment[n] = '\0';
  memcpy(names->lock, names->segment, n);
  memcpy(names->lock + n, ".lock", sizeof ".lock");
}

/* ---- sets ---- */

static bool same(omni_shm_id a, omni_shm_id b) { return memcmp(a.bytes, b.bytes, sizeof a.bytes) == 0; }

/* Digests are uniform: any of their bytes make a hash. */
static size_t hash_of(omni_shm_id id) {
  size_t hash;
  memcpy(&hash, id.bytes, sizeof hash);
  return hash;
}

bool omni_shm_keys_init(omni_shm_keys *keys) {
  memset(keys, 0, sizeof *keys);
  keys->buckets = calloc(FIRST_BUCKETS, sizeof(omni_shm_key *));
  if (keys->buckets == NULL) return false;
  keys->mask = FIRST_BUCKETS - 1;
  omni_mutex_init(&keys->mutex);
  return true;
}

void omni_shm_keys_free(omni_shm_keys *keys) {
  if (keys->buckets == NULL) return;
  for (omni_shm_key *key = keys->oldest, *next; key != NULL; key = next) {
    next = key->newer;
    free(key);
  }
  free(keys->buckets);
  omni_mutex_destroy(&keys->mutex);
}

omni_shm_key *omni_shm_key_new(omni_shm_id id, const char *key, size_t len) {
  omni_shm_key *entry = calloc(1, sizeof *entry + len);
  if (entry == NULL) return NULL;
  entry->id = id;
  entry->len = len;
  if (len > 0) memcpy(entry->bytes, key, len);
  return entry;
}

/* The link that points to the key, or to the end of its chain. Caller holds the mutex. */
static omni_shm_key **find(omni_shm_keys *keys, omni_shm_id id) {
  omni_shm_key **at = &keys->buckets[hash_of(id) & keys->mask];
  while (*at != NULL && !same((*at)->id, id))
    at = &(*at)->chain;
  return at;
}

/* Out of the order of age. */
static void unlink_age(omni_shm_keys *keys, omni_shm_key *key) {
  *(key->older != NULL ? &key->older->newer : &keys->oldest) = key->newer;
  *(key->newer != NULL ? &key->newer->older : &keys->newest) = key->older;
}

static void link_newest(omni_shm_keys *keys, omni_shm_key *key) {
  key->newer = NULL;
  key->older = keys->newest;
  *(keys->newest != NULL ? &keys->newest->newer : &keys->oldest) = key;
  keys->newest = key;
}

static void remove_at(omni_shm_keys *keys, omni_shm_key **at) {
  omni_shm_key *key = *at;
  *at = key->chain;
  unlink_age(keys, key);
  atomic_fetch_sub_explicit(&keys->count, 1, memory_order_relaxed);
  free(key);
}

/* Doubles the buckets; where memory is short the chains just grow. Caller holds the mutex. */
static void grow(omni_shm_keys *keys) {
  size_t size = (keys->mask + 1) * 2;
  omni_shm_key **buckets = calloc(size, sizeof *buckets);
  if (buckets == NULL) return;
  free(keys->buckets);
  keys->buckets = buckets;
  keys->mask = size - 1;
  for (omni_shm_key *key = keys->oldest; key != NULL; key = key->newer) {
    omni_shm_key **at = &buckets[hash_of(key->id) & keys->mask];
    key->chain = *at;
    *at = key;
  }
}

bool omni_shm_keys_set(omni_shm_keys *keys, omni_shm_key *entry) {
  omni_mutex_lock(&keys->mutex);
  omni_shm_key **at = find(keys, entry->id);
  bool known = *at != NULL && (*at)->inode == entry->inode;
  if (*at != NULL) remove_at(keys, at);
  if (atomic_load_explicit(&keys->count, memory_order_relaxed) > keys->mask) grow(keys);
  at = &keys->buckets[hash_of(entry->id) & keys->mask];
  entry->chain = *at;
  *at = entry;
  link_newest(keys, entry);
  atomic_fetch_add_explicit(&keys->count, 1, memory_order_relaxed);
  omni_mutex_unlock(&keys->mutex);
  return known;
}

static omni_shm_mark mark_of(const omni_shm_key *key) {
  return (omni_shm_mark){.id = key->id, .inode = key->inode, .stored = key->stored};
}

bool omni_shm_keys_find(omni_shm_keys *keys, omni_shm_id id, omni_shm_mark *mark) {
  omni_mutex_lock(&keys->mutex);
  omni_shm_key *key = *find(keys, id);
  if (key != NULL) *mark = mark_of(key);
  omni_mutex_unlock(&keys->mutex);
  return key != NULL;
}

void omni_shm_keys_drop(omni_shm_keys *keys, omni_shm_id id, ino_t inode) {
  if (atomic_load_explicit(&keys->count, memory_order_relaxed) == 0) return;
  omni_mutex_lock(&keys->mutex);
  omni_shm_key **at = find(keys, id);
  if (*at != NULL && (inode == 0 || (*at)->inode == inode)) remove_at(keys, at);
  omni_mutex_unlock(&keys->mutex);
}

bool omni_shm_keys_rotate(omni_shm_keys *keys, omni_shm_mark *mark) {
  omni_mutex_lock(&keys->mutex);
  omni_shm_key *key = keys->oldest;
  if (key != NULL) {
    *mark = mark_of(key);
    unlink_age(keys, key);
    link_newest(keys, key);
  }
  omni_mutex_unlock(&keys->mutex);
  return key != NULL;
}

omni_shm_mark *omni_shm_keys_match(omni_shm_keys *keys, const char *prefix, size_t len, size_t *n) {
  *n = 0;
  omni_mutex_lock(&keys->mutex);
  size_t count = atomic_load_explicit(&keys->count, memory_order_relaxed);
  omni_shm_mark *marks = count > 0 ? malloc(count * sizeof *marks) : NULL;
  for (omni_shm_key *key = keys->oldest; marks != NULL && key != NULL; key = key->newer)
    if (key->len >= len && memcmp(key->bytes, prefix, len) == 0) marks[(*n)++] = mark_of(key);
  omni_mutex_unlock(&keys->mutex);
  return marks;
}
