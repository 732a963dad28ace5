/* kern/reduction_order.c -- the order of float reductions: accumulators, their neutral elements and their tree
** tests: tests/kern/test_reduction_order.c
*/
#include <math.h>

#include "kern/kern.h"

quern_dtype kern_acc_dtype(quern_dtype dtype) {
  return base_dtype_is(dtype, BASE_FLOAT) && dtype != QUERN_DTYPE_F64 ? QUERN_DTYPE_F32 : dtype;
}

int kern_accumulators(quern_dtype acc) { return base_dtypes[acc].size == 8 ? 32 : 64; }

/* The least or the greatest element of a dtype, as bits. */
static uint64_t extreme(quern_dtype dtype, bool greatest) {
  const struct base_dtype_info *info = &base_dtypes[dtype];
  uint64_t bits = 0;
  if (info->class == BASE_FLOAT) {
    base_store_float(dtype, &bits, 0, greatest ? (double)INFINITY : (double)-INFINITY);
  } else if (info->class == BASE_SIGNED) {
    uint64_t top = UINT64_C(1) << (info->bits - 1);
    base_store_int(dtype, &bits, 0, greatest ? top - 1 : ~(top - 1));
  } else {
    base_store_int(dtype, &bits, 0, greatest ? UINT64_MAX : 0);
  }
  return bits;
}

kern_id kern_neutral(struct kern_builder *b, enum ir_reduce reduce, quern_dtype acc, int lanes) {
  if (reduce == IR_REDUCE_MAX || reduce == IR_REDUCE_MIN)
    return kern_const_bits(b, acc, lanes, extreme(acc, reduce == IR_REDUCE_MIN));
  int64_t one = reduce == IR_PROD;
  if (!base_dtype_is(acc, BASE_FLOAT)) return kern_const_i(b, acc, lanes, one);
  return kern_const_f(b, acc, lanes, reduce == IR_PROD ? 1 : -0.0); /* -0 + x is x; 0 + x is not, for x = -0 */
}

kern_id kern_combine(struct kern_builder *b, enum ir_reduce reduce, kern_id x, kern_id y) {
  static const enum kern_op ops[IR_REDUCE_COUNT] = {
      [IR_SUM] = KERN_ADD, [IR_PROD] = KERN_MUL, [IR_REDUCE_MAX] = KERN_MAX, [IR_REDUCE_MIN] = KERN_MIN};
  return kern_bin(b, ops[reduce], x, y);
}

kern_id kern_tree(struct kern_builder *b, enum ir_reduce reduce, int n_values, const kern_id *values) {
  kern_id v[KERN_MAX_LANES];
  QUERN_ASSERT(n_values >= 1 && n_values <= KERN_MAX_LANES && (n_values & (n_values - 1)) == 0);
  for (int i = 0; i < n_values; i++) v[i] = values[i];
  for (int h = n_values / 2; h >= 1; h /= 2)
    for (int i = 0; i < h; i++) v[i] = kern_combine(b, reduce, v[i], v[i + h]);
  if (b->kern->failed != QUERN_STATUS_OK) return 0;
  kern_id x = v[0];
  for (int lanes = kern_at_id(b, x)->lanes; lanes > 1; lanes /= 2) {
    kern_id low = kern_low(b, x);
    x = kern_combine(b, reduce, low, kern_high(b, x));
  }
  return x;
}
