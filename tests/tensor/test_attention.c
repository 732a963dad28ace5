/* tests/tensor/test_attention.c -- attention.c against plain loops: groups, masks, rows that see nothing */
#include "tensor/compound_test.h"

struct sizes {
  int64_t b, h, g, s, t, d, e;
};

/* seen and added, (B, H, S, T), may be NULL. */
static void naive(struct sizes z, double scale, bool causal, const double *q, const double *k, const double *v,
                  const bool *seen, const double *added, double *out, double *lse) {
  for (int64_t b = 0; b < z.b; b++) {
    for (int64_t h = 0; h < z.h; h++) {
      int64_t group = b * z.g + h / (z.h / z.g);
      for (int64_t i = 0; i < z.s; i++) {
        int64_t row = (b * z.h + h) * z.s + i;
        double score[32], sum = 0;
        for (int64_t j = 0; j < z.t; j++) {
          score[j] = 0;
          for (int64_t c = 0; c < z.d; c++) score[j] += q[row * z.d + c] * k[(group * z.t + j) * z.d + c];
          score[j] *= scale;
          if (added != NULL) score[j] += added[row * z.t + j];
          if ((causal && j > i + (z.t - z.s)) || (seen != NULL && !seen[row * z.t + j])) score[j] = -INFINITY;
          sum += exp(score[j]);
        }
        lse[row] = log(sum);
        for (int64_t c = 0; c < z.e; c++) {
          double value = 0;
          for (int64_t j = 0; j < z.t; j++) value += exp(score[j]) * v[(group * z.t + j) * z.e + c];
          out[row * z.e + c] = sum == 0 ? 0 : value / sum;
        }
      }
    }
  }
}

enum { MOST = 1024 };
static double q[MOST], k[MOST], v[MOST], added[MOST], out[MOST], lse[MOST];

static void numbers(void) {
  test_fill(MOST, q, 1);
  test_fill(MOST, k, 2);
  test_fill(MOST, v, 3);
  test_fill(MOST, added, 4);
}

struct operands {
  quern_tensor *q, *k, *v;
};
static struct operands operands(struct sizes z) {
  numbers();
  return (struct operands){ARRAY(F64, DIMS(z.b, z.h, z.s, z.d), z.b * z.h * z.s * z.d, q),
                           ARRAY(F64, DIMS(z.b, z.g, z.t, z.d), z.b * z.g * z.t * z.d, k),
                           ARRAY(F64, DIMS(z.b, z.g, z.t, z.e), z.b * z.g * z.t * z.e, v)};
}

static void expect(struct sizes z, quern_tensor *y, quern_tensor *l) {
  EXPECT_TYPE(y, F64, DIMS(z.b, z.h, z.s, z.e));
  EXPECT_TYPE(l, F64, DIMS(z.b, z.h, z.s));
  EXPECT_ARRAY(y, 1e-14, z.b * z.h * z.s * z.e, out);
  EXPECT_ARRAY(l, 1e-14, z.b * z.h * z.s, lse);
}

static void values(void **state) {
  (void)state;
  const struct sizes cases[] = {
      {2, 3, 3, 4, 5, 2, 3}, {1, 4, 2, 3, 3, 4, 2}, {2, 6, 1, 2, 4, 3, 1}, {1, 1, 1, 1, 1, 1, 1}};
  for (size_t i = 0; i < BASE_COUNT(cases); i++) {
    struct sizes z = cases[i];
    struct operands o = operands(z);
    quern_tensor *l;
    naive(z, 1 / sqrt((double)z.d), false, q, k, v, NULL, NULL, out, lse);
    quern_tensor *y = quern_attention(o.q, o.k, o.v, NULL, NULL, &l);
    expect(z, y, l);
    assert_ptr_equal(y, quern_attention(o.q, o.k, o.v, NULL,
                                        &(quern_attention_options){.size = sizeof(quern_attention_options)}, NULL));
    naive(z, 0.3, true, q, k, v, NULL, NULL, out, lse);
    const quern_attention_options causal = {.size = sizeof causal, .scale = 0.3, .causal = true};
    y = quern_attention(o.q, o.k, o.v, NULL, &causal, &l);
    expect(z, y, l);
    naive(z, -2, false, q, k, v, NULL, NULL, out, lse);
    const quern_attention_options negative = {.size = sizeof negative, .scale = -2};
    y = quern_attention(o.q, o.k, o.v, NULL, &negative, &l);
    expect(z, y, l);
  }
}

/* More queries than keys: the first ones see nothing. */
static void rows_without_keys(void **state) {
  (void)state;
  const struct sizes z = {1, 2, 1, 5, 3, 2, 2};
  struct operands o = operands(z);
  quern_tensor *l, *dx[3];
  const quern_attention_options causal = {.size = sizeof causal, .causal = true};
  naive(z, 1 / sqrt(2), true, q, k, v, NULL, NULL, out, lse);
  assert_true(out[0] == 0 && lse[1] == -INFINITY && lse[2] > -INFINITY);
  quern_tensor *y = quern_attention(o.q, o.k, o.v, NULL, &causal, &l);
  expect(z, y, l);

  /* Their gradient is 0, also with a gradient of lse; those of the others are finite. */
  quern_tensor *finite = quern_where(quern_isfinite(l), l, quern_zeros_like(l));
  quern_tensor *loss = quern_add(quern_sum(quern_square(y), QUERN_ALL, false), quern_sum(finite, QUERN_ALL, false));
  assert_int_equal(quern_grad(loss, 3, (quern_tensor *[]){o.q, o.k, o.v}, dx), QUERN_STATUS_OK);
  for (int i = 0; i < 3; i++) {
    double *d = VALUES(dx[i]);
    for (int64_t j = 0; j < quern_tensor_count(dx[i]); j++) assert_true(isfinite(d[j]));
    if (i == 0) assert_true(d[0] == 0 && d[3] == 0 && d[10] == 0 && d[4] != 0);
    free(d);
  }
  /* Even where the gradient that comes in for such a row is infinite. */
  assert_int_equal(quern_grad(quern_sum(quern_square(l), QUERN_ALL, false), 1, &o.q, dx), QUERN_STATUS_OK);
  double *d = VALUES(dx[0]);
  assert_true(d[0] == 0 && d[1] == 0 && isfinite(d[4]) && d[4] != 0);
  free(d);

  y = quern_attention(o.q, ZEROS(F64, 1, 1, 0, 2), ZEROS(F64, 1, 1, 0, 3), NULL, NULL, &l);
  EXPECT_TYPE(y, F64, DIMS(1, 2, 5, 3));
  double zeros[30] = {0}, none[10];
  for (int i = 0; i < 10; i++) none[i] = -INFINITY;
  EXPECT_ARRAY(y, 0, 30, zeros);
  EXPECT_ARRAY(l, 0, 10, none);
}

static void masks(void **state) {
  (void)state;
  const struct sizes z = {2, 4, 2, 3, 4, 2, 3};
  struct operands o = operands(z);
  quern_tensor *l, *y;
  bool seen[96], wide[96];
  double seen_real[96], wide_real[12], float_mask[96], broadcast[96];
  for (int i = 0; i < 96; i++) {
    seen[i] = added[i] > -0.3 && i / 4 != 5; /* row 5 sees nothing */
    seen_real[i] = seen[i];
    float_mask[i] = seen[i] ? added[i] : -INFINITY;
  }
  naive(z, 1 / sqrt(2), false, q, k, v, seen, NULL, out, lse);
  assert_true(lse[5] == -INFINITY);
  y = quern_attention(o.q, o.k, o.v, ARRAY(BOOL, DIMS(2, 4, 3, 4), 96, seen_real), NULL, &l);
  expect(z, y, l);

  const quern_attention_options causal = {.size = sizeof causal, .causal = true};
  naive(z, 1 / sqrt(2), true, q, k, v, seen, NULL, out, lse);
  y = quern_attention(o.q, o.k, o.v, ARRAY(BOOL, DIMS(2, 4, 3, 4), 96, seen_real), &causal, &l);
  expect(z, y, l);

  naive(z, 1 / sqrt(2), true, q, k, v, NULL, float_mask, out, lse);
  y = quern_attention(o.q, o.k, o.v, ARRAY(F64, DIMS(2, 4, 3, 4), 96, float_mask), &causal, &l);
  expect(z, y, l);

  for (int i = 0; i < 96; i++) broadcast[i] = added[i % 12];
  naive(z, 1 / sqrt(2), false, q, k, v, NULL, broadcast, out, lse);
  y = quern_attention(o.q, o.k, o.v, ARRAY(F64, DIMS(3, 4), 12, added), NULL, &l);
  expect(z, y, l);

  for (int i = 0; i < 96; i++) wide[i] = i / 48 == 0 || i % 4 != 2; /* (B, 1, 1, T) */
  for (int i = 0; i < 8; i++) wide_real[i] = i / 4 == 0 || i % 4 != 2;
  naive(z, 1 / sqrt(2), false, q, k, v, wide, NULL, out, lse);
  y = quern_attention(o.q, o.k, o.v, ARRAY(BOOL, DIMS(2, 1, 1, 4), 8, wide_real), NULL, &l);
  expect(z, y, l);

  const double offsets[] = {-1, 2}; /* (B, 1, 1, 1): keys up to i + offset */
  for (int i = 0; i < 96; i++) wide[i] = i % 4 <= i / 4 % 3 + (int)offsets[i / 48];
  naive(z, 1 / sqrt(2), false, q, k, v, wide, NULL, out, lse);
  y = quern_attention(o.q, o.k, o.v, ARRAY(I64, DIMS(2, 1, 1, 1), 2, offsets), NULL, &l);
  expect(z, y, l);
  quern_tensor *behind = quern_ge(quern_iota(ctx, QUERN_DTYPE_I64, 2, (int64_t[]){4, 1}, 0),
                                  ARRAY(I64, DIMS(2, 1, 1, 1), 2, ((double[]){2, 5})));
  quern_tensor *nan = quern_scalar(ctx, QUERN_DTYPE_F64, (double)NAN);
  quern_tensor *k_behind = quern_where(behind, nan, o.k); /* keys and values that nobody sees may be anything */
  y = quern_attention(o.q, k_behind, quern_where(behind, nan, o.v), ARRAY(I64, DIMS(2, 1, 1, 1), 2, offsets), NULL, &l);
  expect(z, y, l);
}

/* Scores of +-1e4 are exact; narrow operands have f32 interiors and an f32 lse. */
static void range(void **state) {
  (void)state;
  const quern_attention_options one = {.size = sizeof one, .scale = 1};
  quern_tensor *l, *a = REALS(F32, DIMS(1, 1, 2, 1), 100, -100), *b = REALS(F32, DIMS(1, 1, 3, 1), 100, -100, 100);
  quern_tensor *values_of = REALS(F32, DIMS(1, 1, 3, 1), 1, 2, 5);
  quern_tensor *y = quern_attention(a, b, values_of, NULL, &one, &l);
  EXPECT(y, 3, 2);
  EXPECT_RELATIVE(l, 1e-7, 1e4 + log(2), 1e4);
  EXPECT(GRAD_OF_SUM(y, a), 0, 0);
  EXPECT_NEAR(GRAD_OF_SUM(y, values_of), 1e4 / (1 << 24), 0.5, 1, 0.5); /* as exact as lse */

  /* d sum(lse) / dq is the mean key under P. */
  quern_tensor *keys = REALS(F32, DIMS(1, 1, 2, 1), 1, 3), *zero = REALS(F32, DIMS(1, 1, 1, 1), 0);
  y = quern_attention(zero, keys, keys, NULL, &one, &l);
  EXPECT_RELATIVE(GRAD_OF_SUM(l, zero), 1e-6, 2);
  EXPECT(GRAD_OF_SUM(l, keys), 0, 0);

  quern_tensor *h = REALS(F16, DIMS(1, 1, 1, 2), 200, 150), *i = REALS(F16, DIMS(1, 1, 2, 2), 200, 150, 200, 149);
  y = quern_attention(h, i, REALS(F16, DIMS(1, 1, 2, 1), 1, 2), NULL, &one, &l); /* scores of 62500 */
  EXPECT_TYPE(y, F16, DIMS(1, 1, 1, 1));
  EXPECT_TYPE(l, F32, DIMS(1, 1, 1));
  EXPECT(y, 1);
  EXPECT(l, 62500);
}

/* ---- gradients ------------------------------------------------------------------------------- */

struct gradient {
  bool causal, mask, lse;
};

static quern_tensor *apply(quern_tensor *const *x, const void *user) {
  const struct gradient *g = user;
  const quern_attention_options o = {.size = sizeof o, .scale = 0.7, .causal = g->causal};
  quern_tensor *l, *y = quern_attention(x[0], x[1], x[2], g->mask ? x[3] : NULL, &o, &l);
  if (!g->lse) return y;
  quern_tensor *parts[] = {quern_reshape(y, QUERN_LIST(-1)), quern_reshape(quern_square(l), QUERN_LIST(-1))};
  return quern_concat(2, parts, 0);
}

static void gradients(void **state) {
  (void)state;
  numbers();
  double *at[] = {q, k, v, added};
  const struct ir_ints shapes[] = {DIMS(1, 4, 3, 2), DIMS(1, 2, 3, 2), DIMS(1, 2, 3, 2), DIMS(4, 1, 3)};
  CHECK_GRADIENTS(apply, &((struct gradient){false, false, false}), 3, shapes, at, true);
  CHECK_GRADIENTS(apply, &((struct gradient){true, false, true}), 3, shapes, at, true);
  CHECK_GRADIENTS(apply, &((struct gradient){true, true, true}), 4, shapes, at, false);
  CHECK_GRADIENTS(apply, &((struct gradient){false, true, false}), 4, shapes, at, false);
}

/* ---- wrong calls ----------------------------------------------------------------------------- */

static void wrong_calls(void **state) {
  (void)state;
  quern_tensor *a = ZEROS(F32, 2, 4, 3, 8), *b = ZEROS(F32, 2, 2, 5, 8), *c = ZEROS(F32, 2, 2, 5, 6), *l = NULL;
  EXPECT_POISON(quern_attention(a, NULL, c, NULL, NULL, &l), INVALID, "attention: operand 1 is null");
  assert_true(l != NULL && quern_tensor_is_poison(l));
  EXPECT_POISON(quern_attention(ZEROS(I32, 2, 4, 3, 8), b, c, NULL, NULL, NULL), DTYPE,
                "attention: q is i32(2, 4, 3, 8), must be of a float dtype");
  EXPECT_POISON(quern_attention(a, b, ZEROS(F16, 2, 2, 5, 6), NULL, NULL, NULL), DTYPE,
                "attention: dtypes differ: q is f32(2, 4, 3, 8), k is f32(2, 2, 5, 8), v is f16(2, 2, 5, 6)");
  EXPECT_POISON(quern_attention(a, ZEROS(F32, 2, 5, 8), c, NULL, NULL, NULL), SHAPE,
                "k is f32(2, 5, 8), v is f32(2, 2, 5, 6); they must be (B, H, S, D)");
  EXPECT_POISON(quern_attention(a, ZEROS(F32, 1, 2, 5, 8), c, NULL, NULL, NULL), SHAPE, "attention: batches differ");
  EXPECT_POISON(quern_attention(a, ZEROS(F32, 2, 2, 5, 7), c, NULL, NULL, NULL), SHAPE,
                "q f32(2, 4, 3, 8) and k f32(2, 2, 5, 7) differ in width");
  EXPECT_POISON(quern_attention(a, b, ZEROS(F32, 2, 2, 4, 6), NULL, NULL, NULL), SHAPE,
                "k f32(2, 2, 5, 8) and v f32(2, 2, 4, 6) must agree");
  EXPECT_POISON(quern_attention(a, ZEROS(F32, 2, 3, 5, 8), ZEROS(F32, 2, 3, 5, 6), NULL, NULL, NULL), SHAPE,
                "attention: 4 heads of q f32(2, 4, 3, 8) are no multiple of the 3 heads of k");
  EXPECT_POISON(quern_attention(a, b, c, ZEROS(F64, 3, 5), NULL, NULL), DTYPE,
                "attention: mask is f64(3, 5), must be bool or of q's dtype f32");
  EXPECT_POISON(quern_attention(a, b, c, ZEROS(BOOL, 2, 3, 5), NULL, NULL), SHAPE,
                "attention: mask is bool(2, 3, 5), does not broadcast to (B, H, S, T) = (2, 4, 3, 5)");
  EXPECT_POISON(quern_attention(a, b, c, ZEROS(I64, 3, 5), NULL, NULL), SHAPE,
                "attention: mask is i64(3, 5), does not broadcast to (B, 1, 1, 1) = (2, 1, 1, 1)");
  EXPECT_POISON(quern_attention(a, b, c, ZEROS(BOOL, 1, 1, 1, 3, 5), NULL, NULL), SHAPE,
                "attention: mask is bool(1, 1, 1, 3, 5)");
  quern_attention_options o = {.size = sizeof o, .scale = NAN};
  EXPECT_POISON(quern_attention(a, b, c, NULL, &o, NULL), INVALID, "attention: scale is nan, must be finite");
  o.size = 1;
  EXPECT_POISON(quern_attention(a, b, c, NULL, &o, NULL), INVALID,
                "attention: quern_attention_options has a size of 1 bytes");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(values), TEST(rows_without_keys), TEST(masks), TEST(range), TEST(gradients), TEST(wrong_calls),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
