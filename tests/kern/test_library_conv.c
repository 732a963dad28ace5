/* tests/kern/test_library_conv.c -- calls of convolutions: what they compute, what is refused, as text, in the hash */
#include <math.h>

#include "kern_test.h"

/* Memories: two that are read, the one that is written, a workspace. */
enum { FIRST, SECOND, RESULT };

/* 4 channels to 6 in two groups; two axes, padded, with steps and dilation. */
static struct kern_conv conv_of(enum kern_conv_part part) {
  struct kern_conv c = {.part = part,
                        .spatial = 2,
                        .groups = 2,
                        .samples = 2,
                        .channels = 4,
                        .outputs = 6,
                        .in = {7, 5, 1},
                        .out = {4, 3, 1},
                        .window = {3, 2, 1},
                        .step = {2, 2, 1},
                        .dilation = {1, 3, 1},
                        .pad = {1, 1, 0},
                        .exact = true};
  c.out[1] = (5 + 2 - 3 - 1) / 2 + 1;
  c.x = part == KERN_CONV_INPUT_GRAD ? RESULT : FIRST;
  c.w = part == KERN_CONV_FORWARD ? SECOND : part == KERN_CONV_INPUT_GRAD ? FIRST : RESULT;
  c.y = part == KERN_CONV_FORWARD ? RESULT : SECOND;
  return c;
}

static void count(const struct kern_conv *c, int64_t n[3]) {
  n[0] = c->samples * c->in[0] * c->in[1] * c->channels;
  n[1] = c->outputs * c->window[0] * c->window[1] * c->channels / c->groups;
  n[2] = c->samples * c->out[0] * c->out[1] * c->outputs;
}

static struct kern *make_of(const struct kern_conv *c, quern_dtype dtype) {
  struct made m = made_new();
  int64_t n[3], of[3];
  struct kern_conv plain = conv_of(c->part);
  count(&plain, n);
  of[plain.x] = n[0], of[plain.w] = n[1], of[plain.y] = n[2];
  for (int i = 0; i < 3; i++) kern_add_mem(m.kern, dtype, i == RESULT ? KERN_OUT : KERN_IN, of[i]);
  struct kern_library_call call = {.kind = KERN_LIBRARY_CONV, .conv = *c};
  call.work = kern_add_mem(m.kern, QUERN_DTYPE_U8, KERN_WORK, 1);
  kern_add_library_call(m.kern, &call);
  made_finish(&m);
  return m.kern;
}
static struct kern *make(enum kern_conv_part part, quern_dtype dtype) {
  struct kern_conv c = conv_of(part);
  return make_of(&c, dtype);
}

/* ---- values ---------------------------------------------------------------------------------------------- */

/* In f64: for each result and each element it is made of, straight from the equation. */
static void reference(const struct kern_conv *c, double *x, double *w, double *y) {
  int64_t C = c->channels / c->groups, O = c->outputs / c->groups;
  for (int64_t n = 0; n < c->samples; n++)
    for (int64_t p = 0; p < c->out[0]; p++)
      for (int64_t q = 0; q < c->out[1]; q++)
        for (int64_t k = 0; k < c->outputs; k++)
          for (int64_t r = 0; r < c->window[0]; r++)
            for (int64_t s = 0; s < c->window[1]; s++)
              for (int64_t i = 0; i < C; i++) {
                int64_t h = p * c->step[0] + r * c->dilation[0] - c->pad[0];
                int64_t v = q * c->step[1] + s * c->dilation[1] - c->pad[1];
                if (h < 0 || h >= c->in[0] || v < 0 || v >= c->in[1]) continue;
                double *xe = &x[((n * c->in[0] + h) * c->in[1] + v) * c->channels + k / O * C + i];
                double *we = &w[((k * c->window[0] + r) * c->window[1] + s) * C + i];
                double *ye = &y[((n * c->out[0] + p) * c->out[1] + q) * c->outputs + k];
                if (c->part == KERN_CONV_FORWARD) *ye += *xe * *we;
                if (c->part == KERN_CONV_INPUT_GRAD) *xe += *ye * *we;
                if (c->part == KERN_CONV_WEIGHT_GRAD) *we += *ye * *xe;
              }
}

static void check_values(enum kern_conv_part part, quern_dtype dtype) {
  struct kern_conv c = conv_of(part);
  struct kern *kern = make(part, dtype);
  const int mem_of[3] = {c.x, c.w, c.y};
  void *mems[4] = {NULL, NULL, NULL, calloc(1, 1)};
  double *want[3];
  int64_t n[3];
  count(&c, n);
  for (int i = 0; i < 3; i++) {
    want[i] = calloc((size_t)n[i], sizeof **want);
    mems[mem_of[i]] = calloc((size_t)n[i], 4);
    if (mem_of[i] == RESULT) continue;
    test_fill((size_t)n[i], want[i], (uint64_t)i + 5);
    for (int64_t k = 0; k < n[i]; k++) {
      base_store_float(dtype, mems[mem_of[i]], (size_t)k, want[i][k]);
      want[i][k] = base_load_float(dtype, mems[mem_of[i]], (size_t)k);
    }
  }
  reference(&c, want[0], want[1], want[2]);
  EXPECT_OK(kern_verify(kern, NULL));
  EXPECT_OK(kern_interp(kern, &(struct kern_launch){.mems = mems}, KERN_CHECK_RACES));
  for (int i = 0; i < 3; i++) {
    double most = dtype == QUERN_DTYPE_F32 ? 1e-5 : 2 * pow(2, -base_dtypes[dtype].mantissa);
    for (int64_t k = 0; k < n[i]; k++) {
      double got = base_load_float(dtype, mems[mem_of[i]], (size_t)k);
      if (!(fabs(got - want[i][k]) <= most * (1 + fabs(want[i][k]))))
        fail_msg("part %d, tensor %d, element %lld is %.9g, not %.9g", (int)part, i, (long long)k, got, want[i][k]);
    }
    free(want[i]);
  }
  for (int i = 0; i < 4; i++) free(mems[i]);
  kern_free(kern);
}

static void test_values(void **state) {
  (void)state;
  for (int part = 0; part < KERN_CONV_PARTS; part++) {
    check_values((enum kern_conv_part)part, QUERN_DTYPE_F32);
    check_values((enum kern_conv_part)part, QUERN_DTYPE_BF16);
    check_values((enum kern_conv_part)part, QUERN_DTYPE_F16);
  }
}

/* ---- what is refused ------------------------------------------------------------------------------------- */

static void expect_refused(struct kern_conv c, const char *why) {
  struct kern *kern = make_of(&c, QUERN_DTYPE_BF16);
  EXPECT_ERROR(kern_verify(kern, NULL), INTERNAL, why);
  kern_free(kern);
}
#define WITH(field, value) ((c = conv_of(KERN_CONV_FORWARD)), c.field = (value), c)

static void test_refused(void **state) {
  (void)state;
  struct kern_conv c;
  expect_refused(WITH(part, KERN_CONV_PARTS), "part 3 of a convolution");
  expect_refused(WITH(spatial, 4), "4 axes");
  expect_refused(WITH(spatial, 0), "0 axes");
  expect_refused(WITH(groups, 4), "4 groups");
  expect_refused(WITH(groups, 0), "0 groups");
  expect_refused(WITH(samples, -1), "-1 samples");
  expect_refused(WITH(out[0], 5), "axis 0: 5 places of 7, window 3, step 2, dilation 1, padding 1");
  expect_refused(WITH(window[1], 9), "axis 1");
  expect_refused(WITH(step[0], 0), "step 0");
  expect_refused(WITH(pad[0], -1), "padding -1");
  expect_refused(WITH(pad[2], 1), "axis 2");
  expect_refused(WITH(x, 7), "x is memory 7");
  expect_refused(WITH(y, FIRST), "y, memory 0, has role");
  expect_refused(WITH(samples, 3), "x has elements 0 to");
  struct kern *kern = make(KERN_CONV_FORWARD, QUERN_DTYPE_F64);
  EXPECT_ERROR(kern_verify(kern, NULL), INTERNAL, "x is of f64, x of f64");
  kern_free(kern);
}

/* ---- text and hash --------------------------------------------------------------------------------------- */

static void test_text(void **state) {
  (void)state;
  struct kern *kern = make(KERN_CONV_WEIGHT_GRAD, QUERN_DTYPE_F16);
  struct base_str str;
  base_str_init(&str, &ctx->heap);
  EXPECT_OK(kern_print(&str, kern));
  assert_non_null(
      strstr(str.at, "convolution of 2 samples, 4 channels to 6 in 2 groups, gradient of the weight: from 7x5 to 4x2, "
                     "window 3x2, step 2x2, dilation 1x3, padding 1x1:"));
  assert_non_null(strstr(str.at, "w: mem 2"));
  base_str_fini(&str);
  kern_free(kern);
}

/* Every field makes another hash. */
static void test_hash(void **state) {
  (void)state;
  struct kern_conv all[] = {conv_of(KERN_CONV_FORWARD),     conv_of(KERN_CONV_FORWARD), conv_of(KERN_CONV_FORWARD),
                            conv_of(KERN_CONV_FORWARD),     conv_of(KERN_CONV_FORWARD), conv_of(KERN_CONV_INPUT_GRAD),
                            conv_of(KERN_CONV_WEIGHT_GRAD), conv_of(KERN_CONV_FORWARD)};
  uint64_t hashes[BASE_COUNT(all)];
  all[1].groups = 1;
  all[2].pad[0] = 2;
  all[3].exact = false;
  all[4].tf32 = true;
  all[7].dilation[1] = 2;
  for (size_t i = 0; i < BASE_COUNT(all); i++) {
    struct kern *kern = make_of(&all[i], QUERN_DTYPE_F32);
    hashes[i] = kern->hash;
    kern_free(kern);
    for (size_t k = 0; k < i; k++) assert_true(hashes[k] != hashes[i]);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(test_values), TEST(test_refused), TEST(test_text), TEST(test_hash)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
