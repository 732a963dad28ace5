/* sched/sort_merge.c -- merges sorted runs, so that many tasks share the work
** The first d items of two merged runs are some of the first run's and the rest of the second's; how many of each is
** found by bisection, so each task begins in the middle. (Odeh, Green, Mwassi, Shmueli, Birk: "Merge path", 2012.)
** keeps: of equal items those of the first run come first
** tests: tests/sched/test_sort.c
*/
#include "sched/sort.h"

struct runs {
  kern_id first, n_first, second, n_second; /* where they begin in the line, and how many items they have */
};

static kern_id less(struct kern_builder *b, kern_id x, kern_id y) { return kern_bin(b, KERN_LT, x, y); }
static kern_id both(struct kern_builder *b, kern_id x, kern_id y) { return kern_bin(b, KERN_AND, x, y); }
static kern_id not(struct kern_builder * b, kern_id x) { return kern_un(b, KERN_NOT, x); }

static struct sort_item item_at(const struct sort *s, struct kern_builder *b, struct sort_items from, kern_id start,
                                kern_id i) {
  return sort_load(s, b, from, sort_clamp(b, kern_add(b, start, i), s->n));
}

/* How many of the first d items are of the first run. */
static kern_id split(const struct sort *s, struct kern_builder *b, struct sort_items from, const struct runs *r,
                     kern_id d, int64_t run) {
  kern_id lo = kern_var(b, kern_max_i(b, kern_sub(b, d, r->n_second), 0));
  kern_id hi = kern_var(b, kern_min(b, d, r->n_first));
  int64_t steps = 1;
  while (run >> steps != 0) steps++;
  (void)kern_range(b, 0, steps, 1);
  kern_id low = kern_get(b, lo), high = kern_get(b, hi), open = less(b, low, high);
  kern_id middle = kern_idiv(b, kern_add(b, low, high), 2), other = kern_sub(b, d, middle);
  other = kern_sub(b, other, kern_index(b, 1));
  kern_id x = item_at(s, b, from, r->first, middle).key, y = item_at(s, b, from, r->second, other).key;
  kern_id before = less(b, y, x);
  kern_set(b, hi, kern_select(b, both(b, open, before), middle, high));
  kern_id next = kern_add_i(b, middle, 1);
  kern_set(b, lo, kern_select(b, both(b, open, not(b, before)), next, low));
  kern_end(b);
  return kern_get(b, lo);
}

/* The smaller of what is left of the line from `start` on, and a whole run. */
static kern_id run_length(const struct sort *s, struct kern_builder *b, kern_id start, int64_t run) {
  kern_id left = kern_max_i(b, kern_sub(b, kern_index(b, s->n), start), 0);
  return kern_min_i(b, left, run);
}

void sort_merge(const struct sort *s, struct kern_builder *b, kern_id base, kern_id part, int64_t block, int64_t run,
                struct sort_items from, const struct sort_items *to) {
  int64_t shared = 2 * run / block; /* tasks of a pair of runs */
  struct runs r = {.first = kern_mul_i(b, kern_idiv(b, part, shared), 2 * run)};
  r.second = kern_add_i(b, r.first, run);
  r.n_first = run_length(s, b, r.first, run);
  r.n_second = run_length(s, b, r.second, run);
  kern_id total = kern_add(b, r.n_first, r.n_second), one = kern_index(b, 1);
  kern_id begin = kern_min(b, kern_mul_i(b, kern_imod(b, part, shared), block), total);
  kern_id end = kern_min(b, kern_add_i(b, begin, block), total);
  kern_id taken = split(s, b, from, &r, begin, run);
  kern_id i = kern_var(b, taken), j = kern_var(b, kern_sub(b, begin, taken));
  kern_id k = kern_for(b, begin, end, 1), x_at = kern_get(b, i), y_at = kern_get(b, j);
  struct sort_item x = item_at(s, b, from, r.first, x_at), y = item_at(s, b, from, r.second, y_at);
  kern_id x_ended = kern_bin(b, KERN_LE, r.n_first, x_at), y_left = less(b, y_at, r.n_second);
  kern_id take_y = both(b, y_left, kern_bin(b, KERN_OR, x_ended, less(b, y.key, x.key)));
  struct sort_item item = {kern_select(b, take_y, y.key, x.key), KERN_NONE};
  if (!s->packed) item.number = kern_select(b, take_y, y.number, x.number);
  kern_id place = sort_clamp(b, kern_add(b, r.first, k), s->n);
  if (to == NULL)
    sort_write(s, b, base, place, item);
  else
    sort_store(s, b, *to, place, item);
  kern_set(b, i, kern_select(b, take_y, x_at, kern_add(b, x_at, one)));
  kern_set(b, j, kern_select(b, take_y, kern_add(b, y_at, one), y_at));
  kern_end(b);
}
