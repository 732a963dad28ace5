/* runtime/cpu/translation_units.c -- which kernels are compiled together
** A compiler process costs as much as a few hundred instructions; beyond that, units side by side share the work. The
** largest kernels are assigned first, each to the unit that is the least long with it; functions that a unit has already
** cost nothing there. A unit has a bound, since a compiler's time and memory grow with its length: there are more units
** than CPUs then.
** tests: tests/runtime/test_units.c
*/
#include "runtime/cpu/cpu_int.h"

#include <stdlib.h>

enum {
  KERNEL_COST = 20,
  LEAST_COST = 200,
  MOST_COST = 32768
}; /* in instructions: of a kernel beside its own; that make a unit worth a process; of several kernels in one */

struct item {
  size_t kernel;
  int64_t cost;
};

static int by_cost(const void *a, const void *b) {
  const struct item *x = a, *y = b;
  if (x->cost != y->cost) return x->cost > y->cost ? -1 : 1;
  return x->kernel < y->kernel ? -1 : 1;
}

static bool is_phase(const struct kern *kern, size_t fn) {
  for (int i = 0; i < kern->n_phases; i++) {
    if ((size_t)kern->phases[i].fn == fn) return true;
  }
  return false;
}

/* Functions of the same name and length are taken for the same: it is an estimate only. */
static uint64_t hash_of(const struct kern_fn *fn) {
  return base_hash_u64(base_hash_string(BASE_HASH_SEED, fn->name), fn->insts.n);
}

static bool any(const void *item, const void *key) {
  (void)item;
  (void)key;
  return true;
}

/* What a kernel costs in a unit that has these functions; NULL: none. */
static int64_t cost_in(const struct kern *kern, const struct base_map *has) {
  int64_t cost = KERNEL_COST;
  for (size_t i = 0; i < kern->fns.n; i++) {
    const struct kern_fn *fn = kern->fns.at[i];
    if (!has || is_phase(kern, i) || !base_map_find(has, hash_of(fn), any, NULL)) cost += (int64_t)fn->insts.n;
  }
  return cost;
}

static bool add_functions(struct base_map *has, const struct kern *kern) {
  for (size_t i = 0; i < kern->fns.n; i++) {
    struct kern_fn *fn = kern->fns.at[i];
    if (is_phase(kern, i) || base_map_find(has, hash_of(fn), any, NULL)) continue;
    if (!base_map_add(has, hash_of(fn), fn)) return false;
  }
  return true;
}

struct unit {
  int64_t cost;
  struct base_map has;
};

static bool deal(struct unit *units, int n_units, size_t n, const struct item *items, const struct kern *const *kernels,
                 int *unit) {
  for (size_t i = 0; i < n; i++) {
    const struct kern *kern = kernels[items[i].kernel];
    int best = 0;
    int64_t least = INT64_MAX;
    for (int u = 0; u < n_units; u++) {
      int64_t cost = units[u].cost + cost_in(kern, &units[u].has);
      if (cost < least) {
        least = cost;
        best = u;
      }
    }
    units[best].cost = least;
    unit[items[i].kernel] = best;
    if (!add_functions(&units[best].has, kern)) return false;
  }
  return true;
}

quern_status rt_units_assign(struct base_heap *heap, size_t n, const struct kern *const *kernels, const bool *pick,
                             int most, int *unit, int *n_units) {
  size_t items_bytes, units_bytes, picked = 0;
  int64_t total = 0;
  *n_units = 0;
  QUERN_CHECK(base_size(n, sizeof(struct item), 0, &items_bytes), MEMORY, "no memory for %zu kernels", n);
  struct item *items = base_alloc(heap, items_bytes);
  if (!items) return QUERN_STATUS_MEMORY;
  for (size_t k = 0; k < n; k++) {
    if (!pick[k]) continue;
    items[picked] = (struct item){.kernel = k, .cost = cost_in(kernels[k], NULL)};
    total += items[picked++].cost;
  }
  int count = (int)BASE_MIN(total / LEAST_COST, (int64_t)BASE_MIN((size_t)most, picked));
  count = (int)BASE_MIN((int64_t)BASE_MAX(count, (total + MOST_COST - 1) / MOST_COST), (int64_t)picked);
  if (picked > 0) count = BASE_MAX(count, 1);
  units_bytes = (size_t)count * sizeof(struct unit);
  struct unit *units = base_alloc_zero(heap, units_bytes);
  bool dealt = units != NULL;
  if (dealt) {
    for (int u = 0; u < count; u++) base_map_init(&units[u].has, heap);
    qsort(items, picked, sizeof *items, by_cost);
    dealt = deal(units, count, picked, items, kernels, unit);
    for (int u = 0; u < count; u++) base_map_fini(&units[u].has);
  }
  base_free(heap, units, units_bytes);
  base_free(heap, items, items_bytes);
  if (dealt) *n_units = count;
  return dealt ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
}
