/*
 * The memory of one guest's state. Small blocks come in size classes out of chunks and go back to their class's list;
 * large ones are malloc's. At the end all chunks go at once: a state of a million objects is closed without a million
 * frees, so that a guest that is over its time does not take longer still.
 */
#include "vm/guest_private.h"

#include <stdlib.h>
#include <string.h>

#ifdef OMNI_LUA_MALLOC
/* Sanitizer builds: malloc lets ASan see each Lua object. */
void *guest_heap_resize(guest_heap *heap, void *block, size_t old, size_t size) {
  (void)heap, (void)old;
  return realloc(block, size);
}
void guest_heap_free(guest_heap *heap, void *block, size_t size) {
  (void)heap, (void)size;
  free(block);
}
void guest_heap_end(guest_heap *heap) { (void)heap; }
#else

#define FINE_MAX ((size_t)256)         /* up to here a class each 16 bytes */
#define FINE_STEP ((size_t)16)         /* so blocks are aligned to 16 */
#define SMALL_MAX ((size_t)16 << 10)   /* up to here four classes a doubling */
#define CHUNK_FIRST ((size_t)48 << 10) /* a guest without much to do needs no other */
#define CHUNK_MAX ((size_t)1 << 20)

/* In front of a chunk, and of a large block. */
struct guest_piece {
  struct guest_piece *next, *previous;
  size_t size; /* with this header */
  size_t unused;
};

/* In a block that is free. */
struct guest_hole {
  struct guest_hole *next;
};

/* The class of a small size, and what its blocks measure. */
static unsigned class_of(size_t size, size_t *room) {
  if (size <= FINE_MAX) {
    unsigned class = (unsigned)((size + FINE_STEP - 1) / FINE_STEP) - 1;
    *room = (class + 1) * FINE_STEP;
    return class;
  }
  unsigned log = 63u - (unsigned)__builtin_clzll(size - 1); /* of the doubling that it lies in: 8 at first */
  size_t base = (size_t)1 << log, step = base / 4, quarter = (size - 1 - base) / step;
  *room = base + (quarter + 1) * step;
  return 16 + (log - 8) * 4 + (unsigned)quarter;
}

static bool add_chunk(guest_heap *heap) {
  size_t size = heap->chunk_size == 0 ? CHUNK_FIRST : heap->chunk_size * 2;
  if (size > CHUNK_MAX) size = CHUNK_MAX;
  struct guest_piece *chunk = malloc(size);
  if (chunk == NULL) return false;
  chunk->next = heap->chunks;
  heap->chunks = chunk;
  heap->chunk_size = size;
  heap->at = (char *)(chunk + 1);
  heap->end = (char *)chunk + size;
  return true;
}

static void *small_new(guest_heap *heap, size_t size) {
  size_t room;
  struct guest_hole **list = &heap->holes[class_of(size, &room)];
  if (*list != NULL) {
    struct guest_hole *hole = *list;
    *list = hole->next;
    return hole;
  }
  if ((size_t)(heap->end - heap->at) < room && !add_chunk(heap)) return NULL;
  char *block = heap->at;
  heap->at += room;
  return block;
}

static void link_large(guest_heap *heap, struct guest_piece *piece) {
  piece->previous = NULL;
  piece->next = heap->large;
  if (piece->next != NULL) piece->next->previous = piece;
  heap->large = piece;
}

static void unlink_large(guest_heap *heap, struct guest_piece *piece) {
  if (piece->next != NULL) piece->next->previous = piece->previous;
  if (piece->previous != NULL)
    piece->previous->next = piece->next;
  else
    heap->large = piece->next;
}

/* A large block, moved from another one where there is one. */
static void *large_resize(guest_heap *heap, struct guest_piece *from, size_t size) {
  if (from != NULL) unlink_large(heap, from);
  struct guest_piece *piece = realloc(from, sizeof *piece + size);
  if (piece == NULL) {
    if (from != NULL) link_large(heap, from);
    return NULL;
  }
  link_large(heap, piece);
  return piece + 1;
}

static void *block_new(guest_heap *heap, size_t size) {
  return size <= SMALL_MAX ? small_new(heap, size) : large_resize(heap, NULL, size);
}

void guest_heap_free(guest_heap *heap, void *block, size_t size) {
  if (heap->ending) return; /* all at once, soon */
  size_t room;
  if (size > SMALL_MAX) {
    struct guest_piece *piece = (struct guest_piece *)block - 1;
    unlink_large(heap, piece);
    free(piece);
    return;
  }
  struct guest_hole *hole = block, **list = &heap->holes[class_of(size, &room)];
  hole->next = *list;
  *list = hole;
}

void *guest_heap_resize(guest_heap *heap, void *block, size_t old, size_t size) {
  if (block == NULL) return block_new(heap, size);
  if (old > SMALL_MAX && size > SMALL_MAX) return large_resize(heap, (struct guest_piece *)block - 1, size);
  size_t old_room, room;
  if (old <= SMALL_MAX && size <= SMALL_MAX && class_of(old, &old_room) == class_of(size, &room)) return block;
  void *moved = block_new(heap, size);
  if (moved == NULL) return size < old ? block : NULL; /* to shrink must not fail, and what is too large serves */
  memcpy(moved, block, old < size ? old : size);
  guest_heap_free(heap, block, old);
  return moved;
}

static void free_pieces(struct guest_piece *piece) {
  while (piece != NULL) {
    struct guest_piece *next = piece->next;
    free(piece);
    piece = next;
  }
}

void guest_heap_end(guest_heap *heap) {
  free_pieces(heap->chunks);
  free_pieces(heap->large);
  *heap = (guest_heap){0};
}
#endif
