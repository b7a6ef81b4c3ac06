/* Intrusive hash chains: the nodes are part of the objects, so nothing is allocated per entry. Not locked. */
#ifndef OMNI_CORE_TABLE_H
#define OMNI_CORE_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Embedded in what is stored; owned by the table while it is in. */
typedef struct omni_node {
  struct omni_node *next; /* in the same slot */
  uint64_t hash;          /* given to omni_table_add */
} omni_node;

/* All zero is an empty table. */
typedef struct omni_table {
  omni_node **slots; /* mask + 1 of them, or NULL */
  size_t mask;       /* slots - 1; a power of two minus one */
  size_t count;      /* nodes in the table */
} omni_table;

/* The object that holds a node. */
#define omni_container(pointer, type, member) ((type *)(void *)((char *)(pointer)-offsetof(type, member)))

/* A hash of len bytes, for tables of this process only. */
uint64_t omni_hash(const void *data, size_t len);

/* Adds a node under a hash; false when there is no memory for the first slots. */
bool omni_table_add(omni_table *table, omni_node *node, uint64_t hash);

/* Takes out a node that is in the table. */
void omni_table_remove(omni_table *table, omni_node *node);

/* The first node with this hash, and the next one with the same; NULL at the end. */
omni_node *omni_table_first(const omni_table *table, uint64_t hash);
omni_node *omni_table_next(const omni_node *node);

/* Walks all nodes: NULL gives the first, NULL comes after the last. Fetch the next before you remove one. */
omni_node *omni_table_each(const omni_table *table, const omni_node *after);

/* Frees the slots, not the nodes. */
void omni_table_free(omni_table *table);

#endif
