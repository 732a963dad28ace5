/* tensor/einsum_order.c -- in which order to contract many operands two by two
** in:    sets of labels and their sizes     out: pairs with few multiply-adds
** keeps: the same input gives the same order; of equal costs the first found wins
** see:   the best order by dynamic programming over subsets is exact; Pfeifer et al., "Faster identification
**        of optimal contraction sequences for tensor networks", 2014
** tests: tests/tensor/test_einsum_order.c
*/
#include "tensor/einsum.h"

#include <math.h>

/* The number of index combinations of a set: as many multiply-adds a pair with these labels takes. */
static double volume(uint64_t set, const int64_t *size) {
  double product = 1;
  for (int k = 0; k < EINSUM_MAX_LABELS; k++) {
    if (set >> k & 1) product *= (double)size[k];
  }
  return product;
}

/* ---- the best order, over all subsets of operands ------------------------------------------------------ */

struct subsets {
  uint64_t set[1 << EINSUM_EXACT];  /* labels that the product of a subset has */
  double cost[1 << EINSUM_EXACT];   /* of its best order */
  unsigned part[1 << EINSUM_EXACT]; /* one side of its last pair */
};

/* Writes the pairs that make a subset; the number of its product. As deep as there are operands. */
static int write_pairs(const struct subsets *s, unsigned subset, int n, struct einsum_pair *pairs, int *n_pairs) {
  if ((subset & (subset - 1)) == 0) {
    int i = 0;
    while (subset >> i != 1) i++;
    return i;
  }
  int a = write_pairs(s, s->part[subset], n, pairs, n_pairs);
  int b = write_pairs(s, subset & ~s->part[subset], n, pairs, n_pairs);
  pairs[*n_pairs] = (struct einsum_pair){a, b};
  return n + (*n_pairs)++;
}

static void order_exactly(int n, const uint64_t *sets, uint64_t out, const int64_t *size, struct einsum_pair *pairs) {
  struct subsets s;
  unsigned all = (1u << n) - 1;
  for (unsigned subset = 1; subset <= all; subset++) {
    uint64_t inside = 0, needed = out;
    for (int i = 0; i < n; i++) {
      if (subset >> i & 1) {
        inside |= sets[i];
      } else {
        needed |= sets[i];
      }
    }
    bool single = (subset & (subset - 1)) == 0;
    s.set[subset] = single ? inside : inside & needed;
    s.cost[subset] = single ? 0 : (double)INFINITY;
    unsigned lowest = subset & (~subset + 1);
    for (unsigned part = (subset - 1) & subset; part != 0; part = (part - 1) & subset) {
      unsigned rest = subset & ~part;
      if ((part & lowest) == 0) continue;
      double cost = s.cost[part] + s.cost[rest] + volume(s.set[part] | s.set[rest], size);
      if (cost < s.cost[subset]) s.cost[subset] = cost, s.part[subset] = part;
    }
  }
  int n_pairs = 0;
  (void)write_pairs(&s, all, n, pairs, &n_pairs);
}

/* ---- many operands: the cheapest pair at hand, again and again ----------------------------------------- */

static void order_greedily(int n, const uint64_t *sets, uint64_t out, const int64_t *size, struct einsum_pair *pairs) {
  int window[EINSUM_WINDOW], live = 0, next = 0;
  uint64_t held[EINSUM_WINDOW];
  for (int done = 0; done < n - 1; done++) {
    while (live < EINSUM_WINDOW && next < n) held[live] = sets[next], window[live++] = next++;
    uint64_t later = out;
    for (int i = next; i < n; i++) later |= sets[i];
    int best_a = 0, best_b = 1;
    double best_cost = (double)INFINITY, best_size = (double)INFINITY;
    uint64_t best_set = 0;
    for (int a = 0; a < live; a++) {
      for (int b = a + 1; b < live; b++) {
        uint64_t needed = later;
        for (int i = 0; i < live; i++) needed |= i == a || i == b ? 0 : held[i];
        uint64_t joined = held[a] | held[b], set = joined & needed;
        double cost = volume(joined, size), left = volume(set, size);
        if (cost > best_cost || (cost == best_cost && left >= best_size)) continue;
        best_a = a, best_b = b, best_cost = cost, best_size = left, best_set = set;
      }
    }
    pairs[done] = (struct einsum_pair){window[best_a], window[best_b]};
    window[best_a] = n + done, held[best_a] = best_set;
    live--;
    for (int i = best_b; i < live; i++) window[i] = window[i + 1], held[i] = held[i + 1];
  }
}

void tensor_einsum_order(int n, const uint64_t *sets, uint64_t out, const int64_t *size, struct einsum_pair *pairs) {
  if (n <= EINSUM_EXACT) {
    order_exactly(n, sets, out, size, pairs);
  } else {
    order_greedily(n, sets, out, size, pairs);
  }
}
