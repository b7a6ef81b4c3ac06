#include "core/table.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_SLOTS 16

/* Eight bytes at a time; the multiplication carries each bit upwards, the shift brings it down to where slots look. */
static uint64_t mix(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
  return hash ^ hash >> 32;
}

uint64_t omni_hash(const void *data, size_t len) {
  const unsigned char *bytes = data;
  uint64_t hash = len, word;
  for (; len >= sizeof word; len -= sizeof word, bytes += sizeof word) {
    memcpy(&word, bytes, sizeof word);
    hash = mix(hash, word);
  }
  word = 0;
  if (len > 0) memcpy(&word, bytes, len);
  return mix(hash, word);
}

/* A table that cannot grow stays correct: its chains get longer. Only the first slots are indispensable. */
static bool grow(omni_table *table) {
  size_t n = table->slots == NULL ? FIRST_SLOTS : (table->mask + 1) * 2;
  omni_node **slots = calloc(n, sizeof *slots);
  if (slots == NULL) return table->slots != NULL;
  for (size_t i = 0; table->slots != NULL && i <= table->mask; i++)
    for (omni_node *node = table->slots[i], *next; node != NULL; node = next) {
      next = node->next;
      node->next = slots[node->hash & (n - 1)];
      slots[node->hash & (n - 1)] = node;
    }
  free(table->slots);
  table->slots = slots;
  table->mask = n - 1;
  return true;
}

bool omni_table_add(omni_table *table, omni_node *node, uint64_t hash) {
  if ((table->slots == NULL || table->count > table->mask) && !grow(table)) return false;
  node->hash = hash;
  node->next = table->slots[hash & table->mask];
  table->slots[hash & table->mask] = node;
  table->count++;
  return true;
}

void omni_table_remove(omni_table *table, omni_node *node) {
  omni_node **at = &table->slots[node->hash & table->mask];
  while (*at != node)
    at = &(*at)->next;
  *at = node->next;
  table->count--;
}

static omni_node *same(omni_node *node, uint64_t hash) {
  while (node != NULL && node->hash != hash)
    node = node->next;
  return node;
}

omni_node *omni_table_first(const omni_table *table, uint64_t hash) {
  return table->slots == NULL ? NULL : same(table->slots[hash & table->mask], hash);
}

omni_node *omni_table_next(const omni_node *node) { return same(node->next, node->hash); }

omni_node *omni_table_each(const omni_table *table, const omni_node *after) {
  if (table->slots == NULL) return NULL;
  if (after != NULL && after->next != NULL) return after->next;
  for (size_t i = after == NULL ? 0 : (after->hash & table->mask) + 1; i <= table->mask; i++)
    if (table->slots[i] != NULL) return table->slots[i];
  return NULL;
}

void omni_table_free(omni_table *table) {
  free(table->slots);
  *table = (omni_table){0};
}
