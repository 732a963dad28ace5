/* tests/kern/test_build.c -- the builder: folding, types, names and hashes, and failures that are remembered */
#include "kern/kern_test.h"

static struct made made_empty(void) {
  struct made m = made_new();
  made_phase(&m, KERN_FIXED_TASKS(1));
  return m;
}

/* The value is an i64 constant of that many lanes. */
static void expect_const(struct kern_builder *b, kern_id x, int lanes, int64_t value) {
  const struct kern_inst *inst = kern_at_id(b, x);
  assert_int_equal(inst->op, KERN_CONST);
  assert_int_equal(inst->lanes, lanes);
  assert_int_equal(inst->imm, value);
}

static void test_folding(void **state) {
  (void)state;
  struct made m = made_empty();
  struct kern_builder *b = &m.b;
  kern_id x = kern_task(b), zero = I(b, 0), one = I(b, 1);
  expect_const(b, kern_add(b, I(b, 3), I(b, 4)), 1, 7);
  expect_const(b, kern_sub(b, I(b, 3), I(b, 4)), 1, -1);
  expect_const(b, kern_mul(b, I(b, 3), I(b, 4)), 1, 12);
  expect_const(b, kern_add(b, I(b, INT64_MAX), one), 1, INT64_MIN);
  expect_const(b, kern_mul(b, I(b, INT64_MIN), I(b, -1)), 1, INT64_MIN);
  expect_const(b, kern_max(b, I(b, -3), I(b, 4)), 1, 4);
  expect_const(b, kern_min(b, I(b, -3), I(b, 4)), 1, -3);
  expect_const(b, kern_idiv(b, I(b, -7), 2), 1, -4);
  expect_const(b, kern_imod(b, I(b, -7), 2), 1, 1);
  expect_const(b, kern_imod(b, x, 1), 1, 0);
  expect_const(b, kern_mul(b, x, zero), 1, 0);
  expect_const(b, kern_mul(b, zero, x), 1, 0);
  expect_const(b, kern_splat(b, I(b, 5), 8), 8, 5);
  kern_id vector = kern_const_i(b, QUERN_DTYPE_I64, 4, 6);
  expect_const(b, kern_add(b, vector, vector), 4, 12);
  assert_int_equal(kern_add(b, x, zero), x);
  assert_int_equal(kern_add(b, zero, x), x);
  assert_int_equal(kern_sub(b, x, zero), x);
  assert_int_equal(kern_mul(b, x, one), x);
  assert_int_equal(kern_mul(b, one, x), x);
  assert_int_equal(kern_idiv(b, x, 1), x);
  assert_int_equal(kern_splat(b, x, 1), x);
  assert_int_equal(kern_cast(b, x, QUERN_DTYPE_I64), x);
  /* what must not be folded */
  assert_int_equal(kern_at_id(b, kern_sub(b, zero, x))->op, KERN_SUB);
  assert_int_equal(kern_at_id(b, kern_add(b, x, one))->op, KERN_ADD);
  kern_id f = kern_const_f(b, QUERN_DTYPE_F32, 1, 0);
  assert_int_equal(kern_at_id(b, kern_add(b, f, f))->op, KERN_ADD);
  kern_id i32 = kern_const_i(b, QUERN_DTYPE_I32, 1, 0);
  assert_int_equal(kern_at_id(b, kern_mul(b, i32, i32))->op, KERN_MUL);
  assert_int_equal(kern_at_id(b, kern_bin(b, KERN_EQ, zero, one))->op, KERN_EQ);
  made_finish(&m);
  EXPECT_OK(kern_verify(m.kern, NULL));
  kern_free(m.kern);
}

/* x op y with y the constant that was made right before it. */
static void expect_by_const(struct kern_builder *b, kern_id id, enum kern_op op, kern_id x, int64_t y) {
  assert_int_equal(kern_at_id(b, id)->op, op);
  assert_int_equal(kern_at_id(b, id)->arg[0], x);
  assert_int_equal(kern_at_id(b, id)->arg[1], id - 1);
  expect_const(b, id - 1, 1, y);
}

static void test_constants(void **state) {
  (void)state;
  struct made m = made_empty();
  struct kern_builder *b = &m.b;
  kern_id x = kern_task(b);
  expect_by_const(b, kern_add_i(b, x, 3), KERN_ADD, x, 3);
  expect_by_const(b, kern_mul_i(b, x, -4), KERN_MUL, x, -4);
  expect_by_const(b, kern_max_i(b, x, 5), KERN_MAX, x, 5);
  expect_by_const(b, kern_min_i(b, x, 6), KERN_MIN, x, 6);
  assert_int_equal(kern_add_i(b, x, 0), x);
  assert_int_equal(kern_mul_i(b, x, 1), x);
  expect_const(b, kern_min_i(b, kern_index(b, 2), 7), 1, 2);
  kern_id i = kern_range(b, 1, 9, 4);
  assert_int_equal(kern_at_id(b, i)->op, KERN_FOR);
  assert_int_equal(kern_at_id(b, i)->imm, 4);
  assert_int_equal(kern_at_id(b, i)->arg[0], i - 2);
  assert_int_equal(kern_at_id(b, i)->arg[1], i - 1);
  expect_const(b, i - 2, 1, 1);
  expect_const(b, i - 1, 1, 9);
  kern_end(b);
  made_finish(&m);
  EXPECT_OK(kern_verify(m.kern, NULL));
  kern_free(m.kern);
}

static void expect_type(struct kern_builder *b, kern_id x, quern_dtype dtype, int lanes) {
  assert_int_equal(kern_at_id(b, x)->dtype, dtype);
  assert_int_equal(kern_at_id(b, x)->lanes, lanes);
}

static void test_types(void **state) {
  (void)state;
  struct made m = made_empty();
  struct kern_builder *b = &m.b;
  kern_id x = kern_const_f(b, QUERN_DTYPE_F32, 8, 1.5);
  assert_int_equal(kern_at_id(b, x)->imm, 0x3fc00000);
  assert_int_equal(kern_at_id(b, kern_const_i(b, QUERN_DTYPE_I16, 1, -2))->imm, 0xfffe);
  expect_type(b, kern_bin(b, KERN_LT, x, x), QUERN_DTYPE_BOOL, 8);
  expect_type(b, kern_bitcast(b, x, QUERN_DTYPE_F64), QUERN_DTYPE_F64, 4);
  expect_type(b, kern_bitcast(b, x, QUERN_DTYPE_U8), QUERN_DTYPE_U8, 32);
  expect_type(b, kern_cast(b, x, QUERN_DTYPE_F16), QUERN_DTYPE_F16, 8);
  expect_type(b, kern_low(b, x), QUERN_DTYPE_F32, 4);
  expect_type(b, kern_join(b, x, x), QUERN_DTYPE_F32, 16);
  expect_type(b, kern_extract(b, x, 7), QUERN_DTYPE_F32, 1);
  expect_type(b, kern_shuffle(b, x, x, 2, (int[]){0, 15}), QUERN_DTYPE_F32, 2);
  made_finish(&m);
  EXPECT_OK(kern_verify(m.kern, NULL));
  kern_free(m.kern);
}

/* The hash is of the code, not of names. */
static void test_names(void **state) {
  (void)state;
  uint64_t hashes[4];
  for (int k = 0; k < 4; k++) {
    struct made m = made_new();
    kern_add_mem(m.kern, QUERN_DTYPE_F32, KERN_OUT, 4);
    kern_add_fn(m.kern, k == 1 ? "other" : "one", 0, NULL, 0);
    made_phase(&m, KERN_FIXED_TASKS(k == 2 ? 2 : 1));
    kern_id mem = kern_mem(&m.b, 0), zero = I(&m.b, 0);
    kern_store(&m.b, mem, zero, kern_const_f(&m.b, QUERN_DTYPE_F32, 1, k == 3 ? 2 : 1));
    int64_t dims[] = {2, 2};
    quern_tensor type = {.rank = 2, .dims = dims};
    EXPECT_OK(kern_finish(m.kern, "re-lu", &type));
    hashes[k] = m.kern->hash;
    char want[64];
    snprintf(want, sizeof want, "k_%08x_re_lu_2x2", (unsigned)(m.kern->hash >> 32));
    assert_string_equal(m.kern->name, want);
    kern_free(m.kern);
  }
  assert_true(hashes[0] == hashes[1] && hashes[0] != hashes[2] && hashes[0] != hashes[3]);
}

/* Too many of something, blocks that do not match: kern_finish tells. */
static void test_limits(void **state) {
  (void)state;
  for (int kind = 0; kind < 6; kind++) {
    static const char *const words[] = {"more than 256 memories", "more than 8 phases", "more than 128 functions",
                                        "has 1 open blocks",      "65 open blocks",     "-1 open blocks"};
    struct made m = made_new();
    for (int i = 0; i <= KERN_MAX_MEMS && kind == 0; i++) kern_add_mem(m.kern, QUERN_DTYPE_F32, KERN_IN, 1);
    for (int i = 0; i <= KERN_MAX_PHASES && kind == 1; i++) kern_add_phase(m.kern, KERN_FIXED_TASKS(1));
    for (int i = 0; i <= KERN_MAX_FNS && kind == 2; i++) kern_add_fn(m.kern, "f", 0, NULL, 0);
    m.b.fn = kind >= 3 ? kern_add_phase(m.kern, KERN_FIXED_TASKS(1)) : NULL;
    int blocks = kind == 3 ? 1 : kind == 4 ? KERN_MAX_DEPTH + 1 : 0;
    kern_id zero = I(&m.b, 0);
    for (int i = 0; i < blocks; i++) kern_for(&m.b, zero, zero, 1);
    if (kind == 5) kern_end(&m.b);
    EXPECT_ERROR(kern_finish(m.kern, "test", NULL), INTERNAL, words[kind]);
    kern_free(m.kern);
  }
}

/* One of each call; whatever fails, all of them are harmless. */
static quern_status build_all(struct kern **kern) {
  QUERN_TRY(kern_new(kern, &ctx->heap));
  int in = kern_add_mem(*kern, QUERN_DTYPE_F32, KERN_IN, 64), out = kern_add_mem(*kern, QUERN_DTYPE_F32, KERN_OUT, 64);
  struct kern_fn *fn = kern_add_fn(*kern, "callee", 1, (quern_dtype[]){QUERN_DTYPE_F32}, 1);
  struct kern_builder f = {.kern = *kern, .fn = fn};
  kern_store(&f, kern_mem(&f, 0), I(&f, 0), kern_const_f(&f, QUERN_DTYPE_F32, 1, 1));
  struct kern_builder b_ = {.kern = *kern, .fn = kern_add_phase(*kern, KERN_FIXED_TASKS(1))}, *b = &b_;
  kern_id x = kern_mem(b, in), y = kern_mem(b, out), l = kern_local(b, QUERN_DTYPE_F32, 64);
  kern_id i = kern_for(b, I(b, 0), I(b, 64), 16), v = kern_load(b, x, i, 16);
  kern_id part = kern_load_n(b, x, i, 16, kern_sub(b, I(b, 64), i));
  kern_id var = kern_var(b, kern_fma(b, v, part, v));
  kern_if(b, kern_bin(b, KERN_LT, i, I(b, 32)));
  kern_set(b, var, kern_un(b, KERN_ABS, v));
  kern_else(b);
  kern_set(b, var, kern_select(b, kern_bin(b, KERN_LE, v, part), v, part));
  kern_end(b);
  kern_store(b, y, i, kern_get(b, var));
  kern_store_n(b, kern_at(b, l, i), I(b, 0), kern_shuffle(b, v, v, 4, (int[]){3, 2, 1, 0}), I(b, 3));
  kern_id bits = kern_bitcast(b, kern_cast(b, v, QUERN_DTYPE_I32), QUERN_DTYPE_U8);
  kern_dot4(b, kern_const_i(b, QUERN_DTYPE_I32, 16, 0), bits, bits);
  kern_table(b, kern_const_i(b, QUERN_DTYPE_I32, 16, 0), QUERN_DTYPE_F32, (uint64_t[16]){0});
  kern_gather(b, x, kern_imod(b, kern_add(b, kern_lane(b, QUERN_DTYPE_I64, 16), kern_splat(b, i, 16)), 64));
  kern_id values[] = {v, part};
  kern_store(b, l, I(b, 0), kern_tree(b, IR_SUM, 2, values));
  kern_store(b, l, I(b, 1), kern_extract(b, kern_join(b, kern_low(b, v), kern_high(b, v)), 1));
  kern_call_fn(b, fn, 1, &y, 1, &i);
  kern_idiv(b, i, 3);
  kern_end(b);
  QUERN_TRY(kern_finish(*kern, "all", NULL));
  return kern_verify(*kern, NULL);
}

static void test_faults(void **state) {
  (void)state;
  struct fault fault = {0};
  while (fault_next(&fault)) {
    struct kern *kern = NULL;
    fault_begin(&fault);
    quern_status status = build_all(&kern);
    fault_end(&fault);
    EXPECT_FAULT(&fault, status);
    kern_free(kern);
  }
  assert_true(fault.n > 15);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(test_folding), TEST(test_constants), TEST(test_types),
                                     TEST(test_names),   TEST(test_limits),    TEST(test_faults)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
