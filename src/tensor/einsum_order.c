/* tensor/einsum_order.c -- in which order to contract many operands two by two
** in:    the labels of operands and their sizes     out: pairs with few multiply-adds
** keeps: the same input gives the same order; of equal costs the first found wins; a product of more axes than a tensor
**        can have is chosen only when there is no other
** see:   the best order by dynamic programming over subsets is exact; Pfeifer et al., "Faster identification
**        of optimal contraction sequences for tensor networks", 2014
** tests: tests/tensor/test_einsum_order.c
*/
#include "tensor/einsum.h"

#include <math.h>

bool tensor_einsum_has(const struct einsum_term *term, int label) {
  for (int k = 0; k < term->n; k++) {
    if (term->labels[k] == label) return true;
  }
  return false;
}

/* ---- the best order, over all subsets of operands ------------------------------------------------------ */

/* Labels are numbered anew, so that a set of them is a few words. */
enum { LABELS = EINSUM_EXACT * QUERN_MAX_RANK, WORDS = LABELS / 64 };

struct set {
  uint64_t word[WORDS];
};

static struct set join(struct set a, struct set b) {
  for (int i = 0; i < WORDS; i++) a.word[i] |= b.word[i];
  return a;
}

static struct set common(struct set a, struct set b) {
  for (int i = 0; i < WORDS; i++) a.word[i] &= b.word[i];
  return a;
}

static void put(struct set *set, int k) { set->word[k / 64] |= UINT64_C(1) << k % 64; }
static bool has(const struct set *set, int k) { return set->word[k / 64] >> k % 64 & 1; }

/* The number of index combinations of a set: as many multiply-adds a pair with these labels takes. */
static double volume(const struct set *set, int n_labels, const int64_t *size) {
  double product = 1;
  for (int k = 0; k < n_labels; k++) product *= has(set, k) ? (double)size[k] : 1;
  return product;
}

static int members(const struct set *set, int n_labels) {
  int n = 0;
  for (int k = 0; k < n_labels; k++) n += has(set, k);
  return n;
}

struct subsets {
  int n_labels;
  int64_t size[LABELS];
  struct set set[1 << EINSUM_EXACT]; /* labels that the product of a subset has */
  double cost[1 << EINSUM_EXACT];    /* of its best order */
  unsigned part[1 << EINSUM_EXACT];  /* one side of its last pair; 0 before one is found */
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

/* Numbers the labels of the operands: sets[i] are those of operand i, *out those that the result has. */
static void number_labels(struct subsets *s, int n, const struct einsum_term *terms, const int64_t *size,
                          const int *uses, struct set *sets, struct set *out) {
  int known[LABELS], left[LABELS]; /* left: uses but by operands */
  s->n_labels = 0;
  for (int i = 0; i < n; i++) {
    sets[i] = (struct set){{0}};
    for (int k = 0; k < terms[i].n; k++) {
      int label = terms[i].labels[k], at = 0;
      while (at < s->n_labels && known[at] != label) at++;
      if (at == s->n_labels) {
        known[at] = label, left[at] = uses[label], s->size[at] = size[label];
        s->n_labels++;
      }
      left[at]--;
      put(&sets[i], at);
    }
  }
  *out = (struct set){{0}};
  for (int k = 0; k < s->n_labels; k++) {
    if (left[k] > 0) put(out, k);
  }
}

static void order_exactly(int n, const struct einsum_term *terms, const int64_t *size, const int *uses,
                          struct einsum_pair *pairs) {
  struct subsets s;
  struct set sets[EINSUM_EXACT], out;
  number_labels(&s, n, terms, size, uses, sets, &out);
  unsigned all = (1u << n) - 1;
  for (unsigned subset = 1; subset <= all; subset++) {
    struct set inside = {{0}}, needed = out;
    for (int i = 0; i < n; i++) {
      struct set *into = subset >> i & 1 ? &inside : &needed;
      *into = join(*into, sets[i]);
    }
    bool single = (subset & (subset - 1)) == 0;
    s.set[subset] = single ? inside : common(inside, needed);
    bool fits = members(&s.set[subset], s.n_labels) <= QUERN_MAX_RANK;
    s.cost[subset] = single ? 0 : (double)INFINITY;
    s.part[subset] = 0;
    unsigned lowest = subset & (~subset + 1);
    for (unsigned part = (subset - 1) & subset; part != 0; part = (part - 1) & subset) {
      unsigned rest = subset & ~part;
      if ((part & lowest) == 0) continue;
      struct set both = join(s.set[part], s.set[rest]);
      double cost = s.cost[part] + s.cost[rest] + (fits ? volume(&both, s.n_labels, s.size) : (double)INFINITY);
      if (cost < s.cost[subset] || s.part[subset] == 0) s.cost[subset] = cost, s.part[subset] = part;
    }
  }
  int n_pairs = 0;
  (void)write_pairs(&s, all, n, pairs, &n_pairs);
}

/* ---- many operands: the cheapest pair at hand, again and again ----------------------------------------- */

/* The labels of a product that are used beyond its operands; of too many the first ones. *fits: there are not. */
static struct einsum_term product_of(const struct einsum_term *a, const struct einsum_term *b, const int *uses,
                                     bool *fits) {
  struct einsum_term y = {.n = 0};
  *fits = true;
  for (int k = 0; k < a->n + b->n; k++) {
    int label = k < a->n ? a->labels[k] : b->labels[k - a->n];
    bool in_a = tensor_einsum_has(a, label), in_b = tensor_einsum_has(b, label);
    if ((k >= a->n && in_a) || uses[label] - in_a - in_b <= 0) continue;
    *fits = *fits && y.n < QUERN_MAX_RANK;
    if (y.n < QUERN_MAX_RANK) y.labels[y.n++] = label;
  }
  return y;
}

static double size_of(const struct einsum_term *term, const struct einsum_term *but, const int64_t *size) {
  double product = 1;
  for (int k = 0; k < term->n; k++) {
    if (but == NULL || !tensor_einsum_has(but, term->labels[k])) product *= (double)size[term->labels[k]];
  }
  return product;
}

void tensor_einsum_join(const struct einsum_term *a, const struct einsum_term *b, const struct einsum_term *y,
                        int *uses) {
  for (int k = 0; k < a->n; k++) uses[a->labels[k]]--;
  for (int k = 0; k < b->n; k++) uses[b->labels[k]]--;
  for (int k = 0; k < y->n; k++) uses[y->labels[k]]++;
}

static void order_greedily(int n, const struct einsum_term *terms, const int64_t *size, int *uses,
                           struct einsum_pair *pairs) {
  int window[EINSUM_WINDOW], live = 0, next = 0;
  struct einsum_term held[EINSUM_WINDOW];
  for (int done = 0; done < n - 1; done++) {
    while (live < EINSUM_WINDOW && next < n) held[live] = terms[next], window[live++] = next++;
    int best_a = 0, best_b = 1;
    bool found = false;
    double best_cost = 0, best_size = 0;
    struct einsum_term best = {.n = 0};
    for (int a = 0; a < live; a++) {
      for (int b = a + 1; b < live; b++) {
        bool fits;
        struct einsum_term y = product_of(&held[a], &held[b], uses, &fits);
        double cost = fits ? size_of(&held[a], NULL, size) * size_of(&held[b], &held[a], size) : (double)INFINITY;
        double left = size_of(&y, NULL, size);
        if (found && (cost > best_cost || (cost == best_cost && left >= best_size))) continue;
        found = true;
        best_a = a, best_b = b, best_cost = cost, best_size = left, best = y;
      }
    }
    pairs[done] = (struct einsum_pair){window[best_a], window[best_b]};
    tensor_einsum_join(&held[best_a], &held[best_b], &best, uses);
    window[best_a] = n + done, held[best_a] = best;
    live--;
    for (int i = best_b; i < live; i++) window[i] = window[i + 1], held[i] = held[i + 1];
  }
}

void tensor_einsum_order(int n, const struct einsum_term *terms, const int64_t *size, int *uses,
                         struct einsum_pair *pairs) {
  if (n <= EINSUM_EXACT) {
    order_exactly(n, terms, size, uses, pairs);
  } else {
    order_greedily(n, terms, size, uses, pairs);
  }
}
