/* sched/reduce_acc.c -- accumulators of reductions: plain values, and pairs of value and index
** keeps: the order of kern.h; of equal elements ARGREDUCE takes the first, of NaN the first
** tests: tests/sched/test_reduce.c
*/
#include "sched/reduce.h"

/* The mask of lanes where x comes before `best`: it is larger (smaller), or the first NaN. */
static kern_id is_better(struct reduce *rd, const struct reduce_stage *stage, kern_id best, kern_id x) {
  struct kern_builder *b = &rd->b;
  bool max = stage->reduce == IR_REDUCE_MAX;
  kern_id better = kern_bin(b, KERN_LT, max ? best : x, max ? x : best);
  if (!base_dtype_is(stage->acc, BASE_FLOAT)) return better;
  kern_id nan = kern_un(b, KERN_NOT, kern_bin(b, KERN_EQ, x, x)), number = kern_bin(b, KERN_EQ, best, best);
  return kern_bin(b, KERN_OR, better, kern_bin(b, KERN_AND, nan, number));
}

/* The mask of lanes where both are the same, two NaNs too. */
static kern_id is_tie(struct reduce *rd, const struct reduce_stage *stage, kern_id x, kern_id y) {
  struct kern_builder *b = &rd->b;
  kern_id same = kern_bin(b, KERN_EQ, x, y);
  if (!base_dtype_is(stage->acc, BASE_FLOAT)) return same;
  kern_id number = kern_bin(b, KERN_EQ, x, x);
  number = kern_bin(b, KERN_OR, number, kern_bin(b, KERN_EQ, y, y));
  return kern_bin(b, KERN_OR, same, kern_un(b, KERN_NOT, number));
}

static struct reduce_value pick(struct reduce *rd, kern_id mask, struct reduce_value yes, struct reduce_value no) {
  kern_id value = kern_select(&rd->b, mask, yes.value, no.value);
  return (struct reduce_value){value, kern_select(&rd->b, mask, yes.index, no.index)};
}

struct reduce_value reduce_neutral(struct reduce *rd, const struct reduce_stage *stage, int lanes) {
  struct reduce_value neutral = {kern_neutral(&rd->b, stage->reduce, stage->acc, lanes), KERN_NONE};
  if (stage->arg) neutral.index = kern_const_i(&rd->b, QUERN_DTYPE_I32, lanes, 0);
  return neutral;
}

struct reduce_value reduce_join(struct reduce *rd, const struct reduce_stage *stage, struct reduce_value acc,
                                struct reduce_value x) {
  struct kern_builder *b = &rd->b;
  if (!stage->arg) return (struct reduce_value){kern_combine(b, stage->reduce, acc.value, x.value), KERN_NONE};
  kern_id earlier = kern_bin(b, KERN_LT, x.index, acc.index);
  earlier = kern_bin(b, KERN_AND, is_tie(rd, stage, acc.value, x.value), earlier);
  return pick(rd, kern_bin(b, KERN_OR, is_better(rd, stage, acc.value, x.value), earlier), x, acc);
}

/* acc + y z for x = y z, rounded once; KERN_NONE: it is another sum, or that of a CPU, whose order has no such thing. */
static kern_id add_product(struct reduce *rd, const struct reduce_stage *stage, kern_id acc, kern_id x) {
  struct kern_builder *b = &rd->b;
  bool floats = base_dtype_is(stage->acc, BASE_FLOAT);
  if (!rd->job->target->gpu || stage->reduce != IR_SUM || !floats || rd->job->kern->failed != QUERN_STATUS_OK)
    return KERN_NONE;
  struct kern_inst product = *kern_at_id(b, x);
  return product.op == KERN_MUL ? kern_fma(b, product.arg[0], product.arg[1], acc) : KERN_NONE;
}

struct reduce_value reduce_take(struct reduce *rd, const struct reduce_stage *stage, struct reduce_value acc,
                                struct reduce_value x) {
  kern_id sum = stage->arg ? KERN_NONE : add_product(rd, stage, acc.value, x.value);
  if (sum != KERN_NONE) return (struct reduce_value){sum, KERN_NONE};
  if (!stage->arg) return reduce_join(rd, stage, acc, x);
  return pick(rd, is_better(rd, stage, acc.value, x.value), x, acc);
}

struct reduce_value reduce_var(struct reduce *rd, const struct reduce_stage *stage, struct reduce_value init) {
  struct reduce_value var = {kern_var(&rd->b, init.value), KERN_NONE};
  if (stage->arg) var.index = kern_var(&rd->b, init.index);
  return var;
}

struct reduce_value reduce_get(struct reduce *rd, const struct reduce_stage *stage, struct reduce_value var) {
  struct reduce_value now = {kern_get(&rd->b, var.value), KERN_NONE};
  if (stage->arg) now.index = kern_get(&rd->b, var.index);
  return now;
}

void reduce_set(struct reduce *rd, const struct reduce_stage *stage, struct reduce_value var, struct reduce_value x) {
  kern_set(&rd->b, var.value, x.value);
  if (stage->arg) kern_set(&rd->b, var.index, x.index);
}

struct reduce_value reduce_tree(struct reduce *rd, const struct reduce_stage *stage, int n, struct reduce_value *x) {
  struct kern_builder *b = &rd->b;
  if (rd->job->kern->failed != QUERN_STATUS_OK) return x[0];
  if (!stage->arg) {
    kern_id values[KERN_MAX_LANES];
    for (int i = 0; i < n; i++) values[i] = x[i].value;
    return (struct reduce_value){kern_tree(b, stage->reduce, n, values), KERN_NONE};
  }
  for (int h = n / 2; h >= 1; h /= 2)
    for (int i = 0; i < h; i++) x[i] = reduce_join(rd, stage, x[i], x[i + h]);
  struct reduce_value y = x[0];
  for (int lanes = kern_at_id(b, y.value)->lanes; lanes > 1 && rd->job->kern->failed == QUERN_STATUS_OK; lanes /= 2) {
    struct reduce_value low = {.value = kern_low(b, y.value)}, high = {.value = kern_high(b, y.value)};
    low.index = kern_low(b, y.index);
    high.index = kern_high(b, y.index);
    y = reduce_join(rd, stage, low, high);
  }
  return y;
}

struct reduce_value reduce_hreduce(struct reduce *rd, const struct reduce_stage *stage, struct reduce_value x) {
  static const enum kern_op ops[IR_REDUCE_COUNT] = {
      [IR_SUM] = KERN_ADD, [IR_PROD] = KERN_MUL, [IR_REDUCE_MAX] = KERN_MAX, [IR_REDUCE_MIN] = KERN_MIN};
  struct kern_builder *b = &rd->b;
  if (rd->job->kern->failed != QUERN_STATUS_OK) return x;
  int lanes = kern_at_id(b, x.value)->lanes;
  struct reduce_value all = {kern_hreduce(b, ops[stage->reduce], x.value), KERN_NONE};
  if (!stage->arg) return all;
  kern_id best = is_tie(rd, stage, x.value, kern_splat(b, all.value, lanes));
  kern_id index = kern_select(b, best, x.index, kern_const_i(b, QUERN_DTYPE_I32, lanes, INT32_MAX));
  all.index = kern_hreduce(b, KERN_MIN, index);
  return all;
}

/* Of no elements the least and the greatest are the format's own, which may have no infinity. */
static kern_id of_nothing(struct reduce *rd, const struct reduce_stage *stage, int lanes) {
  const struct base_dtype_info *info = &base_dtypes[stage->result->dtype];
  bool extreme = stage->reduce == IR_REDUCE_MAX || stage->reduce == IR_REDUCE_MIN;
  if (stage->arg) return kern_const_i(&rd->b, QUERN_DTYPE_I64, lanes, 0);
  if (stage->reduce == IR_SUM) return kern_const_bits(&rd->b, stage->result->dtype, lanes, 0);
  if (info->class != BASE_FLOAT || info->inf || !extreme)
    return kern_cast(&rd->b, kern_neutral(&rd->b, stage->reduce, stage->acc, lanes), stage->result->dtype);
  return kern_const_f(&rd->b, stage->result->dtype, lanes, stage->reduce == IR_REDUCE_MIN ? 448 : -448);
}

kern_id reduce_result(struct reduce *rd, const struct reduce_stage *stage, struct reduce_value total) {
  if (rd->job->kern->failed != QUERN_STATUS_OK) return 0;
  if (rd->count == 0) return of_nothing(rd, stage, kern_at_id(&rd->b, total.value)->lanes);
  if (stage->bits) total.value = kern_bitcast(&rd->b, total.value, QUERN_DTYPE_F32);
  return kern_cast(&rd->b, stage->arg ? total.index : total.value, stage->result->dtype);
}

kern_id reduce_source(struct reduce *rd, const struct reduce_stage *stage, int lanes) {
  kern_id x = kern_values_get(rd->values, stage->source, stage->source->rank, stage->source_at);
  x = stage->bits ? kern_bitcast(&rd->b, kern_cast(&rd->b, x, QUERN_DTYPE_F32), stage->acc)
                  : kern_cast(&rd->b, x, stage->acc);
  return kern_splat(&rd->b, x, lanes);
}
