/* tests/kern/test_math_ops.c -- every elementwise op on every dtype it admits: kern_math against the evaluator
** Bits are equal, but for functions that round (test_math.c has their bounds): of 8 and 16 bits the result is the
** evaluator's or its neighbor, and rarely the latter.
*/
#include <math.h>

#include "kern/math_run.h"

enum { LANES = 16, EDGES = 24 };

struct row {
  enum ir_op op;
  const char *infer;
  enum base_dtype_class dtypes;
};
static const struct row rows[] = {
#define OP(NAME, text, n_src, n_out, INFER, DTYPES, ...) {IR_##NAME, #INFER, BASE_##DTYPES},
#include "ir/ops.def"
#undef OP
};

static bool is_kind(const struct row *row, const char *infer) { return strcmp(row->infer, infer) == 0; }

static bool rounds(enum ir_op op) {
  static const enum ir_op ops[] = {IR_EXP,  IR_EXPM1, IR_LOG,  IR_LOG1P, IR_SIN,   IR_COS,
                                   IR_TANH, IR_ERF,   IR_ERFC, IR_POW,   IR_ATAN2, IR_MOD};
  for (size_t i = 0; i < BASE_COUNT(ops); i++)
    if (ops[i] == op) return true;
  return false;
}

/* ---- data ------------------------------------------------------------------------------------------------- */

/* Element i of EDGES that are hard for a dtype. */
static void store_edge(quern_dtype dtype, void *data, size_t at, size_t i) {
  static const double floats[EDGES] = {0,     -0.0,     1,         -1,  0.5,   -0.5,  1.5,   -1.5,
                                       2.5,   3,        -3,        7,   -7.25, 100,   448,   449,
                                       65504, INFINITY, -INFINITY, NAN, 1e9,   -1e-9, 1e-40, 3e38};
  const struct base_dtype_info *info = &base_dtypes[dtype];
  uint64_t top = UINT64_C(1) << (info->bits - 1);
  const uint64_t whole[EDGES] = {0,
                                 1,
                                 2,
                                 3,
                                 5,
                                 7,
                                 8,
                                 9,
                                 15,
                                 16,
                                 31,
                                 32,
                                 63,
                                 64,
                                 100,
                                 0 - (uint64_t)1,
                                 0 - (uint64_t)2,
                                 0 - (uint64_t)3,
                                 0 - (uint64_t)7,
                                 top,
                                 top - 1,
                                 top + 1,
                                 top / 2,
                                 top >> 4};
  if (info->class == BASE_FLOAT)
    base_store_float(dtype, data, at, floats[i]);
  else
    base_store_int(dtype, data, at, info->class == BASE_BOOL ? i & 1 : whole[i]);
}

/* ---- comparing -------------------------------------------------------------------------------------------- */

/* The place of a float among all of its dtype, -0 and 0 side by side. */
static int64_t place(quern_dtype dtype, const void *data, size_t i) {
  uint64_t raw = 0, sign = UINT64_C(1) << (base_dtypes[dtype].bits - 1);
  memcpy(&raw, (const char *)data + i * base_dtypes[dtype].size, base_dtypes[dtype].size);
  return raw & sign ? -1 - (int64_t)(raw & (sign - 1)) : (int64_t)raw;
}

/* How many elements are not the same but neighbors; anything else fails. */
static size_t compare(enum ir_op op, quern_dtype dtype, size_t count, const void *got, const void *want) {
  size_t size = base_dtypes[dtype].size, near = 0;
  bool is_float = base_dtype_is(dtype, BASE_FLOAT), narrow = size < 4;
  for (size_t i = 0; i < count; i++) {
    if (memcmp((const char *)got + i * size, (const char *)want + i * size, size) == 0) continue;
    if (is_float && isnan(base_load_float(dtype, got, i)) && isnan(base_load_float(dtype, want, i))) continue;
    int64_t apart = is_float && rounds(op) ? llabs(place(dtype, got, i) - place(dtype, want, i)) : INT64_MAX;
    if (apart <= (narrow ? 1 : 4)) {
      near += 1;
      continue;
    }
    if (is_float)
      print_error("%s %s, element %zu: got %a, want %a\n", ir_ops[op].name, base_dtypes[dtype].name, i,
                  base_load_float(dtype, got, i), base_load_float(dtype, want, i));
    else
      print_error("%s %s, element %zu: got %llx, want %llx\n", ir_ops[op].name, base_dtypes[dtype].name, i,
                  (unsigned long long)base_load_int(dtype, got, i), (unsigned long long)base_load_int(dtype, want, i));
    fail();
  }
  return near;
}

/* Both ways; the number of neighbors. */
static size_t check(enum ir_op op, quern_dtype dtype, int n, const quern_dtype *src, const void *const *data,
                    int64_t count) {
  quern_tensor *leaves[3];
  struct ir_binding bindings[3];
  for (int i = 0; i < n; i++) {
    leaves[i] = ir_leaf(ctx, src[i], 1, &count);
    bindings[i] = (struct ir_binding){leaves[i], data[i]};
  }
  quern_tensor *y = ir_make(ctx, op, n, leaves, &(struct ir_attrs){.dtype = dtype});
  assert_false(ir_is_poison(y));
  void *want = malloc((size_t)count * 8), *got = malloc((size_t)count * 8);
  EXPECT_OK(ir_eval(ctx, 1, &y, &want, (size_t)n, bindings));
  math_run(op, y->dtype, n, src, data, got, count, LANES);
  size_t near = compare(op, y->dtype, (size_t)count, got, want);
  free(want);
  free(got);
  return near;
}

/* ---- tests ------------------------------------------------------------------------------------------------ */

/* One and two sources of one dtype: all pairs of edges. */
static void test_edges(void **state) {
  (void)state;
  enum { COUNT = EDGES * EDGES };
  uint64_t a[COUNT], b[COUNT];
  size_t checked = 0;
  for (size_t k = 0; k < BASE_COUNT(rows); k++) {
    if (!is_kind(&rows[k], "SAME") && !is_kind(&rows[k], "PAIR") && !is_kind(&rows[k], "COMPARE")) continue;
    for (quern_dtype dtype = 0; dtype < QUERN_DTYPE_COUNT; dtype++) {
      if (!base_dtype_is(dtype, rows[k].dtypes)) continue;
      for (size_t i = 0; i < COUNT; i++) {
        store_edge(dtype, a, i, i % EDGES);
        store_edge(dtype, b, i, i / EDGES);
      }
      check(rows[k].op, dtype, ir_ops[rows[k].op].n_src, (quern_dtype[]){dtype, dtype}, (const void *[]){a, b}, COUNT);
      checked++;
    }
  }
  assert_true(checked > 300);
}

/* Every f16, bf16 and 8-bit float through every op of one source. */
static void test_narrow(void **state) {
  (void)state;
  enum { COUNT = 1 << 16 };
  static const quern_dtype dtypes[] = {QUERN_DTYPE_F16, QUERN_DTYPE_BF16, QUERN_DTYPE_F8E4M3, QUERN_DTYPE_F8E5M2};
  uint16_t *all = malloc(COUNT * sizeof *all);
  uint8_t bytes[256];
  for (size_t i = 0; i < COUNT; i++) all[i] = (uint16_t)i;
  for (size_t i = 0; i < 256; i++) bytes[i] = (uint8_t)i;
  for (size_t k = 0; k < BASE_COUNT(rows); k++) {
    if (!is_kind(&rows[k], "SAME") || !(rows[k].dtypes & BASE_FLOAT)) continue;
    for (size_t d = 0; d < BASE_COUNT(dtypes); d++) {
      int64_t count = base_dtypes[dtypes[d]].size == 2 ? COUNT : 256;
      const void *data[] = {count == COUNT ? (const void *)all : bytes};
      assert_true(check(rows[k].op, dtypes[d], 1, &dtypes[d], data, count) <= 20);
    }
  }
  free(all);
}

/* CAST between all dtypes, BITCAST between those of a size, SELECT of all. */
static void test_conversions(void **state) {
  (void)state;
  enum { COUNT = EDGES * LANES };
  uint64_t a[COUNT], b[COUNT];
  uint8_t mask[COUNT];
  for (quern_dtype from = 0; from < QUERN_DTYPE_COUNT; from++) {
    for (size_t i = 0; i < COUNT; i++) {
      store_edge(from, a, i, i % EDGES);
      store_edge(from, b, i, i / LANES);
      mask[i] = (uint8_t)(i % 3 == 0);
    }
    check(IR_SELECT, from, 3, (quern_dtype[]){QUERN_DTYPE_BOOL, from, from}, (const void *[]){mask, a, b}, COUNT);
    for (quern_dtype to = 0; to < QUERN_DTYPE_COUNT; to++) {
      check(IR_CAST, to, 1, &from, (const void *[]){a}, COUNT);
      bool as_bits = base_dtypes[from].size == base_dtypes[to].size && (to != QUERN_DTYPE_BOOL || from == to);
      if (as_bits) check(IR_BITCAST, to, 1, &from, (const void *[]){a}, COUNT);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(test_edges), TEST(test_narrow), TEST(test_conversions)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
