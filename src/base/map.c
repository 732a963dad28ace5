/* base/map.c -- hash map with open addressing and linear probing, and the hashes
** keeps: at most three quarters full; no empty slot between an item and the slot of its hash; hashes do not depend on the machine
** see:   the mixing step is the finalizer of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014)
** tests: tests/base/test_map.c
*/
#include "base/base.h"

#include <string.h>

enum { FEWEST = 16 };

void base_map_init(struct base_map *map, struct base_heap *heap) { *map = (struct base_map){.heap = heap}; }

void base_map_fini(struct base_map *map) {
  base_free(map->heap, map->slots, map->cap * sizeof *map->slots);
  base_map_init(map, map->heap);
}

void *base_map_find(const struct base_map *map, uint64_t hash, base_map_equal *equal, const void *key) {
  if (map->cap == 0) return NULL;
  for (size_t i = hash & (map->cap - 1); map->slots[i].item; i = (i + 1) & (map->cap - 1)) {
    if (map->slots[i].hash == hash && equal(map->slots[i].item, key)) return map->slots[i].item;
  }
  return NULL;
}

/* Puts an item into the first free slot of its run. */
static void put(struct base_map_slot *slots, size_t cap, uint64_t hash, void *item) {
  size_t i = hash & (cap - 1);
  while (slots[i].item) i = (i + 1) & (cap - 1);
  slots[i] = (struct base_map_slot){hash, item};
}

static bool resize(struct base_map *map, size_t cap) {
  size_t bytes;
  if (cap < map->n || !base_size(cap, sizeof *map->slots, 0, &bytes)) {
    base_error(QUERN_STATUS_MEMORY, "no memory for a map of more than %zu items", map->n);
    return false;
  }
  struct base_map_slot *slots = base_alloc_zero(map->heap, bytes);
  if (!slots) return false;
  for (size_t i = 0; i < map->cap; i++) {
    if (map->slots[i].item) put(slots, cap, map->slots[i].hash, map->slots[i].item);
  }
  base_free(map->heap, map->slots, map->cap * sizeof *map->slots);
  map->slots = slots;
  map->cap = cap;
  return true;
}

bool base_map_add(struct base_map *map, uint64_t hash, void *item) {
  if (map->n >= map->cap / 4 * 3 && !resize(map, map->cap ? 2 * map->cap : FEWEST)) return false;
  put(map->slots, map->cap, hash, item);
  map->n++;
  return true;
}

void base_map_remove(struct base_map *map, uint64_t hash, const void *item) {
  size_t mask = map->cap - 1, hole = hash & mask;
  while (map->slots[hole].item != item) hole = (hole + 1) & mask;
  /* Later items of the run that may not stand after an empty slot move into it. */
  for (size_t i = (hole + 1) & mask; map->slots[i].item; i = (i + 1) & mask) {
    size_t home = map->slots[i].hash & mask;
    if (((i - home) & mask) < ((i - hole) & mask)) continue;
    map->slots[hole] = map->slots[i];
    hole = i;
  }
  map->slots[hole] = (struct base_map_slot){0};
  map->n--;
}

void base_map_sweep(struct base_map *map, base_map_drop *drop, void *user) {
  for (size_t i = 0; i < map->cap;) {
    struct base_map_slot slot = map->slots[i];
    if (slot.item && drop(user, slot.item))
      base_map_remove(map, slot.hash, slot.item); /* another may be in this slot now */
    else
      i++;
  }
  size_t cap = FEWEST;
  while (cap / 4 < map->n) cap *= 2;
  if (cap < map->cap / 4) (void)resize(map, cap);
}

uint64_t base_hash_u64(uint64_t hash, uint64_t word) {
  uint64_t x = (hash ^ word) + UINT64_C(0x9e3779b97f4a7c15);
  x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
  return x ^ (x >> 31);
}

/* Words of 8 bytes, lowest first, the last padded with zeros; then the length. */
uint64_t base_hash_bytes(uint64_t hash, const void *bytes, size_t n) {
  const unsigned char *at = bytes;
  uint64_t word = 0;
  for (size_t i = 0; i < n; i++) {
    word |= (uint64_t)at[i] << (i % 8 * 8);
    if (i % 8 == 7 || i + 1 == n) {
      hash = base_hash_u64(hash, word);
      word = 0;
    }
  }
  return base_hash_u64(hash, n);
}

uint64_t base_hash_string(uint64_t hash, const char *text) { return base_hash_bytes(hash, text, strlen(text)); }
