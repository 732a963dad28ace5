/* driver/builders_ir.c -- primitives made directly, with attributes that public functions do not reach, and
** splits
*/
#include "driver/builders.h"

static struct ir_ints list(struct args *a, const char *key) {
  const struct ints *ints = args_ints(a, key);
  return (struct ir_ints){ints->n, ints->at};
}
#define IR_LIST(key) list(a, #key)
#define REDUCE_BY ((enum ir_reduce)WORD(reduce, "sum", "prod", "max", "min", "set"))
#define ATTRS(...) (&(struct ir_attrs){__VA_ARGS__})

int build_split(struct args *a) {
  const struct ints *sizes = args_ints(a, "sizes");
  return quern_split(X(0), AXIS(0), sizes->n, sizes->at, a->y) == QUERN_STATUS_OK ? sizes->n : 0;
}

int build_slice_at(struct args *a) { return ONE(quern_slice_at(X(0), a->n - 1, a->x + 1, ITEMS(sizes))); }

int build_update_at(struct args *a) { return ONE(quern_update_at(X(0), X(1), a->n - 2, a->x + 2)); }

int build_random(struct args *a) {
  return ONE(IR_MAKE(a->ctx, IR_RANDOM, ATTRS(.shape = IR_LIST(shape), .stream = INT(stream, 1)), X(0), X(1)));
}

int build_col2im(struct args *a) {
  return ONE(IR_MAKE(
      a->ctx, IR_COL2IM,
      ATTRS(.shape = IR_LIST(shape), .axes = IR_LIST(axes), .step = IR_LIST(step), .dilate = IR_LIST(dilate)), X(0)));
}

int build_pad_mid(struct args *a) {
  return ONE(IR_MAKE(a->ctx, IR_PAD, ATTRS(.lo = IR_LIST(lo), .hi = IR_LIST(hi), .mid = IR_LIST(mid)), X(0), X(1)));
}

int build_gather_batch(struct args *a) {
  return ONE(IR_MAKE(a->ctx, IR_GATHER, ATTRS(.axis = INT(axis, 0), .batch = INT(batch, 0)), X(0), X(1)));
}

int build_scatter_batch(struct args *a) {
  return ONE(IR_MAKE(a->ctx, IR_SCATTER, ATTRS(.axis = INT(axis, 0), .batch = INT(batch, 0), .reduce = REDUCE_BY), X(0),
                     X(1), X(2)));
}

int build_scan(struct args *a) {
  return ONE(
      IR_MAKE(a->ctx, IR_SCAN, ATTRS(.reduce = REDUCE_BY, .axis = INT(axis, 0), .reverse = INT(reverse, 0)), X(0)));
}

int build_reduce(struct args *a) {
  return ONE(IR_MAKE(a->ctx, IR_REDUCE, ATTRS(.reduce = REDUCE_BY, .axes = IR_LIST(axes)), X(0)));
}

int build_argreduce(struct args *a) {
  return ONE(IR_MAKE(a->ctx, IR_ARGREDUCE, ATTRS(.reduce = REDUCE_BY, .axis = INT(axis, 0)), X(0)));
}

int build_dot(struct args *a) {
  return ONE(IR_MAKE(a->ctx, IR_DOT,
                     ATTRS(.a_batch = IR_LIST(a_batch), .b_batch = IR_LIST(b_batch), .a_sum = IR_LIST(a_sum),
                           .b_sum = IR_LIST(b_sum), .reduce = REDUCE_BY,
                           .combine = (enum ir_combine)WORD(combine, "mul", "add", "max", "min")),
                     X(0), X(1)));
}
