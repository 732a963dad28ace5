/* sched/reduce_pack.c -- REDUCE groups whose rows lie in pieces: the innermost reduced variable has lanes
** A sum over the first and the last axis, say, has rows that are no single run of memory, and the places of a piece's
** elements among the row's need not fit vectors of accumulators. So a block of a row is first put together in scratch,
** piece by piece, and then taken from there as reduce_row.c does.
** keeps: the order of kern.h                     tests: tests/sched/test_reduce.c
*/
#include "sched/reduce.h"

enum { BLOCK = 2048 }; /* elements that are put together at a time: a multiple of all numbers of accumulators */

/* One vector of a piece: elements c and on of the innermost loop, of which `active` count, are elements `place` and on
** of the block. */
static void emit_vector(struct reduce *rd, int q, kern_id c, kern_id active, kern_id place) {
  kern_values_enter(rd->values);
  kern_values_set(rd->values, rd->nest.loops[rd->nest.n_loops - 1].var, c, rd->lanes, active);
  for (size_t i = 0; i < rd->n_keeps; i++)
    if (rd->keeps[i].made < q) reduce_keep_bind(rd, &rd->keeps[i], KERN_NONE, rd->lanes, active);
  for (size_t i = 0; i < rd->n_stages; i++) {
    const struct reduce_stage *stage = &rd->stages[i];
    if (stage->pass == q) kern_store_n(&rd->b, stage->local, place, reduce_source(rd, stage, rd->lanes), active);
  }
  reduce_store(rd, q, active);
  kern_values_leave(rd->values);
}

/* Elements from .. from + n - 1 of the row, piece by piece. */
static void emit_pieces(struct reduce *rd, int q, kern_id from, int64_t n) {
  struct kern_builder *b = &rd->b;
  int last = rd->nest.n_loops - 1;
  int64_t length = rd->nest.loops[last].extent;
  kern_id end = kern_add(b, from, kern_index(b, n)), lanes = kern_index(b, rd->lanes);
  kern_id last_piece = kern_idiv(b, kern_sub(b, end, kern_index(b, 1)), length);
  kern_id piece = kern_idiv(b, from, length);
  piece = kern_for(b, piece, kern_add_i(b, last_piece, 1), 1);
  kern_values_enter(rd->values);
  sched_nest_set(&rd->nest, b, rd->values, rd->nest.n_outer, last, -1, piece);
  kern_id start = kern_mul(b, piece, kern_index(b, length));
  kern_id lo = kern_max_i(b, kern_sub(b, from, start), 0);
  kern_id hi = kern_min_i(b, kern_sub(b, end, start), length);
  kern_id shift = kern_sub(b, start, from);
  kern_id many = kern_max_i(b, kern_sub(b, hi, lo), 0);
  kern_id whole = kern_mul(b, kern_idiv(b, many, rd->lanes), lanes);
  for (int rest = 0; rest < 2; rest++) {
    kern_id begin = rest == 0 ? lo : kern_add(b, lo, whole);
    kern_id c = kern_for(b, begin, rest == 0 ? kern_sub(b, hi, kern_index(b, rd->lanes - 1)) : hi, rd->lanes);
    kern_id place = kern_min_i(b, kern_max_i(b, kern_add(b, c, shift), 0), BLOCK);
    emit_vector(rd, q, c, rest == 0 ? KERN_NONE : kern_min(b, kern_sub(b, hi, c), lanes), place);
    kern_values_set(rd->values, rd->nest.loops[last].var, kern_index(b, 0), 1, KERN_NONE);
    kern_end(b);
  }
  kern_values_leave(rd->values);
  kern_end(b);
}

/* Takes a block of n elements from scratch. */
static void take_block(struct reduce *rd, int q, kern_id from, int64_t n) {
  struct kern_builder *b = &rd->b;
  for (size_t i = 0; i < rd->n_stages; i++) {
    const struct reduce_stage *stage = &rd->stages[i];
    if (stage->pass != q) continue;
    int64_t step = stage->n_acc, whole = n / step;
    kern_id block = whole > 0 ? kern_range(b, 0, whole, 1) : KERN_NONE;
    for (int v = 0; whole > 0 && v < stage->n_acc / rd->lanes; v++) {
      kern_id at = kern_add_i(b, kern_mul(b, block, kern_index(b, step)), (int64_t)v * rd->lanes);
      kern_id x = kern_load(b, stage->local, at, rd->lanes);
      reduce_row_take(rd, i, x, kern_add(b, from, at), 0, v);
    }
    if (whole > 0) kern_end(b);
    for (int64_t at = whole * step; at < n; at += rd->lanes) {
      kern_id place = kern_index(b, at);
      int rest = n - at < rd->lanes ? (int)(n - at) : 0;
      kern_id x = kern_load_n(b, stage->local, place, rd->lanes, rest > 0 ? kern_index(b, rest) : KERN_NONE);
      reduce_row_take(rd, i, x, kern_add(b, from, place), rest, (int)((at - whole * step) / rd->lanes));
    }
  }
}

void reduce_range_packed(struct reduce *rd, int q, kern_id base, int64_t n, struct reduce_value *part) {
  struct kern_builder *b = &rd->b;
  bool any = reduce_row_begin(rd, q);
  int64_t whole = any ? n / BLOCK : 0, rest = n - whole * BLOCK;
  if (whole > 0) {
    kern_id block = kern_range(b, 0, whole, 1);
    kern_id from = kern_add(b, base, kern_mul(b, block, kern_index(b, BLOCK)));
    kern_values_enter(rd->values);
    emit_pieces(rd, q, from, BLOCK);
    take_block(rd, q, from, BLOCK);
    kern_values_leave(rd->values);
    kern_end(b);
  }
  if (rest > 0) {
    kern_id from = kern_add(b, base, kern_index(b, whole * BLOCK));
    emit_pieces(rd, q, from, rest);
    take_block(rd, q, from, rest);
  }
  reduce_row_end(rd, q, part);
}

void reduce_pack_locals(struct reduce *rd) {
  for (size_t i = 0; i < rd->n_stages; i++)
    rd->stages[i].local = kern_local(&rd->b, rd->stages[i].acc, BLOCK + rd->lanes);
}
