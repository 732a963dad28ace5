/* base/arena.c -- memory that is freed all at once: a list of chunks, bump allocation in the newest
** keeps: chunks double from 64 KiB (or the arena's own first size) to 4 MiB; a request too big to share one gets its own
**        behind the newest
** tests: tests/base/test_arena.c
*/
#include "base/base.h"

#include <string.h>

enum { ALIGNMENT = 16, CHUNK_FIRST = 64 << 10, CHUNK_LAST = 4 << 20 };

struct base_arena_chunk {
  _Alignas(ALIGNMENT) struct base_arena_chunk *next;
  size_t bytes;      /* with this header */
  size_t next_bytes; /* of the shared chunk made after this one */
};

void base_arena_init(struct base_arena *arena, struct base_heap *heap) { *arena = (struct base_arena){.heap = heap}; }

/* Frees the chunks of a list before one of them. */
static void free_chunks(struct base_arena *arena, struct base_arena_chunk **list, const struct base_arena_chunk *end) {
  while (*list != end) {
    struct base_arena_chunk *chunk = *list;
    *list = chunk->next;
    base_free(arena->heap, chunk, chunk->bytes);
  }
}

void base_arena_fini(struct base_arena *arena) {
  free_chunks(arena, &arena->chunks, NULL);
  arena->used = 0;
}

struct base_arena_mark base_arena_mark(const struct base_arena *arena) {
  struct base_arena_chunk *newest = arena->chunks;
  return (struct base_arena_mark){.newest = newest, .next = newest ? newest->next : NULL, .used = arena->used};
}

/* What came since: chunks before the newest of then, and big requests right behind it. */
void base_arena_rewind(struct base_arena *arena, struct base_arena_mark mark) {
  free_chunks(arena, &arena->chunks, mark.newest);
  if (mark.newest) free_chunks(arena, &mark.newest->next, mark.next);
  arena->used = mark.used;
}

void base_arena_join(struct base_arena *arena, struct base_arena *from) {
  QUERN_ASSERT(arena->heap == from->heap);
  struct base_arena_chunk *newest = arena->chunks, *last = from->chunks;
  if (!newest) {
    *arena = *from;
  } else if (last) {
    while (last->next) last = last->next;
    last->next = newest->next;
    newest->next = from->chunks;
  }
  base_arena_init(from, from->heap);
}

/* A chunk for one big request. It becomes the newest only when there is none. */
static char *alloc_own(struct base_arena *arena, size_t bytes) {
  struct base_arena_chunk *chunk = base_alloc(arena->heap, sizeof *chunk + bytes);
  if (!chunk) return NULL;
  *chunk = (struct base_arena_chunk){.bytes = sizeof *chunk + bytes, .next_bytes = CHUNK_FIRST};
  if (arena->chunks) {
    chunk->next = arena->chunks->next;
    arena->chunks->next = chunk;
  } else {
    arena->chunks = chunk;
    arena->used = chunk->bytes;
  }
  return (char *)(chunk + 1);
}

/* A new newest chunk to share. */
static bool add_chunk(struct base_arena *arena, size_t bytes) {
  struct base_arena_chunk *chunk = base_alloc(arena->heap, bytes);
  if (!chunk) return false;
  size_t twice = BASE_MIN(2 * bytes, CHUNK_LAST);
  *chunk = (struct base_arena_chunk){.next = arena->chunks, .bytes = bytes, .next_bytes = twice};
  arena->chunks = chunk;
  arena->used = sizeof *chunk;
  return true;
}

void *base_arena_alloc(struct base_arena *arena, size_t bytes) {
  if (bytes > PTRDIFF_MAX - ALIGNMENT - sizeof(struct base_arena_chunk)) {
    base_error(QUERN_STATUS_MEMORY, "no memory for %zu bytes", bytes);
    return NULL;
  }
  size_t need = (BASE_MAX(bytes, 1) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  struct base_arena_chunk *newest = arena->chunks;
  if (!newest || need > newest->bytes - arena->used) {
    size_t share = newest ? newest->next_bytes : arena->first ? arena->first : CHUNK_FIRST;
    if (need > share / 4) {
      char *memory = alloc_own(arena, need);
      return memory ? memset(memory, 0, need) : NULL;
    }
    if (!add_chunk(arena, share)) return NULL;
  }
  char *memory = (char *)arena->chunks + arena->used;
  arena->used += need;
  return memset(memory, 0, need);
}

void *base_arena_copy(struct base_arena *arena, const void *src, size_t bytes) {
  void *memory = base_arena_alloc(arena, bytes);
  if (memory && bytes > 0) memcpy(memory, src, bytes);
  return memory;
}

char *base_arena_string(struct base_arena *arena, const char *text, size_t n) {
  char *memory = base_arena_alloc(arena, BASE_MAX(n + 1, n));
  if (memory && n > 0) memcpy(memory, text, n);
  return memory;
}
