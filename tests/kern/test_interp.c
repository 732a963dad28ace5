/* tests/kern/test_interp.c -- the interpreter: every op on edge values of its dtypes, memory, blocks, calls, races */
#include <float.h>
#include <inttypes.h>
#include <math.h>

#include "kern/kern_test.h"

/* ---- one op on arrays ------------------------------------------------------------------------------------------ */

/* out[i] = op(a[i], b[i], c[i]): vectors of 4 lanes and a rest. */
static void apply(enum kern_op op, quern_dtype dtype, quern_dtype result, int n_args, int64_t n, const void *const *in,
                  void *out) {
  struct made m = made_new();
  struct kern_builder *b = &m.b;
  for (int i = 0; i < n_args; i++) kern_add_mem(m.kern, dtype, KERN_IN, n);
  kern_add_mem(m.kern, result, KERN_OUT, n);
  made_phase(&m, KERN_FIXED_TASKS(1));
  kern_id i = kern_for(b, I(b, 0), I(b, n), 4), left = kern_sub(b, I(b, n), i), x[3] = {0};
  for (int k = 0; k < n_args; k++) x[k] = kern_load_n(b, kern_mem(b, k), i, 4, left);
  kern_id y = n_args == 1   ? kern_un(b, op, x[0])
              : n_args == 2 ? kern_bin(b, op, x[0], x[1])
                            : kern_fma(b, x[0], x[1], x[2]);
  if (op == KERN_CAST) y = kern_cast(b, x[0], result);
  kern_store_n(b, kern_mem(b, n_args), i, y, left);
  kern_end(b);
  made_finish(&m);
  EXPECT_OK(kern_verify(m.kern, NULL));
  void *mems[4] = {NULL};
  for (int k = 0; k < n_args; k++) memcpy(&mems[k], &in[k], sizeof *mems);
  mems[n_args] = out;
  EXPECT_OK(kern_interp(m.kern, &(struct kern_launch){.mems = mems}, KERN_CHECK_RACES));
  kern_free(m.kern);
}

/* ---- integers of up to 32 bits: against arithmetic in int64_t and double --------------------------------------- */

static const quern_dtype narrow[] = {QUERN_DTYPE_I8, QUERN_DTYPE_I16, QUERN_DTYPE_I32,
                                     QUERN_DTYPE_U8, QUERN_DTYPE_U16, QUERN_DTYPE_U32};

static int64_t floor_quotient(int64_t x, int64_t y) { return (int64_t)floor((double)x / (double)y); }

/* What the op gives before the low bits are kept. */
static int64_t expected_int(enum kern_op op, int64_t x, int64_t y, int bits, bool is_signed) {
  int64_t power = y >= 0 && y < bits ? (int64_t)ldexp(1, (int)y) : 0;
  switch ((int)op) {
  case KERN_ADD: return x + y;
  case KERN_SUB: return x - y;
  case KERN_MUL: return (int64_t)((uint64_t)x * (uint64_t)y);
  case KERN_DIV: return y == 0 ? 0 : floor_quotient(x, y);
  case KERN_MOD: return y == 0 ? 0 : x - y * floor_quotient(x, y);
  case KERN_NEG: return -x;
  case KERN_ABS: return x < 0 ? -x : x;
  case KERN_MAX: return x > y ? x : y;
  case KERN_MIN: return x > y ? y : x;
  case KERN_AND: return x & y;
  case KERN_OR: return x | y;
  case KERN_XOR: return x ^ y;
  case KERN_NOT: return -x - 1;
  case KERN_SHL: return (int64_t)((uint64_t)x * (uint64_t)power);
  case KERN_SHR: return power != 0 ? floor_quotient(x, power) : is_signed && x < 0 ? -1 : 0;
  case KERN_EQ: return x == y;
  case KERN_LT: return x < y;
  case KERN_LE: return x <= y;
  default: fail_msg("op %d", (int)op); return 0;
  }
}

static void test_narrow_ints(void **state) {
  (void)state;
  static const enum kern_op ops[] = {KERN_ADD, KERN_SUB, KERN_MUL, KERN_DIV, KERN_MOD, KERN_NEG,
                                     KERN_ABS, KERN_MAX, KERN_MIN, KERN_AND, KERN_OR,  KERN_XOR,
                                     KERN_NOT, KERN_SHL, KERN_SHR, KERN_EQ,  KERN_LT,  KERN_LE};
  enum { EDGES = 13 };
  for (size_t d = 0; d < BASE_COUNT(narrow); d++) {
    const struct base_dtype_info *info = &base_dtypes[narrow[d]];
    bool is_signed = info->class == BASE_SIGNED;
    int64_t top = (int64_t)ldexp(1, info->bits - is_signed) - 1, low = is_signed ? -top - 1 : 0;
    int64_t edges[EDGES] = {
        0, 1, 2, 3, 7, info->bits - 1, info->bits, top, top - 1, low, low + 1, is_signed ? -1 : 5, is_signed ? -3 : 6};
    _Alignas(8) char x[EDGES * EDGES * 4], y[EDGES * EDGES * 4], out[EDGES * EDGES * 4];
    for (size_t i = 0; i < EDGES * EDGES; i++) {
      base_store_int(narrow[d], x, i, (uint64_t)edges[i / EDGES]);
      base_store_int(narrow[d], y, i, (uint64_t)edges[i % EDGES]);
    }
    for (size_t k = 0; k < BASE_COUNT(ops); k++) {
      bool mask = kern_ops[ops[k]].result == KERN_RESULT_MASK;
      quern_dtype result = mask ? QUERN_DTYPE_BOOL : narrow[d];
      apply(ops[k], narrow[d], result, kern_ops[ops[k]].n_args, EDGES * EDGES, (const void *[]){x, y}, out);
      for (size_t i = 0; i < EDGES * EDGES; i++) {
        int64_t a = edges[i / EDGES], b = edges[i % EDGES];
        char want[8] = {0};
        base_store_int(result, want, 0, (uint64_t)expected_int(ops[k], a, b, info->bits, is_signed));
        if (memcmp(want, out + i * base_dtypes[result].size, base_dtypes[result].size) == 0) continue;
        print_error("%s.%s of %" PRId64 " and %" PRId64 "\n", kern_ops[ops[k]].name, info->name, a, b);
        fail();
      }
    }
  }
}

/* ---- integers of 64 bits: a table ------------------------------------------------------------------------------ */

#define LOW INT64_MIN
#define TOP INT64_MAX
static const struct {
  enum kern_op op;
  int64_t x, y, want;
} rows_i64[] = {
    {KERN_ADD, TOP, 1, LOW},  {KERN_SUB, LOW, 1, TOP},  {KERN_MUL, TOP, 2, -2},
    {KERN_MUL, LOW, -1, LOW}, {KERN_DIV, 7, 2, 3},      {KERN_DIV, -7, 2, -4},
    {KERN_DIV, 7, -2, -4},    {KERN_DIV, -7, -2, 3},    {KERN_DIV, LOW, -1, LOW},
    {KERN_DIV, 5, 0, 0},      {KERN_DIV, LOW, 1, LOW},  {KERN_DIV, LOW, 3, -3074457345618258603},
    {KERN_MOD, 7, 3, 1},      {KERN_MOD, -7, 3, 2},     {KERN_MOD, 7, -3, -2},
    {KERN_MOD, -7, -3, -1},   {KERN_MOD, LOW, -1, 0},   {KERN_MOD, 5, 0, 0},
    {KERN_MOD, LOW, 3, 1},    {KERN_MOD, TOP, LOW, -1}, {KERN_NEG, LOW, 0, LOW},
    {KERN_NEG, 5, 0, -5},     {KERN_ABS, LOW, 0, LOW},  {KERN_ABS, -9, 0, 9},
    {KERN_MAX, -1, 1, 1},     {KERN_MIN, -1, 1, -1},    {KERN_AND, -1, TOP, TOP},
    {KERN_OR, LOW, TOP, -1},  {KERN_XOR, -1, TOP, LOW}, {KERN_NOT, 0, 0, -1},
    {KERN_NOT, TOP, 0, LOW},  {KERN_SHL, 1, 63, LOW},   {KERN_SHL, 1, 64, 0},
    {KERN_SHL, 1, -1, 0},     {KERN_SHL, -1, 4, -16},   {KERN_SHR, LOW, 63, -1},
    {KERN_SHR, -1, 64, -1},   {KERN_SHR, TOP, 64, 0},   {KERN_SHR, -5, 1, -3},
    {KERN_SHR, -5, -1, -1},   {KERN_EQ, LOW, LOW, 1},   {KERN_EQ, LOW, TOP, 0},
    {KERN_LT, LOW, TOP, 1},   {KERN_LE, TOP, LOW, 0},
};
static const struct {
  enum kern_op op;
  uint64_t x, y, want;
} rows_u64[] = {
    {KERN_ADD, UINT64_MAX, 1, 0},
    {KERN_SUB, 0, 1, UINT64_MAX},
    {KERN_MUL, UINT64_MAX, UINT64_MAX, 1},
    {KERN_DIV, UINT64_MAX, 2, TOP},
    {KERN_DIV, 3, 0, 0},
    {KERN_MOD, UINT64_MAX, 10, 5},
    {KERN_MOD, 3, 0, 0},
    {KERN_NEG, 1, 0, UINT64_MAX},
    {KERN_ABS, UINT64_MAX, 0, UINT64_MAX},
    {KERN_MAX, UINT64_MAX, 1, UINT64_MAX},
    {KERN_MIN, UINT64_MAX, 1, 1},
    {KERN_SHL, 3, 63, (uint64_t)1 << 63},
    {KERN_SHL, 3, UINT64_MAX, 0},
    {KERN_SHR, UINT64_MAX, 63, 1},
    {KERN_SHR, UINT64_MAX, 64, 0},
    {KERN_NOT, 0, 0, UINT64_MAX},
    {KERN_LT, 1, UINT64_MAX, 1},
    {KERN_LE, UINT64_MAX, 1, 0},
    {KERN_EQ, 4, 4, 1},
    {KERN_AND, 12, 10, 8},
    {KERN_OR, 12, 10, 14},
    {KERN_XOR, 12, 10, 6},
};

static void expect_row(enum kern_op op, quern_dtype dtype, uint64_t x, uint64_t y, uint64_t want) {
  bool mask = kern_ops[op].result == KERN_RESULT_MASK;
  uint64_t out = 0;
  apply(op, dtype, mask ? QUERN_DTYPE_BOOL : dtype, kern_ops[op].n_args, 1, (const void *[]){&x, &y}, &out);
  if (out == want) return;
  print_error("%s.%s of %" PRIx64 " and %" PRIx64 ": %" PRIx64 ", not %" PRIx64 "\n", kern_ops[op].name,
              base_dtypes[dtype].name, x, y, out, want);
  fail();
}

static void test_wide_ints(void **state) {
  (void)state;
  for (size_t i = 0; i < BASE_COUNT(rows_i64); i++)
    expect_row(rows_i64[i].op, QUERN_DTYPE_I64, (uint64_t)rows_i64[i].x, (uint64_t)rows_i64[i].y,
               (uint64_t)rows_i64[i].want);
  for (size_t i = 0; i < BASE_COUNT(rows_u64); i++)
    expect_row(rows_u64[i].op, QUERN_DTYPE_U64, rows_u64[i].x, rows_u64[i].y, rows_u64[i].want);
}

static void test_bools(void **state) {
  (void)state;
  const uint8_t x[4] = {0, 0, 1, 1}, y[4] = {0, 1, 0, 1};
  static const struct {
    enum kern_op op;
    uint8_t want[4];
  } rows[] = {
      {KERN_MAX, {0, 1, 1, 1}}, {KERN_MIN, {0, 0, 0, 1}}, {KERN_AND, {0, 0, 0, 1}},
      {KERN_OR, {0, 1, 1, 1}},  {KERN_XOR, {0, 1, 1, 0}}, {KERN_NOT, {1, 1, 0, 0}},
      {KERN_EQ, {1, 0, 0, 1}},  {KERN_LT, {0, 1, 0, 0}},  {KERN_LE, {1, 1, 0, 1}},
  };
  for (size_t i = 0; i < BASE_COUNT(rows); i++) {
    uint8_t out[4] = {9, 9, 9, 9};
    apply(rows[i].op, QUERN_DTYPE_BOOL, QUERN_DTYPE_BOOL, kern_ops[rows[i].op].n_args, 4, (const void *[]){x, y}, out);
    assert_memory_equal(out, rows[i].want, 4);
  }
}

/* ---- floats ----------------------------------------------------------------------------------------------------- */

#define N FLT_MIN
static const float edges_f32[] = {0.0f,
                                  -0.0f,
                                  1.0f,
                                  -1.0f,
                                  0.5f,
                                  1.5f,
                                  -1.5f,
                                  2.5f,
                                  -2.5f,
                                  3.0f,
                                  1e-40f,
                                  -1e-40f,
                                  N,
                                  -N,
                                  16777217.0f,
                                  8388607.5f,
                                  FLT_MAX,
                                  -FLT_MAX,
                                  INFINITY,
                                  -INFINITY,
                                  NAN,
                                  0.1f,
                                  1.0f + FLT_EPSILON};
#undef N
enum { EDGES_F = (int)BASE_COUNT(edges_f32), PAIRS_F = EDGES_F * EDGES_F };

/* In double, then rounded once more: for +, -, *, / and the root of floats that gives the same (Figueroa, 1995). */
static double expected_float(enum kern_op op, double x, double y) {
  double least = x < y ? x : y, most = x < y ? y : x;
  switch ((int)op) {
  case KERN_ADD: return x + y;
  case KERN_SUB: return x - y;
  case KERN_MUL: return x * y;
  case KERN_DIV: return x / y;
  case KERN_NEG: return copysign(x, signbit(x) ? 1 : -1);
  case KERN_ABS: return copysign(x, 1);
  case KERN_SQRT: return sqrt(x);
  case KERN_FLOOR: return floor(x);
  case KERN_CEIL: return ceil(x);
  case KERN_ROUND: return fabs(x) < 0x1p52 ? copysign(fabs(x) + 0x1p52 - 0x1p52, x) : x;
  case KERN_TRUNC: return trunc(x);
  case KERN_MAX: return isnan(x) || isnan(y) ? (double)NAN : x == y ? (signbit(x) ? y : x) : most;
  case KERN_MIN: return isnan(x) || isnan(y) ? (double)NAN : x == y ? (signbit(x) ? x : y) : least;
  case KERN_EQ: return !isnan(x) && !isnan(y) && !(x < y) && !(x > y);
  case KERN_LT: return isless(x, y);
  case KERN_LE: return islessequal(x, y);
  default: fail_msg("op %d", (int)op); return 0;
  }
}

static const enum kern_op float_ops[] = {KERN_ADD,  KERN_SUB,   KERN_MUL,  KERN_DIV,   KERN_NEG,   KERN_ABS,
                                         KERN_SQRT, KERN_FLOOR, KERN_CEIL, KERN_ROUND, KERN_TRUNC, KERN_MAX,
                                         KERN_MIN,  KERN_EQ,    KERN_LT,   KERN_LE};

static void test_floats(void **state) {
  (void)state;
  static const quern_dtype dtypes[] = {QUERN_DTYPE_F32, QUERN_DTYPE_F64};
  for (size_t d = 0; d < 2; d++) {
    _Alignas(8) char x[PAIRS_F * 8], y[PAIRS_F * 8], out[PAIRS_F * 8];
    size_t size = base_dtypes[dtypes[d]].size;
    for (size_t i = 0; i < PAIRS_F; i++) {
      base_store_float(dtypes[d], x, i, (double)edges_f32[i / EDGES_F] * (d == 0 ? 1 : 1.0000000001));
      base_store_float(dtypes[d], y, i, (double)edges_f32[i % EDGES_F]);
    }
    for (size_t k = 0; k < BASE_COUNT(float_ops); k++) {
      bool mask = kern_ops[float_ops[k]].result == KERN_RESULT_MASK;
      quern_dtype result = mask ? QUERN_DTYPE_BOOL : dtypes[d];
      apply(float_ops[k], dtypes[d], result, kern_ops[float_ops[k]].n_args, PAIRS_F, (const void *[]){x, y}, out);
      for (size_t i = 0; i < PAIRS_F; i++) {
        double a = base_load_float(dtypes[d], x, i), b = base_load_float(dtypes[d], y, i);
        double want = expected_float(float_ops[k], a, b);
        char bits[8] = {0};
        if (mask)
          bits[0] = want != 0;
        else
          base_store_float(result, bits, 0, want);
        bool same = mask ? out[i] == bits[0] : memcmp(bits, out + i * size, size) == 0;
        if (!mask && isnan(want)) same = isnan(base_load_float(result, out, i));
        if (same) continue;
        print_error("%s.%s of %a and %a\n", kern_ops[float_ops[k]].name, base_dtypes[dtypes[d]].name, a, b);
        fail();
      }
    }
  }
}

/* Rounded once: x y + z where rounding the product first, or the sum to double first, gives something else. */
static void test_fma(void **state) {
  (void)state;
  const float x[4] = {1 + 0x1p-12f, 1 + 0x1p-23f, 0x1p-30f, INFINITY}, y[4] = {1 + 0x1p-12f, 1 - 0x1p-23f, 0x1p-30f, 0};
  const float z[4] = {-1 - 0x1p-11f, -1, 1 + 0x1p-23f, 1};
  float out[4];
  apply(KERN_FMA, QUERN_DTYPE_F32, QUERN_DTYPE_F32, 3, 4, (const void *[]){x, y, z}, out);
  assert_true(out[0] == 0x1p-24f && out[1] == -0x1p-46f && out[2] == 1 + 0x1p-23f && isnan(out[3]));
  const float p = 1 + 0x1p-12f, q = 0x1p-24f + 0x1p-48f,
              one = 1; /* 1 + p q is just above the middle of 1 and 1 + 2^-23 */
  apply(KERN_FMA, QUERN_DTYPE_F32, QUERN_DTYPE_F32, 3, 1, (const void *[]){&p, &q, &one}, out);
  assert_true(out[0] == 1 + 0x1p-23f);
  const double dx = 1 + 0x1p-27, dz = -1 - 0x1p-26;
  double dout;
  apply(KERN_FMA, QUERN_DTYPE_F64, QUERN_DTYPE_F64, 3, 1, (const void *[]){&dx, &dx, &dz}, &dout);
  assert_true(dout == 0x1p-54);
}

/* Subnormal results are rounded once, to even. */
static void test_scale(void **state) {
  (void)state;
  const float a[4] = {1.5f, 1 + 0x1p-23f, 1, NAN}, b[4] = {-149, -126, 128, NAN};
  float out[4];
  apply(KERN_SCALE, QUERN_DTYPE_F32, QUERN_DTYPE_F32, 2, 4, (const void *[]){a, b}, out);
  assert_true(out[0] == 0x1p-148f && out[1] == 0x1.000002p-126f && isinf(out[2]) && isnan(out[3]));
  const double x = -1.25, y = -1073;
  double wide;
  apply(KERN_SCALE, QUERN_DTYPE_F64, QUERN_DTYPE_F64, 2, 1, (const void *[]){&x, &y}, &wide);
  assert_true(wide == -0x1p-1073); /* 2.5 of the least numbers */
}

/* Every dtype to every other, against base_convert. */
static void test_casts(void **state) {
  (void)state;
  static const double values[] = {0,
                                  -0.0,
                                  1,
                                  -1,
                                  0.5,
                                  1.5,
                                  2.5,
                                  -2.5,
                                  100.7,
                                  127,
                                  128,
                                  255,
                                  256,
                                  -129,
                                  448,
                                  500,
                                  65504,
                                  65520,
                                  1e9,
                                  3e9,
                                  -3e9,
                                  1e19,
                                  -1e19,
                                  1e39,
                                  1e-8,
                                  (double)INFINITY,
                                  (double)-INFINITY,
                                  (double)NAN};
  enum { COUNT = (int)BASE_COUNT(values) };
  for (int from = 0; from < QUERN_DTYPE_COUNT; from++) {
    _Alignas(8) char x[COUNT * 8], out[COUNT * 8], want[COUNT * 8];
    for (size_t i = 0; i < COUNT; i++) base_convert((quern_dtype)from, x, i, QUERN_DTYPE_F64, values, i);
    for (int to = 0; to < QUERN_DTYPE_COUNT; to++) {
      if (to == from) continue;
      for (size_t i = 0; i < COUNT; i++) base_convert((quern_dtype)to, want, i, (quern_dtype)from, x, i);
      apply(KERN_CAST, (quern_dtype)from, (quern_dtype)to, 1, COUNT, (const void *[]){x}, out);
      assert_memory_equal(out, want, COUNT * base_dtypes[to].size);
    }
  }
}

/* ---- lanes ------------------------------------------------------------------------------------------------------ */

/* Runs a kernel that stores vectors of one dtype one after another; returns them. */
struct lanes {
  struct made m;
  kern_id out;
  int64_t at;
};

static struct lanes lanes_new(quern_dtype dtype, int64_t n) {
  struct lanes l = {.m = made_new()};
  kern_add_mem(l.m.kern, dtype, KERN_OUT, n);
  made_phase(&l.m, KERN_FIXED_TASKS(1));
  l.out = kern_mem(&l.m.b, 0);
  return l;
}

static void lanes_put(struct lanes *l, kern_id value) {
  kern_store(&l->m.b, l->out, I(&l->m.b, l->at), value);
  l->at += kern_at_id(&l->m.b, value)->lanes;
}

static void lanes_run(struct lanes *l, void *out) {
  made_finish(&l->m);
  EXPECT_OK(kern_verify(l->m.kern, NULL));
  EXPECT_OK(kern_interp(l->m.kern, &(struct kern_launch){.mems = &out}, 0));
  kern_free(l->m.kern);
}

static void test_lanes(void **state) {
  (void)state;
  static const quern_dtype dtypes[] = {QUERN_DTYPE_U8, QUERN_DTYPE_I16, QUERN_DTYPE_I32, QUERN_DTYPE_I64};
  for (size_t d = 0; d < BASE_COUNT(dtypes); d++) {
    struct lanes l = lanes_new(dtypes[d], 64);
    struct kern_builder *b = &l.m.b;
    kern_id x = kern_lane(b, dtypes[d], 8), three = kern_const_i(b, dtypes[d], 8, 3);
    kern_id y = kern_add(b, x, kern_const_i(b, dtypes[d], 8, 50));
    lanes_put(&l, kern_low(b, x));                                       /* 0 1 2 3 */
    lanes_put(&l, kern_high(b, x));                                      /* 4 5 6 7 */
    lanes_put(&l, kern_join(b, kern_high(b, y), kern_low(b, x)));        /* 54 55 56 57 0 1 2 3 */
    lanes_put(&l, kern_shuffle(b, x, y, 4, (int[]){7, 8, 0, 15}));       /* 7 50 0 57 */
    lanes_put(&l, kern_splat(b, kern_extract(b, y, 6), 4));              /* 56 56 56 56 */
    lanes_put(&l, kern_select(b, kern_bin(b, KERN_LT, x, three), x, y)); /* 0 1 2 53 54 55 56 57 */
    kern_id var = kern_var(b, x);
    kern_id before = kern_get(b, var);
    kern_set(b, var, y);
    lanes_put(&l, kern_low(b, before));           /* 0 1 2 3 */
    lanes_put(&l, kern_low(b, kern_get(b, var))); /* 50 51 52 53 */
    static const int64_t want[] = {0,  1,  2,  3,  4, 5, 6, 7,  54, 55, 56, 57, 0, 1, 2, 3, 7,  50, 0,  57,
                                   56, 56, 56, 56, 0, 1, 2, 53, 54, 55, 56, 57, 0, 1, 2, 3, 50, 51, 52, 53};
    _Alignas(8) char out[64 * 8];
    lanes_run(&l, out);
    for (size_t i = 0; i < BASE_COUNT(want); i++) assert_int_equal((int64_t)base_load_int(dtypes[d], out, i), want[i]);
  }
}

/* Neighbors first: (1 + e) + (e + e) is 1 + e + 2 e in the order of pairs, and 1 when added one after another. */
static void test_fold(void **state) {
  (void)state;
  static const float in[8] = {1, 0x1p-24f, 0x1p-24f, 0x1p-24f, -1, 0, 0, -0x1p-24f};
  struct made m = made_new();
  kern_add_mem(m.kern, QUERN_DTYPE_F32, KERN_IN, 8);
  kern_add_mem(m.kern, QUERN_DTYPE_F32, KERN_OUT, 4);
  kern_add_mem(m.kern, QUERN_DTYPE_I16, KERN_OUT, 1);
  made_phase(&m, KERN_FIXED_TASKS(1));
  struct kern_builder *b = &m.b;
  kern_id x = kern_load(b, kern_mem(b, 0), I(b, 0), 8), y = kern_mem(b, 1);
  static const enum kern_op ops[] = {KERN_ADD, KERN_MUL, KERN_MAX, KERN_MIN};
  for (int i = 0; i < 4; i++) {
    kern_id all = kern_hreduce(b, ops[i], x);
    kern_store(b, y, I(b, i), all);
  }
  m.kern->phases[0].block_threads = 1024;
  kern_id wide = kern_lane(b, QUERN_DTYPE_I16, KERN_BLOCK_LANES), sum = kern_hreduce(b, KERN_ADD, wide);
  kern_store(b, kern_mem(b, 2), I(b, 0), sum);
  made_finish(&m);
  EXPECT_OK(kern_verify(m.kern, NULL));
  float out[4];
  int16_t wraps;
  EXPECT_OK(kern_interp(m.kern, &(struct kern_launch){.mems = (void *[]){(void *)in, out, &wraps}}, 0));
  assert_true(out[0] == (1 + 0x1p-23f) + (-1 - 0x1p-24f) && out[1] == 0 && out[2] == 1 && out[3] == -1);
  assert_int_equal(wraps, (int16_t)(uint16_t)((uint64_t)KERN_BLOCK_LANES * (KERN_BLOCK_LANES - 1) / 2));
  kern_free(m.kern);
}

/* Number i of what a thread of a warp has of 16 x 8 sums, of the left side of a product (the third before the second), of its 8 x 8 right
** side: where it lies, row by row. */
enum { SUMS, LEFT, RIGHT };
static kern_id place_in_matrix(struct kern_builder *b, int which, int i) {
  kern_id lane = kern_lane(b, QUERN_DTYPE_I64, 32), row = kern_idiv(b, lane, 4), column = kern_imod(b, lane, 4);
  int lower = which == RIGHT ? 0 : which == LEFT ? i % 2 : i / 2, right = which == LEFT ? i / 2 : i % 2;
  row = kern_mul(b, row, kern_const_i(b, QUERN_DTYPE_I64, 32, 8));
  column = kern_mul(b, column, kern_const_i(b, QUERN_DTYPE_I64, 32, 2));
  kern_id first = kern_const_i(b, QUERN_DTYPE_I64, 32, 64 * lower + right), at = kern_add(b, row, column);
  return kern_add(b, at, first);
}
static kern_id take_matrix(struct kern_builder *b, int mem, int which) {
  kern_id x[4];
  for (int i = 0; i < 4; i++)
    x[i] = kern_gather(b, kern_mem(b, mem), place_in_matrix(b, which, i % (which == RIGHT ? 2 : 4)));
  if (which == RIGHT) return kern_interleave(b, x[0], x[1]);
  kern_id even = kern_interleave(b, x[0], x[2]), odd = kern_interleave(b, x[1], x[3]);
  return kern_interleave(b, even, odd);
}

/* sums + left right' of matrices whose numbers have more bits than count. */
static void test_mma(void **state) {
  (void)state;
  float left[128], right[64], sums[128], out[128];
  struct made m = made_new();
  static const int counts[] = {128, 128, 64};
  for (int i = 0; i < 3; i++) kern_add_mem(m.kern, QUERN_DTYPE_F32, KERN_IN, counts[i]);
  kern_add_mem(m.kern, QUERN_DTYPE_F32, KERN_OUT, 128);
  made_phase(&m, KERN_FIXED_TASKS(1));
  m.kern->phases[0].block_threads = 32;
  struct kern_builder *b = &m.b;
  kern_id x = take_matrix(b, SUMS, SUMS), y = take_matrix(b, LEFT, LEFT), z = take_matrix(b, RIGHT, RIGHT);
  kern_id all = kern_mma(b, x, y, z);
  for (int i = 0; i < 4; i++)
    kern_scatter_n(b, kern_mem(b, 3), place_in_matrix(b, SUMS, i), kern_deinterleave(b, all, 4, i), KERN_NONE);
  made_finish(&m);
  EXPECT_OK(kern_verify(m.kern, NULL));
  for (int i = 0; i < 128; i++) {
    sums[i] = (float)(i - 50);
    left[i] = (float)(i * i % 37 + 1) + 0x1p-14f; /* the last is not looked at */
    right[i % 64] = (float)(i % 64 * 7 % 23 - 11);
  }
  EXPECT_OK(kern_interp(m.kern, &(struct kern_launch){.mems = (void *[]){sums, left, right, out}}, 0));
  for (int i = 0; i < 128; i++) {
    float want = sums[i];
    for (int k = 0; k < 8; k++) want += floorf(left[i / 8 * 8 + k]) * right[i % 8 * 8 + k];
    assert_true(out[i] == want);
  }
  kern_free(m.kern);
}

/* What goes with it: numbers of 11 bits, powers of two, lanes of other threads. */
static void test_mma_beside(void **state) {
  (void)state;
  static const float in[8] = {1 + 0x1p-11f, 1 + 0x3p-11f, 1 + 0x1.8p-11f, -0x1p-140f, INFINITY, -INFINITY, NAN, -126};
  float out[16], swapped[32];
  struct made m = made_new();
  kern_add_mem(m.kern, QUERN_DTYPE_F32, KERN_IN, 8);
  kern_add_mem(m.kern, QUERN_DTYPE_F32, KERN_OUT, 16);
  kern_add_mem(m.kern, QUERN_DTYPE_F32, KERN_OUT, 32);
  made_phase(&m, KERN_FIXED_TASKS(1));
  m.kern->phases[0].block_threads = 32;
  struct kern_builder *b = &m.b;
  kern_id x = kern_load(b, kern_mem(b, 0), I(b, 0), 8), y = kern_mem(b, 1), z = kern_mem(b, 2);
  kern_store(b, y, I(b, 0), kern_un(b, KERN_TF32, x));
  kern_store(b, y, I(b, 8), kern_un(b, KERN_EXP2, x));
  kern_id lane = kern_cast(b, kern_lane(b, QUERN_DTYPE_I32, 32), QUERN_DTYPE_F32);
  kern_store(b, z, I(b, 0), kern_shuffle_xor(b, lane, 6));
  made_finish(&m);
  EXPECT_OK(kern_verify(m.kern, NULL));
  EXPECT_OK(kern_interp(m.kern, &(struct kern_launch){.mems = (void *[]){(void *)in, out, swapped}}, 0));
  assert_true(out[0] == 1 && out[1] == 1 + 0x1p-9f && out[2] == 1 + 0x1p-10f && out[4] == INFINITY && isnan(out[6]));
  assert_true(out[5] == -INFINITY && out[12] == INFINITY && out[13] == 0 && isnan(out[14]) && out[15] == 0x1p-126f);
  assert_true(fabsf(out[8] - exp2f(in[0])) <= 0x1p-22f && out[11] == 1);
  for (int i = 0; i < 32; i++) assert_true(swapped[i] == (float)(i ^ 6));
  kern_free(m.kern);
}

static void test_bits(void **state) {
  (void)state;
  struct lanes l = lanes_new(QUERN_DTYPE_I32, 16);
  struct kern_builder *b = &l.m.b;
  uint64_t entries[16];
  for (int i = 0; i < 16; i++) entries[i] = (uint64_t)(100 + i * i);
  kern_id x = kern_const_f(b, QUERN_DTYPE_F64, 2, 1.0), lane = kern_lane(b, QUERN_DTYPE_I32, 4);
  lanes_put(&l, kern_bitcast(b, x, QUERN_DTYPE_I32));
  lanes_put(&l, kern_table(b, kern_mul(b, lane, kern_const_i(b, QUERN_DTYPE_I32, 4, 5)), QUERN_DTYPE_I32, entries));
  kern_id u8s = kern_sub(b, kern_const_i(b, QUERN_DTYPE_U8, 16, 255), kern_lane(b, QUERN_DTYPE_U8, 16));
  kern_id i8s = kern_sub(b, kern_lane(b, QUERN_DTYPE_I8, 16), kern_const_i(b, QUERN_DTYPE_I8, 16, 8));
  lanes_put(&l, kern_dot4(b, kern_const_i(b, QUERN_DTYPE_I32, 4, INT32_MAX), u8s, i8s));
  kern_id i64s = kern_sub(b, kern_lane(b, QUERN_DTYPE_I64, 4), kern_const_i(b, QUERN_DTYPE_I64, 4, 2));
  kern_id by =
      kern_add(b, kern_mul(b, kern_idiv(b, i64s, 3), kern_const_i(b, QUERN_DTYPE_I64, 4, 10)), kern_imod(b, i64s, 3));
  lanes_put(&l, kern_cast(b, by, QUERN_DTYPE_I32));
  int32_t out[16], dots[4];
  lanes_run(&l, out);
  for (int i = 0; i < 4; i++) {
    int64_t sum = INT32_MAX;
    for (int k = 4 * i; k < 4 * i + 4; k++) sum += (255 - k) * (k - 8);
    dots[i] = (int32_t)(uint32_t)(uint64_t)sum;
  }
  const int32_t want[] = {0,       0x3ff00000, 0,       0x3ff00000, 100, 125, 200, 325,
                          dots[0], dots[1],    dots[2], dots[3],    -9,  -8,  0,   1};
  assert_memory_equal(out, want, sizeof want);
}

/* ---- memory, blocks, calls --------------------------------------------------------------------------------------- */

static void run_map(int64_t n, int64_t grain, int flags) {
  float *x = calloc((size_t)n, sizeof *x), *y = calloc((size_t)n, sizeof *y);
  for (int64_t i = 0; i < n; i++) x[i] = (float)(i + 1);
  struct made m = made_map(n, grain, 0);
  EXPECT_OK(kern_interp(m.kern, &(struct kern_launch){.mems = (void *[]){x, y}}, flags));
  for (int64_t i = 0; i < n; i++) assert_true(y[i] == -(float)(i + 1));
  kern_free(m.kern);
  free(x), free(y);
}

static void test_map(void **state) {
  (void)state;
  for (int64_t n = 1; n < 140; n += 7) {
    run_map(n, 16, KERN_CHECK_RACES);
    run_map(n, 40, KERN_CHECK_RACES | KERN_REVERSE_TASKS);
  }
}

static void test_gemm(void **state) {
  (void)state;
  enum { M = 37, N = 50, K = 19 };
  static float a[M * K], b[K * N], c[M * N];
  for (int i = 0; i < M * K; i++) a[i] = (float)(i % 13) - 6;
  for (int i = 0; i < K * N; i++) b[i] = (float)(i % 17) * 0.25f;
  struct made m = made_gemm(M, N, K);
  EXPECT_OK(kern_verify(m.kern, NULL));
  EXPECT_OK(kern_interp(m.kern, &(struct kern_launch){.mems = (void *[]){a, b, c}}, KERN_CHECK_RACES));
  for (int i = 0; i < M; i++) {
    for (int j = 0; j < N; j++) {
      float sum = 0; /* exact in f32, whatever the order */
      for (int k = 0; k < K; k++) sum += a[i * K + k] * b[k * N + j];
      assert_true(c[i * N + j] == sum);
    }
  }
  kern_free(m.kern);
}

/* Loops from below 0, of no turn, in steps; if with and without else; the order of everything in a trace. */
static void test_blocks(void **state) {
  (void)state;
  struct lanes l = lanes_new(QUERN_DTYPE_I64, 32);
  struct kern_builder *b = &l.m.b;
  kern_id count = kern_var(b, I(b, 0)), yes = kern_const_i(b, QUERN_DTYPE_BOOL, 1, 1);
  kern_id no = kern_const_i(b, QUERN_DTYPE_BOOL, 1, 0);
#define TRACE(x)                                                                                                       \
  do {                                                                                                                 \
    kern_id at_ = kern_get(b, count);                                                                                  \
    kern_store(b, l.out, kern_min(b, kern_max(b, at_, I(b, 0)), I(b, 31)), (x));                                       \
    kern_set(b, count, kern_add(b, at_, I(b, 1)));                                                                     \
  } while (0)
  kern_id i = kern_for(b, I(b, -4), I(b, 6), 3);
  TRACE(i);
  kern_for(b, I(b, 7), I(b, 7), 1);
  TRACE(I(b, 1000));
  kern_end(b);
  kern_if(b, kern_bin(b, KERN_LT, i, I(b, 0)));
  TRACE(I(b, 100));
  kern_else(b);
  TRACE(I(b, 200));
  kern_end(b);
  kern_end(b);
  kern_if(b, no);
  TRACE(I(b, 1001));
  kern_end(b);
  kern_if(b, yes);
  TRACE(I(b, 300));
  kern_end(b);
  kern_for(b, I(b, INT64_MAX - 2), I(b, INT64_MAX), INT64_MAX);
  TRACE(I(b, 400));
  kern_end(b);
  kern_for(b, I(b, INT64_MIN), I(b, INT64_MAX), INT64_MAX);
  TRACE(I(b, 500));
  kern_end(b);
  int64_t out[32] = {0};
  lanes_run(&l, out);
  static const int64_t want[] = {-4, 100, -1, 100, 2, 200, 5, 200, 300, 400, 500, 500, 500, 0};
  assert_memory_equal(out, want, sizeof want);
}

/* Lanes that are not read are 0; counts below 0 and above the lanes. */
static void test_counts(void **state) {
  (void)state;
  for (int64_t n = -1; n <= 6; n++) {
    struct made m = made_new();
    struct kern_builder *b = &m.b;
    kern_add_mem(m.kern, QUERN_DTYPE_I16, KERN_IN, 8);
    kern_add_mem(m.kern, QUERN_DTYPE_I16, KERN_OUT, 8);
    m.kern->n_scalars = 1;
    made_phase(&m, KERN_FIXED_TASKS(1));
    kern_id count = kern_scalar(b, 0);
    kern_store(b, kern_mem(b, 1), I(b, 0), kern_load_n(b, kern_mem(b, 0), I(b, 2), 4, count));
    kern_store_n(b, kern_mem(b, 1), I(b, 4), kern_const_i(b, QUERN_DTYPE_I16, 4, 77), count);
    made_finish(&m);
    EXPECT_OK(kern_verify(m.kern, NULL));
    int16_t x[8] = {1, 2, 3, 4, 5, 6, 7, 8}, y[8] = {9, 9, 9, 9, 9, 9, 9, 9};
    EXPECT_OK(kern_interp(m.kern, &(struct kern_launch){.mems = (void *[]){x, y}, .scalars = &n}, 0));
    for (int i = 0; i < 4; i++) {
      assert_int_equal(y[i], i < n ? x[2 + i] : 0);
      assert_int_equal(y[4 + i], i < n ? 77 : 9);
    }
    kern_free(m.kern);
  }
}

/* Scratch: poisoned, its own in each block and callee, overlaid where blocks have ended. */
static void test_scratch(void **state) {
  (void)state;
  struct made m = made_new();
  kern_add_mem(m.kern, QUERN_DTYPE_U8, KERN_OUT, 8);
  struct kern_fn *fn = kern_add_fn(m.kern, "callee", 1, (quern_dtype[]){QUERN_DTYPE_U8}, 0);
  struct kern_builder f = {.kern = m.kern, .fn = fn}, *b = &m.b;
  kern_id inner = kern_local(&f, QUERN_DTYPE_U8, 100);
  kern_store(&f, kern_mem(&f, 0), I(&f, 0), kern_load(&f, inner, I(&f, 99), 1));
  kern_store(&f, inner, I(&f, 0), kern_const_i(&f, QUERN_DTYPE_U8, 1, 3));
  made_phase(&m, KERN_FIXED_TASKS(1));
  kern_id yes = kern_const_i(b, QUERN_DTYPE_BOOL, 1, 1), out = kern_mem(b, 0);
  kern_id one = kern_local(b, QUERN_DTYPE_U8, 1);
  kern_store(b, one, I(b, 0), kern_const_i(b, QUERN_DTYPE_U8, 1, 1));
  kern_if(b, yes);
  kern_local(b, QUERN_DTYPE_F64, 100); /* 64 .. 896 */
  kern_else(b);
  kern_id two = kern_local(b, QUERN_DTYPE_U8, 65); /* 64 .. 192 */
  kern_store(b, two, I(b, 0), kern_const_i(b, QUERN_DTYPE_U8, 1, 2));
  kern_end(b);
  kern_call_fn(b, fn, 1, &(kern_id){kern_at(b, out, I(b, 1))}, 0, NULL); /* 64 .. 192 */
  kern_store(b, out, I(b, 0), kern_load(b, one, I(b, 0), 1));
  made_finish(&m);
  EXPECT_OK(kern_verify(m.kern, NULL));
  assert_int_equal(kern_scratch_bytes(m.kern), 64 + 832);
  uint8_t y[8] = {0};
  EXPECT_OK(kern_interp(m.kern, &(struct kern_launch){.mems = (void *[]){y}}, 0));
  assert_int_equal(y[0], 1);
  assert_int_equal(y[1], 0xa5);
  kern_free(m.kern);
}

static void test_tasks_and_phases(void **state) {
  (void)state;
  struct made m = made_new();
  struct kern_builder *b = &m.b;
  kern_add_mem(m.kern, QUERN_DTYPE_I64, KERN_OUT, 1);
  kern_add_mem(m.kern, QUERN_DTYPE_I64, KERN_WORK, 10);
  m.kern->n_scalars = 2;
  made_phase(&m, (struct kern_tasks){1, 3, 4}); /* ceil(3 n / 4) */
  kern_id at = kern_min(b, kern_task(b), I(b, 9));
  kern_store(b, kern_mem(b, 1), at, kern_add(b, kern_mul(b, at, I(b, 10)), kern_scalar(b, 0)));
  made_phase(&m, KERN_FIXED_TASKS(1));
  kern_id sum = kern_var(b, I(b, 0)), i = kern_for(b, I(b, 0), I(b, 10), 1);
  kern_set(b, sum, kern_add(b, kern_get(b, sum), kern_load(b, kern_mem(b, 1), i, 1)));
  kern_end(b);
  kern_store(b, kern_mem(b, 0), I(b, 0), kern_get(b, sum));
  made_finish(&m);
  EXPECT_OK(kern_verify(m.kern, NULL));
  static const struct { int64_t n, tasks; } rows[] = {{0, 0}, {1, 1}, {2, 2}, {4, 3}, {5, 4}, {-3, 0}};
  for (size_t k = 0; k < BASE_COUNT(rows); k++) {
    int64_t out[1] = {0}, work[10] = {0}, t = rows[k].tasks;
    EXPECT_OK(kern_interp(m.kern,
                          &(struct kern_launch){.mems = (void *[]){out, work}, .scalars = (int64_t[]){7, rows[k].n}},
                          KERN_CHECK_RACES));
    assert_int_equal(out[0], 7 * t + 10 * (t * (t - 1) / 2));
  }
  int64_t out[1], work[10];
  EXPECT_ERROR(kern_interp(m.kern,
                           &(struct kern_launch){.mems = (void *[]){out, work}, .scalars = (int64_t[]){7, INT64_MAX}},
                           0),
               INTERNAL, "phase 0 has");
  kern_free(m.kern);
}

/* ---- what is refused -------------------------------------------------------------------------------------------- */

/* A defect the verifier would find, run nonetheless. */
static void test_outside(void **state) {
  (void)state;
  static const char *const words[] = {
      "(%2 = load.f32x4 %0 %1): task 0: index 7, 4 elements from element 0 on, is outside",
      "index -1, 1 elements",
      "index 10, 1 elements",
      "store.f32x4 %",
      "index 11, 0 elements from element 0",
      "index 5, 1 elements from element 5",
      "entry 16 of a table of 16",
      "index 3, 1 elements from element 0 on, is outside a memory of 3",
      "index 10, 1 elements"};
  for (int kind = 0; kind < 9; kind++) {
    struct made m = made_new();
    struct kern_builder *b = &m.b;
    kern_add_mem(m.kern, QUERN_DTYPE_F32, KERN_OUT, 10);
    made_phase(&m, KERN_FIXED_TASKS(1));
    kern_id x = kern_mem(b, 0);
    if (kind == 0) kern_load(b, x, I(b, 7), 4);
    if (kind == 1) kern_load(b, x, I(b, -1), 1);
    if (kind == 2)
      kern_gather(b, x, kern_add(b, kern_lane(b, QUERN_DTYPE_I64, 4), kern_const_i(b, QUERN_DTYPE_I64, 4, 7)));
    if (kind == 3) kern_store_n(b, x, I(b, 8), kern_const_f(b, QUERN_DTYPE_F32, 4, 0), I(b, 3));
    if (kind == 4) kern_at(b, x, I(b, 11));
    if (kind == 5) kern_load(b, kern_at(b, x, I(b, 5)), I(b, 5), 1);
    if (kind == 6) kern_table(b, kern_const_i(b, QUERN_DTYPE_I32, 1, 16), QUERN_DTYPE_U8, (uint64_t[16]){0});
    if (kind == 7) kern_load(b, kern_local(b, QUERN_DTYPE_I8, 3), I(b, 3), 1);
    if (kind == 8) kern_prefetch(b, x, I(b, 10));
    made_finish(&m);
    float y[10] = {0};
    EXPECT_ERROR(kern_interp(m.kern, &(struct kern_launch){.mems = (void *[]){y}}, 0), INTERNAL, words[kind]);
    EXPECT_ERROR(kern_interp(m.kern, &(struct kern_launch){.mems = (void *[]){y}}, 0), INTERNAL,
                 "_test, function phase0");
    kern_free(m.kern);
  }
  struct made m = made_new();
  made_phase(&m, KERN_FIXED_TASKS(1));
  kern_emit(&m.b, (struct kern_inst){.op = KERN_END, .arg = {KERN_NONE, KERN_NONE, KERN_NONE, KERN_NONE}});
  EXPECT_ERROR(kern_interp(m.kern, &(struct kern_launch){.mems = NULL}, 0), INTERNAL, "no block is open");
  kern_free(m.kern);
}

/* Task t of 4 does this to element t or others of a memory of 8. */
static void test_races(void **state) {
  (void)state;
  enum { APART, SAME, READ_AFTER, WRITE_AFTER, MANY_READERS, ALIAS, OWN, NEXT_PHASE, KINDS };
  static const char *const words[] = {
      [SAME] = "race: element 0 of memory 1 is written by task 1 and written by task 0",
      [READ_AFTER] = "race: element 0 of memory 1 is read by task 1 and written by task 0",
      [WRITE_AFTER] = "race: element 1 of memory 1 is written by task 1 and read by task 0",
      [MANY_READERS] = "race: element 7 of memory 1 is written by task 3 and read by several",
      [ALIAS] = "race: element 1 of memory 1 is written by task 1 and read by task 0",
      [NEXT_PHASE] = NULL};
  for (int kind = 0; kind < KINDS; kind++) {
    struct made m = made_new();
    struct kern_builder *b = &m.b;
    kern_add_mem(m.kern, QUERN_DTYPE_I32, KERN_IN, 8);
    kern_add_mem(m.kern, QUERN_DTYPE_I32, KERN_OUT, 8);
    m.kern->mems[1].alias = 0;
    made_phase(&m, KERN_FIXED_TASKS(4));
    kern_id in = kern_mem(b, 0), y = kern_mem(b, 1), t = kern_task(b), zero = kern_const_i(b, QUERN_DTYPE_I32, 1, 0);
    kern_id next = kern_add(b, t, I(b, 1));
    kern_id put = t;
    if (kind == SAME) put = I(b, 0);
    if (kind == WRITE_AFTER) kern_load(b, y, next, 1);
    if (kind == ALIAS) kern_load(b, in, next, 1);
    if (kind == MANY_READERS) {
      kern_load(b, y, I(b, 7), 1);
      put = kern_add(b, kern_mul(b, kern_idiv(b, t, 3), I(b, 4)), t); /* 0 1 2 7 */
    }
    if (kind == OWN) kern_load(b, in, t, 1), kern_load(b, y, t, 1);
    kern_store(b, y, put, zero);
    if (kind == READ_AFTER) kern_load(b, y, I(b, 0), 1);
    if (kind == OWN) kern_store(b, y, put, zero), kern_load(b, y, t, 1);
    if (kind == NEXT_PHASE) {
      made_phase(&m, KERN_FIXED_TASKS(1));
      kern_store(b, kern_mem(b, 1), I(b, 0), kern_load(b, kern_mem(b, 1), I(b, 3), 1));
    }
    made_finish(&m);
    int32_t memory[8] = {0};
    struct kern_launch launch = {.mems = (void *[]){memory, memory}};
    if (words[kind] == NULL)
      EXPECT_OK(kern_interp(m.kern, &launch, KERN_CHECK_RACES));
    else
      EXPECT_ERROR(kern_interp(m.kern, &launch, KERN_CHECK_RACES), INTERNAL, words[kind]);
    EXPECT_OK(kern_interp(m.kern, &launch, 0));
    kern_free(m.kern);
  }
}

static void test_reverse(void **state) {
  (void)state;
  struct made m = made_new();
  kern_add_mem(m.kern, QUERN_DTYPE_I64, KERN_OUT, 1);
  made_phase(&m, KERN_FIXED_TASKS(5));
  kern_store(&m.b, kern_mem(&m.b, 0), I(&m.b, 0), kern_task(&m.b));
  made_finish(&m);
  int64_t last = -1;
  EXPECT_OK(kern_interp(m.kern, &(struct kern_launch){.mems = (void *[]){&last}}, 0));
  assert_int_equal(last, 4);
  EXPECT_OK(kern_interp(m.kern, &(struct kern_launch){.mems = (void *[]){&last}}, KERN_REVERSE_TASKS));
  assert_int_equal(last, 0);
  kern_free(m.kern);
}

static void test_faults(void **state) {
  (void)state;
  struct made m = made_gemm(5, 20, 3);
  float a[15] = {0}, b[60] = {0}, c[100];
  struct fault fault = {0};
  while (fault_next(&fault)) {
    fault_begin(&fault);
    quern_status status = kern_interp(m.kern, &(struct kern_launch){.mems = (void *[]){a, b, c}}, KERN_CHECK_RACES);
    fault_end(&fault);
    EXPECT_FAULT(&fault, status);
  }
  assert_true(fault.n > 10);
  kern_free(m.kern);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(test_narrow_ints),
      TEST(test_wide_ints),
      TEST(test_bools),
      TEST(test_floats),
      TEST(test_fma),
      TEST(test_casts),
      TEST(test_lanes),
      TEST(test_fold),
      TEST(test_bits),
      TEST(test_mma),
      TEST(test_mma_beside),
      TEST(test_map),
      TEST(test_gemm),
      TEST(test_blocks),
      TEST(test_counts),
      TEST(test_scratch),
      TEST(test_tasks_and_phases),
      TEST(test_outside),
      TEST(test_races),
      TEST(test_reverse),
      TEST(test_scale),
      TEST(test_faults),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
