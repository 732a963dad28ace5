/* sched/sort_line.c -- sorts one line, or a part of it, in one task
** tests: tests/sched/test_sort.c
*/
#include "sched/sort.h"

static const quern_dtype u64 = QUERN_DTYPE_U64, i64 = QUERN_DTYPE_I64;

enum { DIGITS = 256 };

static kern_id element(const struct sort *s, struct kern_builder *b, kern_id base, kern_id number) {
  kern_id at = kern_add(b, base, kern_mul_i(b, number, s->stride));
  return kern_load(b, kern_mem(b, 0), at, 1);
}

/* ---- by counting ------------------------------------------------------------------------------------------- */

/* The place of an element is how many come before it: those with smaller keys, and with equal ones of smaller
** numbers. Behind the line the keys are the largest there are. */
void sort_by_count(const struct sort *s, struct kern_builder *b, kern_id base) {
  int lanes = s->lanes;
  while (lanes / 2 >= s->n) lanes /= 2;
  int64_t vectors = (s->n + lanes - 1) / lanes;
  kern_id keys = kern_local(b, u64, vectors * lanes), largest = kern_const_bits(b, u64, lanes, UINT64_MAX);
  kern_store(b, keys, kern_index(b, (vectors - 1) * lanes), largest);
  kern_id i = kern_range(b, 0, s->n, 1);
  kern_store(b, keys, i, sort_make_item(s, b, element(s, b, base, i), i).key);
  kern_end(b);
  i = kern_range(b, 0, s->n, 1);
  kern_id key = kern_splat(b, kern_load(b, keys, i, 1), lanes), number = kern_splat(b, i, lanes);
  kern_id zero = kern_const_i(b, i64, lanes, 0), one = kern_const_i(b, i64, lanes, 1), count = zero;
  for (int64_t v = 0; v < vectors; v++) {
    kern_id others = kern_load(b, keys, kern_index(b, v * lanes), lanes), before = kern_bin(b, KERN_LT, others, key);
    if (!s->packed) {
      kern_id theirs = kern_const_i(b, i64, lanes, v * lanes);
      theirs = kern_add(b, theirs, kern_lane(b, i64, lanes));
      kern_id equal = kern_bin(b, KERN_EQ, others, key), earlier = kern_bin(b, KERN_LT, theirs, number);
      before = kern_bin(b, KERN_OR, before, kern_bin(b, KERN_AND, equal, earlier));
    }
    count = kern_add(b, count, kern_select(b, before, one, zero));
  }
  kern_id place = sort_clamp(b, kern_tree(b, IR_SUM, 1, &count), s->n), stride = kern_index(b, s->stride);
  kern_id to = kern_add(b, base, kern_mul(b, place, stride)), x = element(s, b, base, i);
  kern_store(b, kern_mem(b, 1), to, x);
  kern_store(b, kern_mem(b, 2), to, i);
  kern_end(b);
}

/* ---- by digits --------------------------------------------------------------------------------------------- */

/* Byte number `digit` of an item's key. */
static kern_id digit_of(const struct sort *s, struct kern_builder *b, struct sort_item item, int digit) {
  kern_id shift = kern_const_i(b, u64, 1, 8 * digit + (s->packed ? 32 : 0));
  kern_id bits = kern_bitcast(b, kern_bin(b, KERN_SHR, item.key, shift), i64);
  return kern_bin(b, KERN_AND, bits, kern_const_i(b, i64, 1, DIGITS - 1));
}

/* One pass: items lo .. hi - 1 in the order of one digit, equal ones as they were. */
static void pass_of_digit(const struct sort *s, struct kern_builder *b, kern_id base, kern_id lo, kern_id hi,
                          kern_id counts, int digit, struct sort_items from, const struct sort_items *to) {
  kern_id zero = kern_index(b, 0), one = kern_index(b, 1), all = kern_index(b, DIGITS);
  kern_id c = kern_for(b, zero, all, s->lanes);
  kern_store(b, counts, c, kern_const_i(b, i64, s->lanes, 0));
  kern_end(b);

  kern_id i = kern_for(b, lo, hi, 1), d = digit_of(s, b, sort_load(s, b, from, i), digit);
  kern_store(b, counts, d, kern_add(b, kern_load(b, counts, d, 1), one));
  kern_end(b);

  kern_id sum = kern_var(b, lo);
  c = kern_for(b, zero, all, 1);
  kern_id n = kern_load(b, counts, c, 1), place = kern_get(b, sum);
  kern_store(b, counts, c, place);
  kern_set(b, sum, kern_add(b, place, n));
  kern_end(b);

  i = kern_for(b, lo, hi, 1);
  struct sort_item item = sort_load(s, b, from, i);
  d = digit_of(s, b, item, digit);
  place = kern_load(b, counts, d, 1);
  kern_store(b, counts, d, kern_add(b, place, one));
  place = sort_clamp(b, place, s->n);
  if (to == NULL)
    sort_write(s, b, base, place, item);
  else
    sort_store(s, b, *to, place, item);
  kern_end(b);
}

void sort_by_digits(const struct sort *s, struct kern_builder *b, kern_id base, kern_id lo, kern_id hi,
                    const struct sort_items room[2], bool write) {
  int digits = (int)base_dtypes[s->x->dtype].size;
  kern_id counts = kern_local(b, i64, DIGITS), i = kern_for(b, lo, hi, 1);
  sort_store(s, b, room[0], i, sort_make_item(s, b, element(s, b, base, i), i));
  kern_end(b);
  for (int d = 0; d < digits; d++) {
    bool to_results = d == digits - 1 && write;
    pass_of_digit(s, b, base, lo, hi, counts, d, room[d % 2], to_results ? NULL : &room[1 - d % 2]);
  }
}
