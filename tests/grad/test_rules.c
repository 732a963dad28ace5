/* tests/grad/test_rules.c -- the rule of each op against central differences, and at the points where there is a choice:
** ties, zeros, duplicates, indices outside, empty tensors
*/
#include "grad/grad_test.h"

#define INPUTS DIMS(2, 3), DIMS(2, 3)

/* ---- elementwise ------------------------------------------------------------------------------------------------ */

/* The ops of one source, at places where they are smooth. */
static void unary(quern_tensor *const *x, quern_tensor **y) {
  quern_tensor *positive = quern_add_scalar(quern_square(x[0]), 0.5);
  y[0] = quern_neg(quern_abs(quern_mul(quern_exp(x[0]), quern_expm1(x[0]))));
  y[1] = quern_mul(quern_log(positive), quern_log1p(positive));
  y[2] = quern_mul(quern_sqrt(positive), quern_sin(x[0]));
  y[3] = quern_sub(quern_cos(x[0]), quern_tanh(x[0]));
  y[4] = quern_erf(x[0]);
  y[5] = quern_cast(x[0], QUERN_DTYPE_F64);
}

static void binary(quern_tensor *const *x, quern_tensor **y) {
  quern_tensor *a = x[0], *b = quern_add_scalar(x[1], 3), *positive = quern_add_scalar(a, 2);
  y[0] = quern_mul(quern_add(a, b), quern_sub(b, a));
  y[1] = quern_div(a, b);
  y[2] = quern_mod(quern_mul_scalar(a, 7.3), b);
  y[3] = quern_pow(positive, x[1]);
  y[4] = quern_atan2(a, b);
  y[5] = quern_mul(quern_maximum(a, x[1]), quern_minimum(a, x[1]));
}

static void test_elementwise(void **state) {
  (void)state;
  CHECK_DERIVATIVES(.build = unary, .n_x = 1, .shapes = {DIMS(2, 3)}, .n_y = 6);
  CHECK_DERIVATIVES(.build = binary, .n_x = 2, .shapes = {INPUTS}, .n_y = 6);
}

static void test_abs(void **state) {
  (void)state;
  quern_tensor *x = REALS(F64, DIMS(4), 2, -3, 0, -0.0);
  EXPECT_EXACT(VJP(quern_abs(x), x, 5, 5, 5, 5), 5, -5, 0, 0);
  EXPECT_EXACT(JVP(quern_abs(x), x, 5, 5, 5, 5), 5, -5, 0, 0);
}

static void test_mod(void **state) {
  (void)state;
  quern_tensor *a = REALS(F64, DIMS(3), 7, -7, 7), *b = REALS(F64, DIMS(3), 3, 3, -3);
  EXPECT_EXACT(VJP(quern_mod(a, b), a, 1, 1, 1), 1, 1, 1);
  EXPECT_EXACT(VJP(quern_mod(a, b), b, 1, 1, 1), -2, 3, 3);
}

static void test_pow(void **state) {
  (void)state;
  quern_tensor *a = REALS(F64, DIMS(6), 0, 0, 0, 0, -2, 3), *b = REALS(F64, DIMS(6), 0, 1, 2, 0.5, 3, 0);
  quern_tensor *y = quern_pow(a, b), *da = VJP(y, a, 1, 1, 1, 1, 1, 1);
  EXPECT_EXACT(da, 0, 1, 0, INFINITY, 12, 0);
  EXPECT_NEAR(VJP(y, b, 1, 1, 1, 1, 1, 1), 1e-15, 0, 0, 0, 0, NAN, log(3));
  EXPECT_EXACT(JVP(y, a, 1, 1, 1, 1, 1, 1), 0, 1, 0, INFINITY, 12, 0);
  /* and again: b (b - 1) a^(b - 2), also at 0 */
  EXPECT_EXACT(VJP(da, a, 1, 1, 1, 0, 1, 1), 0, 0, 2, NAN, -12, 0);
  /* d2 y / da db = a^(b - 1) (1 + b ln a), at b = 0 as well */
  quern_tensor *p = REALS(F64, DIMS(2), 2, 4), *none = REALS(F64, DIMS(2), 0, 0);
  quern_tensor *dp = VJP(quern_pow(p, none), p, 1, 1);
  EXPECT_NEAR(VJP(dp, none, 1, 1), 1e-15, 0.5, 0.25);
}

/* Equal operands share the gradient. */
static void test_ties(void **state) {
  (void)state;
  quern_tensor *a = REALS(F64, DIMS(4), 1, 2, 3, 0), *b = REALS(F64, DIMS(4), 2, 2, 1, -0.0);
  EXPECT_EXACT(VJP(quern_maximum(a, b), a, 8, 8, 8, 8), 0, 4, 8, 4);
  EXPECT_EXACT(VJP(quern_maximum(a, b), b, 8, 8, 8, 8), 8, 4, 0, 4);
  EXPECT_EXACT(VJP(quern_minimum(a, b), a, 8, 8, 8, 8), 8, 4, 0, 4);
  EXPECT_EXACT(VJP(quern_minimum(a, b), b, 8, 8, 8, 8), 0, 4, 8, 4);
  EXPECT_EXACT(JVP(quern_maximum(a, b), a, 8, 8, 8, 8), 0, 4, 8, 4);
  EXPECT_EXACT(VJP(quern_maximum(a, a), a, 8, 8, 8, 8), 8, 8, 8, 8);
  /* an infinite gradient of the side that is not chosen does not spoil it */
  EXPECT_EXACT(VJP(quern_maximum(a, b), a, INFINITY, 1, 1, 1), 0, 0.5, 1, 0.5);
}

static void test_select(void **state) {
  (void)state;
  quern_tensor *c = INTS(BOOL, DIMS(3), 1, 0, 1), *a = REALS(F64, DIMS(3), 1, 2, 3), *b = REALS(F64, DIMS(3), 4, 5, 6);
  EXPECT_EXACT(VJP(quern_where(c, a, b), a, 7, 8, 9), 7, 0, 9);
  EXPECT_EXACT(VJP(quern_where(c, a, b), b, 7, 8, 9), 0, 8, 0);
  EXPECT_EXACT(VJP(quern_where(c, a, b), b, NAN, 8, INFINITY), 0, 8, 0);
  EXPECT_EXACT(VJP(quern_where(c, a, a), a, 7, 8, 9), 7, 8, 9);
}

/* ---- movement --------------------------------------------------------------------------------------------------- */

static void views(quern_tensor *const *x, quern_tensor **y) {
  quern_tensor *a = x[0]; /* (2, 3, 4) */
  y[0] = quern_square(quern_reshape(a, QUERN_LIST(4, 6)));
  y[1] = quern_exp(quern_permute(a, QUERN_LIST(2, 0, 1)));
  y[2] = quern_sin(quern_broadcast_to(quern_slice(a, 1, 1, 2, 1), QUERN_LIST(2, 2, 5, 4)));
  y[3] = quern_mul(quern_flip(a, QUERN_LIST(0, 2)), a);
  y[4] = quern_square(quern_concat(3, (quern_tensor *[]){a, quern_exp(a), a}, 1));
  y[5] = quern_square(quern_slice(quern_slice(a, 2, 3, QUERN_END, -2), 1, 0, 3, 2));
}

static void blocks(quern_tensor *const *x, quern_tensor **y) {
  quern_tensor *a = x[0], *u = x[1]; /* (4, 5), (2, 3) */
  quern_tensor *inside[] = {INT(I64, 1), INT(I32, 2)},
               *outside[] = {INT(I64, -3), INT(I32, 9)}; /* the second is clamped */
  y[0] = quern_square(quern_slice_at(a, 2, inside, (int64_t[]){2, 3}));
  y[1] = quern_square(quern_slice_at(a, 2, outside, (int64_t[]){3, 2}));
  y[2] = quern_square(quern_update_at(a, u, 2, inside));
  y[3] = quern_square(quern_update_at(a, u, 2, outside));
}

static void windows(quern_tensor *const *x, quern_tensor **y) {
  quern_tensor *a = x[0]; /* (7, 5) */
  quern_tensor *w = quern_window(a, QUERN_LIST(0, 1), (int64_t[]){3, 2}, (int64_t[]){2, 1}, (int64_t[]){1, 2});
  y[0] = quern_square(w);
  struct ir_attrs fold = {.shape = DIMS(8, 5), .axes = DIMS(0, 1), .step = DIMS(2, 1), .dilate = DIMS(1, 2)};
  y[1] = quern_square(IR_MAKE(ctx, IR_COL2IM, &fold, w));
  y[2] = quern_square(quern_window(a, QUERN_LIST(1), (int64_t[]){2}, (int64_t[]){3}, (int64_t[]){1}));
}

static void padding(quern_tensor *const *x, quern_tensor **y) {
  quern_tensor *a = x[0], *fill = x[1]; /* (2, 3), () */
  struct ir_attrs pad = {.lo = DIMS(1, 0), .hi = DIMS(0, 2), .mid = DIMS(2, 1)};
  y[0] = quern_square(IR_MAKE(ctx, IR_PAD, &pad, a, fill));
  struct ir_attrs slice = {.lo = DIMS(1, 0), .hi = DIMS(5, 7), .step = DIMS(3, 2)};
  y[1] = quern_exp(IR_MAKE(ctx, IR_SLICE, &slice, y[0]));
  struct ir_attrs none = {.lo = DIMS(0, 1), .hi = DIMS(0, 3), .step = DIMS(1, 1)}; /* of an axis whose size becomes 0 */
  y[2] = IR_MAKE(ctx, IR_PAD, ATTRS(.lo = DIMS(2, 0), .hi = DIMS(1, 0), .mid = DIMS(3, 0)),
                 IR_MAKE(ctx, IR_SLICE, &none, a), quern_square(fill));
  y[3] =
      IR_MAKE(ctx, IR_PAD, ATTRS(.lo = SCALAR), quern_sum(a, QUERN_ALL, false), fill); /* of a scalar: no fill shows */
}

static void test_movement(void **state) {
  (void)state;
  CHECK_DERIVATIVES(.build = views, .n_x = 1, .shapes = {DIMS(2, 3, 4)}, .n_y = 6);
  CHECK_DERIVATIVES(.build = blocks, .n_x = 2, .shapes = {DIMS(4, 5), DIMS(2, 3)}, .n_y = 4);
  CHECK_DERIVATIVES(.build = windows, .n_x = 1, .shapes = {DIMS(7, 5)}, .n_y = 3);
  CHECK_DERIVATIVES(.build = padding, .n_x = 2, .shapes = {DIMS(2, 3), SCALAR}, .n_y = 4);
}

/* Exact gradients of padding and slicing with gaps and with nothing left. */
static void test_gaps(void **state) {
  (void)state;
  quern_tensor *x = REALS(F64, DIMS(3), 1, 2, 3), *fill = REAL(F64, 9);
  quern_tensor *y = IR_MAKE(ctx, IR_PAD, ATTRS(.lo = DIMS(1), .hi = DIMS(2), .mid = DIMS(1)), x, fill);
  EXPECT_EXACT(y, 9, 1, 9, 2, 9, 3, 9, 9);
  EXPECT_EXACT(VJP(y, x, 1, 2, 3, 4, 5, 6, 7, 8), 2, 4, 6);
  EXPECT_EXACT(VJP(y, fill, 1, 2, 3, 4, 5, 6, 7, 8), 1 + 3 + 5 + 7 + 8);
  EXPECT_EXACT(VJP(quern_slice(x, 0, 1, 3, 5), x, 7), 0, 7, 0);
  EXPECT_EXACT(VJP(quern_slice(x, 0, 0, 3, 2), x, 7, 8), 7, 0, 8);
  quern_tensor *empty = IR_MAKE(ctx, IR_SLICE, ATTRS(.lo = DIMS(3), .hi = DIMS(3), .step = DIMS(2)), x),
               *d = EMPTY(F64, DIMS(0)), *dx;
  EXPECT_OK(quern_vjp(1, &empty, &d, 1, &x, &dx));
  EXPECT_EXACT(dx, 0, 0, 0);
  quern_tensor *padded = IR_MAKE(ctx, IR_PAD, ATTRS(.lo = DIMS(1), .hi = DIMS(1), .mid = DIMS(4)), empty, fill);
  EXPECT_EXACT(VJP(padded, fill, 3, 4), 7);
  EXPECT_EXACT(VJP(padded, x, 3, 4), 0, 0, 0);
}

/* ---- gather and scatter ----------------------------------------------------------------------------------------- */

static void gathers(quern_tensor *const *x, quern_tensor **y) {
  quern_tensor *a = x[0], *u = x[1]; /* (2, 3, 2), (2, 2, 4, 2) */
  quern_tensor *index = INTS(I32, DIMS(2, 4), 0, 2, 2, 7, 1, 1, -1, 0), *flat = INTS(I64, DIMS(3), 1, 1, 0);
  y[0] = quern_square(quern_gather(a, index, 1));
  y[1] = quern_square(IR_MAKE(ctx, IR_GATHER, ATTRS(.axis = 1, .batch = 1), a, index));
  y[2] = quern_square(quern_gather(a, flat, 2));
  y[3] = quern_square(quern_scatter(a, index, u, 1, QUERN_SCATTER_ADD));
  y[4] = quern_square(quern_scatter(a, index, u, 1, QUERN_SCATTER_SET));
  y[5] = quern_square(quern_scatter(a, index, u, 1, QUERN_SCATTER_MAX));
}

static void scatters(quern_tensor *const *x, quern_tensor **y) {
  quern_tensor *a = x[0], *u = x[1]; /* (2, 3, 2), (2, 4, 2) */
  quern_tensor *index = INTS(U8, DIMS(2, 4), 0, 2, 2, 7, 1, 1, 9, 0);
  static const enum ir_reduce kinds[] = {IR_SUM, IR_SET, IR_REDUCE_MAX, IR_REDUCE_MIN};
  for (size_t k = 0; k < BASE_COUNT(kinds); k++) {
    y[k] = quern_square(IR_MAKE(ctx, IR_SCATTER, ATTRS(.axis = 1, .batch = 1, .reduce = kinds[k]), a, index, u));
  }
}

static void test_indices(void **state) {
  (void)state;
  CHECK_DERIVATIVES(.build = gathers, .n_x = 2, .shapes = {DIMS(2, 3, 2), DIMS(2, 2, 4, 2)}, .n_y = 6);
  CHECK_DERIVATIVES(.build = scatters, .n_x = 2, .shapes = {DIMS(2, 3, 2), DIMS(2, 4, 2)}, .n_y = 4);
}

static void test_gather_outside(void **state) {
  (void)state;
  quern_tensor *x = REALS(F64, DIMS(3), 1, 2, 3), *index = INTS(I64, DIMS(5), 0, 3, -1, 2, 0);
  quern_tensor *y = quern_gather(x, index, 0);
  EXPECT_EXACT(y, 1, 0, 0, 3, 1);
  EXPECT_EXACT(VJP(y, x, 1, 20, 300, 4000, 50000), 50001, 0, 4000);
  EXPECT_EXACT(JVP(y, x, 1, 20, 300), 1, 0, 0, 300, 1);
}

/* With set the last update of an element counts; update 0 out of range is not taken for it. */
static void test_scatter_set(void **state) {
  (void)state;
  quern_tensor *x = REALS(F64, DIMS(3), 1, 2, 3), *u = REALS(F64, DIMS(5), 10, 20, 30, 40, 50);
  quern_tensor *y = quern_scatter(x, INTS(I64, DIMS(5), 2, 0, 2, -1, 5), u, 0, QUERN_SCATTER_SET);
  EXPECT_EXACT(y, 20, 2, 30);
  EXPECT_EXACT(VJP(y, x, 7, 8, 9), 0, 8, 0);
  EXPECT_EXACT(VJP(y, u, 7, 8, 9), 0, 7, 9, 0, 0);
  EXPECT_EXACT(JVP(y, x, 7, 8, 9), 0, 8, 0);
  EXPECT_EXACT(JVP(y, u, 1, 2, 3, 4, 5), 2, 0, 3);
  quern_tensor *outside = quern_scatter(x, INTS(I64, DIMS(5), 7, 0, 0, 0, 0), u, 0, QUERN_SCATTER_SET);
  EXPECT_EXACT(VJP(outside, u, 7, 8, 9), 0, 0, 0, 0, 7);
  EXPECT_EXACT(JVP(outside, u, 1, 2, 3, 4, 5), 5, 0, 0);
}

/* With max and min all that equal the result share, x included. */
static void test_scatter_ties(void **state) {
  (void)state;
  quern_tensor *x = REALS(F64, DIMS(3), 5, 2, 0), *u = REALS(F64, DIMS(6), 5, 5, 1, 7, 0, 0);
  quern_tensor *index = INTS(I64, DIMS(6), 0, 0, 1, 1, 9, -1);
  quern_tensor *most = quern_scatter(x, index, u, 0, QUERN_SCATTER_MAX),
               *least = quern_scatter(x, index, u, 0, QUERN_SCATTER_MIN);
  EXPECT_EXACT(most, 5, 7, 0);
  EXPECT_EXACT(VJP(most, x, 6, 6, 6), 2, 0, 6);
  EXPECT_EXACT(VJP(most, u, 6, 6, 6), 2, 2, 0, 6, 0, 0); /* a 0 out of range is not taken for the 0 it would gather */
  EXPECT_EXACT(JVP(most, x, 3, 3, 3), 1, 0, 3);
  EXPECT_EXACT(JVP(most, u, 3, 6, 1, 2, 100, 100), 3, 2, 0);
  EXPECT_EXACT(least, 5, 1, 0);
  EXPECT_EXACT(VJP(least, x, 6, 6, 6), 2, 0, 6);
  EXPECT_EXACT(VJP(least, u, 6, 6, 6), 2, 2, 6, 0, 0, 0);
}

/* ---- reductions ------------------------------------------------------------------------------------------------- */

static void reductions(quern_tensor *const *x, quern_tensor **y) {
  quern_tensor *a = x[0]; /* (2, 3, 4) */
  y[0] = quern_square(quern_sum(a, QUERN_LIST(0, 2), false));
  y[1] = quern_prod(a, QUERN_LIST(0, 2), false);
  y[2] = quern_exp(quern_max(a, QUERN_LIST(1), true));
  y[3] = quern_exp(quern_min(a, QUERN_LIST(0, 1), false));
  y[4] = quern_prod(a, QUERN_LIST(1), true);
  y[5] = IR_MAKE(ctx, IR_REDUCE, ATTRS(.reduce = IR_PROD), quern_square(a)); /* over no axes */
}

static void scans(quern_tensor *const *x, quern_tensor **y) {
  static const struct {
    enum ir_reduce reduce;
    bool reverse;
  } kinds[MAX_TENSORS] = {{IR_SUM, true},         {IR_PROD, false},      {IR_PROD, true},
                          {IR_REDUCE_MAX, false}, {IR_REDUCE_MIN, true}, {IR_SUM, false}};
  for (size_t k = 0; k < MAX_TENSORS; k++) {
    struct ir_attrs attrs = {.reduce = kinds[k].reduce, .axis = 1, .reverse = kinds[k].reverse};
    y[k] = quern_square(IR_MAKE(ctx, IR_SCAN, &attrs, x[0]));
  }
}

static void sorts(quern_tensor *const *x, quern_tensor **y) {
  y[0] = quern_square(quern_sort(x[0], 0, false, NULL));
  y[1] = quern_exp(quern_sort(x[0], 1, true, NULL));
  y[2] = quern_square(quern_topk(x[0], 2, 1, true, NULL));
}

static void test_reductions(void **state) {
  (void)state;
  CHECK_DERIVATIVES(.build = reductions, .n_x = 1, .shapes = {DIMS(2, 3, 4)}, .n_y = 6);
  CHECK_DERIVATIVES(.build = scans, .n_x = 1, .shapes = {DIMS(2, 4, 2)}, .n_y = 6);
  CHECK_DERIVATIVES(.build = sorts, .n_x = 1, .shapes = {DIMS(3, 4)}, .n_y = 3);
}

static void test_reduce_ties(void **state) {
  (void)state;
  quern_tensor *x = REALS(F64, DIMS(2, 3), 1, 4, 4, 2, 0, 2);
  quern_tensor *most = quern_max(x, QUERN_LIST(1), false), *least = quern_min(x, QUERN_ALL, false);
  EXPECT_EXACT(VJP(most, x, 6, 8), 0, 3, 3, 4, 0, 4);
  EXPECT_EXACT(JVP(most, x, 1, 2, 4, 8, 16, 32), 3, 20);
  EXPECT_EXACT(VJP(least, x, 6), 0, 0, 0, 0, 6, 0);
  quern_tensor *same = REALS(F16, DIMS(4), 3, 3, 3, 3);
  EXPECT_EXACT(VJP(quern_min(same, QUERN_ALL, false), same, 8), 2, 2, 2, 2);
}

/* With one zero only that factor has a gradient, with two none. */
static void test_prod_of_zeros(void **state) {
  (void)state;
  quern_tensor *x = REALS(F64, DIMS(3, 3), 2, 0, 5, 0, 3, 0, 2, 3, 4);
  quern_tensor *y = quern_prod(x, QUERN_LIST(1), false);
  EXPECT_EXACT(y, 0, 0, 24);
  EXPECT_EXACT(VJP(y, x, 1, 1, 1), 0, 10, 0, 0, 0, 0, 12, 8, 6);
  EXPECT_EXACT(JVP(y, x, 1, 1, 1, 1, 1, 1, 1, 1, 1), 10, 0, 26);
  quern_tensor *all = quern_prod(REALS(F64, DIMS(1), 0), QUERN_ALL, false), *one = all->node->src[0];
  EXPECT_EXACT(VJP(all, one, 3), 3);
  quern_tensor *columns = quern_prod(x, QUERN_LIST(0), false);
  EXPECT_EXACT(VJP(columns, x, 1, 1, 1), 0, 9, 0, 4, 0, 20, 0, 0, 0);
}

static void test_empty(void **state) {
  (void)state;
  quern_tensor *x = EMPTY(F64, DIMS(0, 2)), *dx, *none = EMPTY(F64, DIMS(0, 2));
  static const enum ir_reduce kinds[] = {IR_SUM, IR_PROD, IR_REDUCE_MAX, IR_REDUCE_MIN};
  for (size_t k = 0; k < BASE_COUNT(kinds); k++) {
    quern_tensor *y = IR_MAKE(ctx, IR_REDUCE, ATTRS(.reduce = kinds[k], .axes = DIMS(0)), x);
    VJP(y, x, 1, 2);
    if (kinds[k] == IR_SUM || kinds[k] == IR_PROD) {
      quern_tensor *ty;
      EXPECT_OK(quern_jvp(1, &x, &none, 1, &y, &ty));
      EXPECT_EXACT(ty, 0, 0);
    }
    for (int64_t reverse = 0; reverse < 2; reverse++) {
      quern_tensor *scan = IR_MAKE(ctx, IR_SCAN, ATTRS(.reduce = kinds[k], .reverse = reverse), x);
      EXPECT_OK(quern_vjp(1, &scan, &none, 1, &x, &dx));
      EXPECT_EMPTY(dx);
      EXPECT_OK(quern_jvp(1, &x, &none, 1, &scan, &dx));
      EXPECT_EMPTY(dx);
    }
  }
  quern_tensor *sorted = quern_sort(x, 0, false, NULL);
  EXPECT_OK(quern_vjp(1, &sorted, &none, 1, &x, &dx));
  EXPECT_EMPTY(dx);
}

/* A running maximum shows the first of equals: the first in the direction of the scan. */
static void test_running_extremes(void **state) {
  (void)state;
  quern_tensor *x = REALS(F64, DIMS(6), 1, 3, 3, 2, 5, 5);
  quern_tensor *y = quern_cummax(x, 0);
  EXPECT_EXACT(y, 1, 3, 3, 3, 5, 5);
  EXPECT_EXACT(VJP(y, x, 1, 10, 100, 1000, 10000, 100000), 1, 1110, 0, 0, 110000, 0);
  EXPECT_EXACT(JVP(y, x, 1, 2, 3, 4, 5, 6), 1, 2, 2, 2, 5, 5);
  quern_tensor *back = IR_MAKE(ctx, IR_SCAN, ATTRS(.reduce = IR_REDUCE_MAX, .reverse = 1), x);
  EXPECT_EXACT(back, 5, 5, 5, 5, 5, 5);
  EXPECT_EXACT(VJP(back, x, 1, 10, 100, 1000, 10000, 100000), 0, 0, 0, 0, 0, 111111);
  quern_tensor *low = IR_MAKE(ctx, IR_SCAN, ATTRS(.reduce = IR_REDUCE_MIN, .reverse = 1), x);
  EXPECT_EXACT(low, 1, 2, 2, 2, 5, 5);
  EXPECT_EXACT(VJP(low, x, 1, 10, 100, 1000, 10000, 100000), 1, 0, 0, 1110, 0, 110000);
  EXPECT_EXACT(JVP(low, x, 1, 2, 3, 4, 5, 6), 1, 4, 4, 4, 6, 6);
  EXPECT_EXACT(VJP(quern_cummin(x, 0), x, 1, 1, 1, 1, 1, 1), 6, 0, 0, 0, 0, 0);
  quern_tensor *single = REALS(F64, DIMS(1, 2), 3, 4);
  EXPECT_EXACT(VJP(quern_cummax(single, 0), single, 5, 6), 5, 6);
}

static void test_cumprod_of_zeros(void **state) {
  (void)state;
  quern_tensor *x = REALS(F64, DIMS(5), 2, 0, 3, 0, 5), *y = quern_cumprod(x, 0);
  EXPECT_EXACT(y, 2, 0, 0, 0, 0);
  EXPECT_EXACT(VJP(y, x, 1, 10, 100, 1000, 10000), 1, 2 * 10 + 6 * 100, 0, 0, 0);
  EXPECT_EXACT(JVP(y, x, 1, 1, 1, 1, 1), 1, 2, 6, 0, 0);
  quern_tensor *back = IR_MAKE(ctx, IR_SCAN, ATTRS(.reduce = IR_PROD, .reverse = 1), x);
  EXPECT_EXACT(back, 0, 0, 0, 0, 5);
  EXPECT_EXACT(VJP(back, x, 1, 10, 100, 1000, 10000), 0, 0, 0, 5 * 1000 + 15 * 100, 10000);
  EXPECT_EXACT(JVP(back, x, 1, 1, 1, 1, 1), 0, 0, 15, 5, 1);
}

/* Equal elements keep their order, and so do their gradients. */
static void test_sort_is_stable(void **state) {
  (void)state;
  quern_tensor *x = REALS(F64, DIMS(5), 2, 1, 2, 1, 2);
  EXPECT_EXACT(VJP(quern_sort(x, 0, false, NULL), x, 1, 2, 3, 4, 5), 3, 1, 4, 2, 5);
  EXPECT_EXACT(VJP(quern_sort(x, 0, true, NULL), x, 1, 2, 3, 4, 5), 1, 4, 2, 5, 3);
  EXPECT_EXACT(JVP(quern_sort(x, 0, false, NULL), x, 1, 2, 3, 4, 5), 2, 4, 1, 3, 5);
}

/* ---- contraction ------------------------------------------------------------------------------------------------ */

/* Batch and summed axes in any order, on either side: a (2, 3, 4, 2, 3), b (3, 2, 2, 4, 2). */
static void dots(quern_tensor *const *x, quern_tensor **y) {
  static const enum ir_reduce reduces[] = {IR_SUM, IR_REDUCE_MAX, IR_PROD};
  static const enum ir_combine combines[] = {IR_COMBINE_MUL, IR_COMBINE_ADD, IR_COMBINE_MAX};
  for (int k = 0; k < 3; k++) {
    struct ir_attrs dot = {.a_batch = DIMS(3, 1),
                           .b_batch = DIMS(2, 0),
                           .a_sum = DIMS(2, 0),
                           .b_sum = DIMS(3, 1),
                           .reduce = reduces[k],
                           .combine = combines[k]};
    y[k] = quern_square(IR_MAKE(ctx, IR_DOT, &dot, x[0], x[1]));
  }
  y[3] = quern_exp(
      IR_MAKE(ctx, IR_DOT, ATTRS(.a_sum = DIMS(1, 0), .b_sum = DIMS(0, 1)), x[2], x[3])); /* all but one axis of b */
  y[4] = quern_square(
      IR_MAKE(ctx, IR_DOT, ATTRS(.reduce = IR_REDUCE_MIN, .combine = IR_COMBINE_MIN), x[2], x[4])); /* nothing summed */
  y[5] = quern_square(IR_MAKE(ctx, IR_DOT, ATTRS(.a_batch = DIMS(1, 0), .b_batch = DIMS(0, 1)), x[2], x[3]));
}

static void test_dot(void **state) {
  (void)state;
  CHECK_DERIVATIVES(.build = dots, .n_x = 5, .n_y = 6, .first_only = true,
                    .shapes = {DIMS(2, 3, 2, 2, 2), DIMS(3, 2, 2, 2, 2), DIMS(2, 3), DIMS(3, 2, 2), DIMS(2)});
}

static void plain_dots(quern_tensor *const *x, quern_tensor **y) {
  y[0] = IR_MAKE(ctx, IR_DOT, ATTRS(.a_batch = DIMS(1), .b_batch = DIMS(2), .a_sum = DIMS(2, 0), .b_sum = DIMS(0, 1)),
                 x[0], x[1]);
  y[1] = IR_MAKE(ctx, IR_DOT,
                 ATTRS(.a_batch = DIMS(1), .b_batch = DIMS(2), .a_sum = DIMS(2, 0), .b_sum = DIMS(0, 1),
                       .reduce = IR_PROD, .combine = IR_COMBINE_ADD),
                 x[0], x[1]);
  y[2] = quern_matmul(x[0], quern_permute(x[0], QUERN_LIST(0, 2, 1)));
}

static void test_dot_twice(void **state) {
  (void)state;
  CHECK_DERIVATIVES(.build = plain_dots, .n_x = 2, .shapes = {DIMS(2, 3, 4), DIMS(4, 2, 3, 2)}, .n_y = 3);
}

/* Both sides one tensor: the gradients of both add up. */
static void test_dot_with_itself(void **state) {
  (void)state;
  quern_tensor *x = REALS(F64, DIMS(3), 1, 2, 3);
  EXPECT_EXACT(VJP(quern_matmul(x, x), x, 10), 20, 40, 60);
  EXPECT_EXACT(JVP(quern_matmul(x, x), x, 1, 10, 100), 2 * (1 + 20 + 300));
  quern_tensor *y = IR_MAKE(
      ctx, IR_DOT, ATTRS(.a_sum = DIMS(0), .b_sum = DIMS(0), .reduce = IR_REDUCE_MAX, .combine = IR_COMBINE_ADD), x, x);
  EXPECT_EXACT(y, 6);
  EXPECT_EXACT(VJP(y, x, 10), 0, 0, 20);
  EXPECT_EXACT(JVP(y, x, 1, 10, 100), 200);
}

/* Ties of a contraction by max share, as in a reduction. */
static void test_dot_ties(void **state) {
  (void)state;
  quern_tensor *a = REALS(F64, DIMS(3), 1, 2, 0), *b = REALS(F64, DIMS(3), 2, 1, 0), *c = REALS(F64, DIMS(3), 4, 5, 6);
  quern_tensor *y = IR_MAKE(
      ctx, IR_DOT, ATTRS(.a_sum = DIMS(0), .b_sum = DIMS(0), .reduce = IR_REDUCE_MAX, .combine = IR_COMBINE_ADD), a, b);
  EXPECT_EXACT(VJP(y, a, 8), 4, 4, 0);
  EXPECT_EXACT(VJP(y, b, 8), 4, 4, 0);
  /* only one side is asked for */
  quern_tensor *z = IR_MAKE(
      ctx, IR_DOT, ATTRS(.a_sum = DIMS(0), .b_sum = DIMS(0), .reduce = IR_REDUCE_MIN, .combine = IR_COMBINE_MUL), a,
      quern_exp(c));
  EXPECT_NEAR(VJP(z, c, 1), 1e-14, 0, 0, 0);
  EXPECT_EXACT(JVP(z, a, 0, 0, 0), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(test_elementwise),
      TEST(test_abs),
      TEST(test_mod),
      TEST(test_pow),
      TEST(test_ties),
      TEST(test_select),
      TEST(test_movement),
      TEST(test_gaps),
      TEST(test_indices),
      TEST(test_gather_outside),
      TEST(test_scatter_set),
      TEST(test_scatter_ties),
      TEST(test_reductions),
      TEST(test_reduce_ties),
      TEST(test_prod_of_zeros),
      TEST(test_empty),
      TEST(test_running_extremes),
      TEST(test_cumprod_of_zeros),
      TEST(test_sort_is_stable),
      TEST(test_dot),
      TEST(test_dot_twice),
      TEST(test_dot_with_itself),
      TEST(test_dot_ties),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
