/* tests/kern/test_library_attention.c -- calls of attention: what they compute, what is refused, as text, in the hash */
#include <math.h>

#include "kern_test.h"

struct shape {
  int64_t B, H, G, S, T, D, E;
  bool causal;
};

/* Memories: q k v side by side, y, lse, dy, then the gradients side by side. */
enum { QKV, Y, LSE, DY, GRADS };

static int64_t columns(const struct shape *s) { return s->H * s->D + s->G * (s->D + s->E); }

static struct kern_attention call_of(const struct shape *s) {
  int64_t w = columns(s), most = BASE_MAX(s->S, s->T);
  struct kern_attention a = {.batch = s->B,
                             .heads = s->H,
                             .kv_heads = s->G,
                             .queries = s->S,
                             .keys = s->T,
                             .width = s->D,
                             .value_width = s->E,
                             .scale = 0.3,
                             .causal = s->causal,
                             .exact = true,
                             .lse = LSE};
  a.q = (struct kern_view){QKV, 0, most * w, s->D, w};
  a.k = (struct kern_view){QKV, s->H * s->D, most * w, s->D, w};
  a.v = (struct kern_view){QKV, (s->H + s->G) * s->D, most * w, s->E, w};
  a.y = (struct kern_view){Y, 0, s->S * s->H * s->E, s->E, s->H * s->E};
  a.dy = a.y, a.dq = a.q, a.dk = a.k, a.dv = a.v;
  a.dy.mem = DY;
  a.dq.mem = a.dk.mem = a.dv.mem = GRADS;
  return a;
}

static struct kern *make(const struct shape *s, quern_dtype dtype, bool back) {
  struct made m = made_new();
  int64_t all = s->B * BASE_MAX(s->S, s->T) * columns(s), rows = s->B * s->S * s->H;
  enum kern_role made_here = back ? KERN_IN : KERN_OUT;
  kern_add_mem(m.kern, dtype, KERN_IN, all);
  kern_add_mem(m.kern, dtype, made_here, rows * s->E);
  kern_add_mem(m.kern, QUERN_DTYPE_F32, made_here, rows);
  if (back) {
    kern_add_mem(m.kern, dtype, KERN_IN, rows * s->E);
    kern_add_mem(m.kern, dtype, KERN_OUT, all);
  }
  struct kern_library_call call = {.kind = back ? KERN_LIBRARY_ATTENTION_BACK : KERN_LIBRARY_ATTENTION};
  call.attention = call_of(s);
  call.work = kern_add_mem(m.kern, QUERN_DTYPE_U8, KERN_WORK, 1);
  kern_add_library_call(m.kern, &call);
  made_finish(&m);
  return m.kern;
}

/* ---- values ---------------------------------------------------------------------------------------------- */

/* In f64 from the same elements: y, lse, then the gradient of the sum of y dy to all of q k v. */
static void reference(const struct shape *s, const double *qkv, const double *dy, double *y, double *lse, double *d) {
  int64_t w = columns(s), most = BASE_MAX(s->S, s->T);
  double p[64], dp[64];
  for (int64_t b = 0; b < s->B; b++)
    for (int64_t h = 0; h < s->H; h++)
      for (int64_t i = 0; i < s->S; i++) {
        int64_t g = h * s->G / s->H, row = (b * s->S + i) * s->H + h;
        int64_t n = s->causal ? BASE_MAX(BASE_MIN(i + s->T - s->S + 1, s->T), 0) : s->T;
        const double *q = qkv + (b * most + i) * w + h * s->D;
        double sum = 0, shift = 0;
        for (int64_t j = 0; j < n; j++) {
          const double *k = qkv + (b * most + j) * w + (s->H + g) * s->D;
          p[j] = dp[j] = 0;
          for (int64_t x = 0; x < s->D; x++) p[j] += q[x] * k[x];
          p[j] = exp(p[j] * 0.3);
          sum += p[j];
        }
        lse[(b * s->H + h) * s->S + i] = n > 0 ? log(sum) : -(double)INFINITY;
        for (int64_t j = 0; j < n; j++) {
          const double *v = qkv + (b * most + j) * w + (s->H + s->G) * s->D + g * s->E;
          double *dv = d + (b * most + j) * w + (s->H + s->G) * s->D + g * s->E;
          p[j] /= sum;
          for (int64_t x = 0; x < s->E; x++) {
            y[row * s->E + x] += p[j] * v[x];
            dp[j] += dy[row * s->E + x] * v[x];
            dv[x] += p[j] * dy[row * s->E + x];
          }
          shift += dp[j] * p[j];
        }
        for (int64_t j = 0; j < n; j++) {
          double ds = p[j] * (dp[j] - shift) * 0.3;
          for (int64_t x = 0; x < s->D; x++) {
            d[(b * most + i) * w + h * s->D + x] += ds * qkv[(b * most + j) * w + (s->H + g) * s->D + x];
            d[(b * most + j) * w + (s->H + g) * s->D + x] += ds * q[x];
          }
        }
      }
}

static void expect_near(quern_dtype dtype, int64_t n, const void *got, const double *want, const char *what) {
  double most = 4 * pow(2, -base_dtypes[dtype].mantissa);
  if (dtype == QUERN_DTYPE_F32) most = 1e-5;
  for (int64_t i = 0; i < n; i++) {
    double x = base_load_float(dtype, got, (size_t)i);
    if (x == want[i] || fabs(x - want[i]) <= most * (1 + fabs(want[i]))) continue;
    fail_msg("%s, element %lld is %.9g, not %.9g", what, (long long)i, x, want[i]);
  }
}

/* The parts of the whole that no head reads or writes keep what they were. */
static void check_shape(const struct shape *s, quern_dtype dtype) {
  int64_t all = s->B * BASE_MAX(s->S, s->T) * columns(s), rows = s->B * s->S * s->H, ny = rows * s->E;
  double *qkv = calloc((size_t)all, 8), *dy = calloc((size_t)ny, 8), *y = calloc((size_t)ny, 8);
  double *lse = calloc((size_t)rows, 8), *d = calloc((size_t)all, 8);
  void *mems[6] = {calloc((size_t)all, 2), calloc((size_t)ny, 2),  calloc((size_t)rows, 4),
                   calloc((size_t)ny, 2),  calloc((size_t)all, 2), calloc(1, 1)};
  test_fill((size_t)all, qkv, 3);
  test_fill((size_t)ny, dy, 4);
  for (int64_t i = 0; i < all; i++) {
    base_store_float(dtype, mems[QKV], (size_t)i, qkv[i]);
    qkv[i] = base_load_float(dtype, mems[QKV], (size_t)i);
  }
  for (int64_t i = 0; i < ny; i++) {
    base_store_float(dtype, mems[DY], (size_t)i, dy[i]);
    dy[i] = base_load_float(dtype, mems[DY], (size_t)i);
  }
  reference(s, qkv, dy, y, lse, d);
  struct kern *forward = make(s, dtype, false), *backward = make(s, dtype, true);
  EXPECT_OK(kern_verify(forward, NULL));
  EXPECT_OK(kern_verify(backward, NULL));
  void *three[] = {mems[QKV], mems[Y], mems[LSE], mems[5]};
  EXPECT_OK(kern_interp(forward, &(struct kern_launch){.mems = three}, KERN_CHECK_RACES));
  expect_near(dtype, ny, mems[Y], y, "y");
  expect_near(QUERN_DTYPE_F32, rows, mems[LSE], lse, "lse");
  EXPECT_OK(kern_interp(backward, &(struct kern_launch){.mems = mems}, 0));
  expect_near(dtype, all, mems[GRADS], d, "a gradient");
  kern_free(forward);
  kern_free(backward);
  for (int i = 0; i < 6; i++) free(mems[i]);
  free(qkv), free(dy), free(y), free(lse), free(d);
}

static void test_values(void **state) {
  (void)state;
  static const struct shape shapes[] = {
      {1, 1, 1, 1, 1, 8, 8, false}, {2, 2, 2, 5, 5, 8, 8, true},   {1, 4, 2, 6, 6, 16, 8, true},
      {2, 3, 1, 4, 9, 8, 16, true}, {1, 2, 1, 9, 4, 8, 8, true},   {1, 2, 2, 7, 3, 8, 8, false},
      {1, 1, 1, 3, 33, 8, 8, true}, {3, 2, 2, 1, 7, 24, 24, true},
  };
  for (size_t i = 0; i < BASE_COUNT(shapes); i++) {
    check_shape(&shapes[i], QUERN_DTYPE_BF16);
    check_shape(&shapes[i], QUERN_DTYPE_F16);
  }
}

/* ---- what is refused ------------------------------------------------------------------------------------- */

static const struct shape plain = {2, 2, 1, 4, 4, 8, 8, true};

#define WRONG(BACK, CHANGE, TEXT)                                                                                      \
  do {                                                                                                                 \
    struct kern *kern = make(&plain, QUERN_DTYPE_BF16, (BACK));                                                        \
    struct kern_attention *a = &kern->library_call.attention;                                                          \
    (void)a;                                                                                                           \
    EXPECT_OK(kern_verify(kern, NULL));                                                                                \
    CHANGE;                                                                                                            \
    EXPECT_ERROR(kern_verify(kern, NULL), INTERNAL, TEXT);                                                             \
    kern_free(kern);                                                                                                   \
  } while (0)

static void test_refused(void **state) {
  (void)state;
  WRONG(false, a->batch = 0, "extent 0 of attention is 0");
  WRONG(false, a->keys = -1, "extent 4 of attention is -1");
  WRONG(false, a->heads = 3; a->kv_heads = 2, "3 heads share 2");
  WRONG(false, a->q.mem = 99, "q is memory 99");
  WRONG(false, kern->mems[QKV].dtype = QUERN_DTYPE_F32, "not of 16 bits");
  WRONG(false, kern->mems[Y].dtype = QUERN_DTYPE_F16, "y is of f16, q of bf16");
  WRONG(false, a->k.at += 1000, "k has elements");
  WRONG(false, a->v.mem = Y, "v, memory 1, has role");
  WRONG(false, a->y.row = 8, "elements of y lie in one place");
  WRONG(false, a->y.head = 0, "elements of y lie in one place");
  WRONG(false, a->lse = Y, "lse is of bf16");
  WRONG(false, kern->mems[LSE].count = 3, "lse has elements 0 to 15 of a memory of 3");
  WRONG(true, a->lse = KERN_NONE, "lse is memory -1");
  WRONG(true, a->dq.mem = QKV, "dq, memory 0, has role");
  WRONG(true, a->dy.batch = -1, "dy has extent 2 with stride -1");
  WRONG(true, a->dk.row = 0, "elements of dk lie in one place");
  WRONG(true, a->dv.mem = KERN_NONE, "dv is memory -1");
}

/* ---- text and hash --------------------------------------------------------------------------------------- */

static void test_text(void **state) {
  (void)state;
  struct kern *kern = make(&plain, QUERN_DTYPE_BF16, true);
  struct base_str text;
  base_str_init(&text, &ctx->heap);
  EXPECT_OK(kern_print(&text, kern));
  assert_non_null(
      strstr(text.at, "attention backward of 2 x 2 / 1 heads, 4 queries, 4 keys, width 8 and 8, scale 0.3, causal:"));
  assert_non_null(strstr(text.at, "  k: mem 0, 16 + 128 n + 8 h + 32 t + d\n"));
  assert_non_null(strstr(text.at, "  dv: mem 4, 24 + 128 n + 8 h + 32 t + d\n"));
  assert_non_null(strstr(text.at, "  lse: mem 2\n"));
  base_str_fini(&text);
  kern_free(kern);
}

#define DIFFERS(BACK, CHANGE)                                                                                          \
  do {                                                                                                                 \
    struct kern *one = make(&plain, QUERN_DTYPE_BF16, (BACK)), *kern = make(&plain, QUERN_DTYPE_BF16, (BACK));         \
    struct kern_attention *a = &kern->library_call.attention;                                                          \
    assert_true(one->hash == kern->hash);                                                                              \
    CHANGE;                                                                                                            \
    EXPECT_OK(kern_finish(kern, "test", NULL));                                                                        \
    assert_true(one->hash != kern->hash);                                                                              \
    kern_free(one);                                                                                                    \
    kern_free(kern);                                                                                                   \
  } while (0)

static void test_hash(void **state) {
  (void)state;
  DIFFERS(false, a->causal = false);
  DIFFERS(false, a->scale = 0.31);
  DIFFERS(false, a->lse = KERN_NONE);
  DIFFERS(false, a->k.at = 0);
  DIFFERS(true, a->exact = false);
  DIFFERS(true, a->dv.head = 16);
  DIFFERS(true, a->queries = 3);
}

static void test_no_memory(void **state) {
  (void)state;
  struct fault fault = {0};
  while (fault_next(&fault)) {
    test_renew();
    struct kern *kern = make(&plain, QUERN_DTYPE_BF16, false);
    uint16_t qkv[2 * 4 * 32] = {0}, y[2 * 4 * 16];
    float lse[16];
    char work;
    void *mems[] = {qkv, y, lse, &work};
    fault_begin(&fault);
    quern_status status = kern_interp(kern, &(struct kern_launch){.mems = mems}, 0);
    fault_end(&fault);
    EXPECT_FAULT(&fault, status);
    kern_free(kern);
  }
  assert_true(fault.n > 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(test_values), TEST(test_refused), TEST(test_text), TEST(test_hash),
                                     TEST(test_no_memory)};
  return cmocka_run_group_tests_name("kern/call_attention", tests, NULL, NULL);
}
