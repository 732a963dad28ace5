/* tests/kern/test_verify.c -- the verifier accepts good kernels, and finds each kind of defect that is planted */
#include "kern/kern_test.h"

/* ---- types: one wrong instruction after a fixed list of good ones --------------------------------------------- */

/* The numbers of the good ones. */
enum { M_IN, M_OUT, ZERO, ONE, F, FX, IX, YES, MASK, VAR, H, LX, U8X, FX8, D, LOCAL, GOOD };

static void emit_good(struct kern_builder *b) {
  kern_mem(b, 0), kern_mem(b, 1), I(b, 0), I(b, 1);
  kern_const_f(b, QUERN_DTYPE_F32, 1, 1), kern_const_f(b, QUERN_DTYPE_F32, 16, 2);
  kern_const_i(b, QUERN_DTYPE_I32, 16, 3), kern_const_i(b, QUERN_DTYPE_BOOL, 1, 1);
  kern_const_i(b, QUERN_DTYPE_BOOL, 16, 1), kern_var(b, F), kern_const_f(b, QUERN_DTYPE_F16, 1, 1);
  kern_lane(b, QUERN_DTYPE_I64, 16), kern_const_i(b, QUERN_DTYPE_U8, 64, 7);
  kern_const_f(b, QUERN_DTYPE_F32, 8, 1), kern_const_f(b, QUERN_DTYPE_F64, 1, 1);
  assert_int_equal(kern_local(b, QUERN_DTYPE_F32, 32), LOCAL);
}

struct wrong {
  struct kern_inst inst;
  const char *words;
};
#define NO KERN_NONE
#define INST(OP, DTYPE, lanes, imm, ...)                                                                               \
  { KERN_##OP, QUERN_DTYPE_##DTYPE, lanes, {__VA_ARGS__}, imm }

static const struct wrong wrongs[] = {
    {INST(OP_COUNT, F32, 1, 0, F, F, NO, NO), "no such instruction"},
    {INST(ADD, COUNT, 1, 0, F, F, NO, NO), "there is no dtype"},
    {INST(ADD, F32, 1, 0, F, NO, NO, NO), "argument 1 is not a value that is visible here"},
    {INST(ADD, F32, 1, 0, F, GOOD + 1, NO, NO), "argument 1 is not a value that is visible here"},
    {INST(ADD, F32, 1, 0, GOOD, F, NO, NO), "argument 0 is not a value that is visible here"},
    {INST(ADD, F32, 1, 0, F, F, F, NO), "argument 2 is one too many"},
    {INST(ADD, F32, 1, 0, F, VAR, NO, NO), "only get and set take it"},
    {INST(ADD, F32, 1, 0, F, M_IN, NO, NO), "argument 1 is memory"},
    {INST(ADD, F32, 1, 0, F, FX, NO, NO), "the types of argument 0 and 1 differ"},
    {INST(ADD, F32, 1, 0, F, D, NO, NO), "the types of argument 0 and 1 differ"},
    {INST(ADD, F64, 1, 0, F, F, NO, NO), "its type is not that of argument 0"},
    {INST(ADD, F32, 16, 0, F, F, NO, NO), "its type is not that of argument 0"},
    {INST(ADD, F16, 1, 0, H, H, NO, NO), "add is not for f16"},
    {INST(ADD, BOOL, 1, 0, YES, YES, NO, NO), "add is not for bool"},
    {INST(MOD, F32, 1, 0, F, F, NO, NO), "mod is not for f32"},
    {INST(FMA, I64, 1, 0, ONE, ONE, ONE, NO), "fma is not for i64"},
    {INST(FMA, F32, 1, 0, F, F, D, NO), "the types of argument 0 and 2 differ"},
    {INST(SQRT, I64, 1, 0, ONE, NO, NO, NO), "sqrt is not for i64"},
    {INST(AND, F32, 1, 0, F, F, NO, NO), "and is not for f32"},
    {INST(SHL, BOOL, 1, 0, YES, YES, NO, NO), "shl is not for bool"},
    {INST(LT, F32, 1, 0, F, F, NO, NO), "not bool with the lanes"},
    {INST(LT, BOOL, 1, 0, FX, FX, NO, NO), "not bool with the lanes"},
    {INST(SELECT, F32, 1, 0, F, F, F, NO), "argument 0 is not a bool"},
    {INST(SELECT, F32, 1, 0, YES, F, D, NO), "the types of argument 1 and 2 differ"},
    {INST(SELECT, F32, 16, 0, YES, FX, FX, NO), "other lanes than argument 1"},
    {INST(SELECT, F64, 16, 0, MASK, FX, FX, NO), "its type is not that of argument 1"},
    {INST(IDIV, I32, 16, 2, IX, NO, NO, NO), "argument 0 is not i64"},
    {INST(IMOD, I64, 1, 0, ONE, NO, NO, NO), "the divisor is not above 0"},
    {INST(CONST, U8, 1, 256, NO, NO, NO, NO), "more bits than its dtype"},
    {INST(CONST, U8, 3, 1, NO, NO, NO, NO), "it cannot have 3 lanes"},
    {INST(CONST, U8, 128, 1, NO, NO, NO, NO), "it cannot have 128 lanes"},
    {INST(CONST, U8, 0, 1, NO, NO, NO, NO), "it cannot have 0 lanes"},
    {INST(LANE, F32, 16, 0, NO, NO, NO, NO), "need an integer dtype"},
    {INST(SCALAR, I64, 1, 1, NO, NO, NO, NO), "no such scalar"},
    {INST(SCALAR, I32, 1, 0, NO, NO, NO, NO), "its type is i64"},
    {INST(TASK, I32, 1, 0, NO, NO, NO, NO), "its type is i64"},
    {INST(MEM, F32, 0, 2, NO, NO, NO, NO), "no such memory"},
    {INST(MEM, F64, 0, 0, NO, NO, NO, NO), "the dtype is not the memory's"},
    {INST(MEM, F32, 1, 0, NO, NO, NO, NO), "it cannot have 1 lanes"},
    {INST(LOCAL, F32, 0, -1, NO, NO, NO, NO), "that many elements cannot be"},
    {INST(AT, F32, 0, 0, F, ONE, NO, NO), "argument 0 is not memory"},
    {INST(AT, F32, 0, 0, M_IN, F, NO, NO), "argument 1 is not a scalar i64"},
    {INST(LOAD, F64, 1, 0, M_IN, ONE, NO, NO), "the dtype is not the memory's"},
    {INST(LOAD, F32, 1, 0, M_IN, LX, NO, NO), "argument 1 is not a scalar i64"},
    {INST(LOAD, F32, 1, 0, M_IN, ONE, F, NO), "argument 2 is not a scalar i64"},
    {INST(LOAD, F32, 1, 0, M_IN, ONE, NO, ONE), "argument 3 is one too many"},
    {INST(STORE, F32, 0, 0, M_IN, ONE, F, NO), "stores to an input"},
    {INST(STORE, F64, 0, 0, M_OUT, ONE, D, NO), "the dtype is not the memory's"},
    {INST(STORE, F32, 0, 0, M_OUT, ONE, D, NO), "the dtype is not the value's"},
    {INST(STORE, F32, 0, 0, M_OUT, ONE, VAR, NO), "only get and set take it"},
    {INST(GATHER, F32, 16, 0, M_IN, IX, NO, NO), "argument 1 is not i64"},
    {INST(GATHER, F32, 8, 0, M_IN, LX, NO, NO), "not as many lanes as indices"},
    {INST(GATHER, F32, 16, 2, M_IN, LX, NO, NO), "not as many lanes as indices"},
    {INST(GATHER, F32, 16, -1, M_IN, LX, NO, NO), "not as many lanes as indices"},
    {INST(SCATTER, F32, 0, 1, M_IN, LX, FX, NO), "stores to an input"},
    {INST(SCATTER, F32, 0, 0, M_OUT, LX, FX, NO), "not as many lanes as indices"},
    {INST(SCATTER, F32, 0, 1, M_OUT, LX, FX8, NO), "not as many lanes as indices"},
    {INST(SCATTER, F32, 0, 1, M_OUT, LX, FX, FX), "argument 3 is not a bool an index"},
    {INST(SCATTER, F64, 0, 1, M_OUT, LX, FX, MASK), "the dtype is not the value's"},
    {INST(DEINTERLEAVE, F64, 8, 0, FX, NO, NO, NO), "not picked of argument 0's"},
    {INST(DEINTERLEAVE, F32, 8, 2, FX, NO, NO, NO), "no such lane"},
    {INST(FOR, I64, 1, 0, ZERO, ONE, NO, NO), "the step is not above 0"},
    {INST(FOR, I64, 1, 1, ZERO, ONE, NO, NO), "1 blocks are still open"},
    {INST(FOR, I32, 1, 1, ZERO, ONE, NO, NO), "its type is i64"},
    {INST(IF, BOOL, 0, 0, F, NO, NO, NO), "argument 0 is not a scalar bool"},
    {INST(IF, BOOL, 0, 0, MASK, NO, NO, NO), "argument 0 is not a scalar bool"},
    {INST(ELSE, BOOL, 0, 0, NO, NO, NO, NO), "there is no if for it"},
    {INST(END, BOOL, 0, 0, NO, NO, NO, NO), "no block is open"},
    {INST(VAR, F32, 1, 0, VAR, NO, NO, NO), "only get and set take it"},
    {INST(GET, F32, 1, 0, F, NO, NO, NO), "argument 0 is not a variable"},
    {INST(SET, F32, 0, 0, F, F, NO, NO), "argument 0 is not a variable"},
    {INST(SET, F32, 0, 0, VAR, FX, NO, NO), "the types of variable and value differ"},
    {INST(CALL, BOOL, 0, 1, 0, 0, NO, NO), "calls only those before it"},
    {INST(CALL, BOOL, 0, 0, 0, 0, NO, NO), "list of 3 memories and scalars"},
    {INST(CALL, BOOL, 0, 0, 1, 2, NO, NO), "list of 3 memories and scalars"},
    {INST(CAST, F64, 8, 0, FX, NO, NO, NO), "a cast keeps the lanes"},
    {INST(BITCAST, F64, 16, 0, FX, NO, NO, NO), "a bitcast keeps the bytes"},
    {INST(SPLAT, F32, 16, 0, FX8, NO, NO, NO), "argument 0 is not a scalar"},
    {INST(SPLAT, F64, 16, 0, F, NO, NO, NO), "the dtype is not that of argument 0"},
    {INST(EXTRACT, F32, 1, 16, FX, NO, NO, NO), "no such lane"},
    {INST(EXTRACT, F32, 2, 0, FX, NO, NO, NO), "not that of a lane"},
    {INST(LOW, F32, 16, 0, FX, NO, NO, NO), "not half the lanes"},
    {INST(HIGH, F64, 8, 0, FX, NO, NO, NO), "the dtype is not that of argument 0"},
    {INST(JOIN, F32, 32, 0, FX, FX8, NO, NO), "not the lanes of both"},
    {INST(HREDUCE, F32, 16, KERN_ADD, FX, NO, NO, NO), "not that of a lane"},
    {INST(HREDUCE, F64, 1, KERN_ADD, FX, NO, NO, NO), "not that of a lane"},
    {INST(HREDUCE, F32, 1, KERN_SUB, FX, NO, NO, NO), "no such op"},
    {INST(JOIN, F64, 32, 0, FX, FX, NO, NO), "the dtypes differ"},
    {INST(SHUFFLE, F32, 4, 0, FX, FX8, NO, NO), "the types differ"},
    {INST(SHUFFLE, F32, 4, 0, FX, FX, NO, NO), "outside the pool"},
    {INST(SHUFFLE, F32, 1, 0, FX8, FX8, NO, NO), "names a lane that is not there"},
    {INST(TABLE, F32, 16, 0, FX, NO, NO, NO), "argument 0 is not i32"},
    {INST(TABLE, F32, 8, 0, IX, NO, NO, NO), "its lanes are not those of argument 0"},
    {INST(TABLE, F32, 16, 0, IX, NO, NO, NO), "its entries are outside the pool"},
    {INST(INTERLEAVE, F32, 16, 0, FX, FX, NO, NO), "not the lanes of both"},
    {INST(INTERLEAVE, F32, 32, 0, FX, IX, NO, NO), "the dtypes differ"},
    {INST(SHUFFLE_XOR, F32, 16, 1, FX, NO, NO, NO), "not one lane per thread of a block of whole warps"},
    {INST(TF32, F64, 1, 0, D, NO, NO, NO), "argument 0 is not f32"},
    {INST(EXP2, I32, 16, 0, IX, NO, NO, NO), "exp2 is not for i32"},
    {INST(MMA, F32, 16, 0, FX, FX, FX, NO), "4, 4 and 2 lanes"},
    {INST(MMA, I32, 16, 0, IX, FX, FX, NO), "its arguments are f32"},
    {INST(DOT4, I64, 1, 0, ONE, ONE, ONE, NO), "argument 0 is not i32"},
    {INST(DOT4, I32, 16, 0, IX, FX, IX, NO), "the bytes are not 4 a lane"},
    {INST(DOT4, I32, 16, 0, IX, IX, ONE, NO), "the bytes are not 4 a lane"},
};

/* One wrong instruction at the end. The pool holds one number, 77. */
static void test_wrong_instructions(void **state) {
  (void)state;
  for (size_t i = 0; i < BASE_COUNT(wrongs); i++) {
    struct made m = made_new();
    kern_add_mem(m.kern, QUERN_DTYPE_F32, KERN_IN, 64);
    kern_add_mem(m.kern, QUERN_DTYPE_F32, KERN_OUT, 64);
    m.kern->n_scalars = 1;
    kern_add_fn(m.kern, "callee", 2, (quern_dtype[]){QUERN_DTYPE_F32, QUERN_DTYPE_F64}, 1);
    made_phase(&m, KERN_FIXED_TASKS(1));
    emit_good(&m.b);
    assert_true(base_vec_push(&ctx->heap, &m.b.fn->pool, 77));
    EXPECT_OK(kern_verify(m.kern, NULL));
    kern_emit(&m.b, wrongs[i].inst);
    EXPECT_ERROR(kern_verify(m.kern, NULL), INTERNAL, wrongs[i].words);
    EXPECT_ERROR(kern_verify(m.kern, NULL), INTERNAL, "function phase0, instruction 16 (");
    kern_free(m.kern);
  }
}

/* Scopes: a value is gone when its block ends. */
static void test_scopes(void **state) {
  (void)state;
  for (int defect = 0; defect < 6; defect++) {
    static const char *const words[] = {NULL,
                                        "argument 0 is not a value that is visible",
                                        "argument 0 is not a value that",
                                        "there is no if for it",
                                        "there is no if for it",
                                        "argument 0 is not a value"};
    struct made m = made_new();
    struct kern_builder *b = &m.b;
    made_phase(&m, KERN_FIXED_TASKS(1));
    kern_id yes = kern_const_i(b, QUERN_DTYPE_BOOL, 1, 1);
    kern_id i = kern_for(b, I(b, 0), I(b, 3), 1);
    kern_if(b, yes);
    kern_id inner = kern_add(b, i, i);
    if (defect == 1) kern_else(b), kern_add(b, inner, inner);
    kern_end(b);
    if (defect == 2) kern_add(b, inner, inner);
    if (defect == 3) kern_else(b);
    kern_end(b);
    if (defect == 4) kern_if(b, yes), kern_else(b), kern_else(b), kern_end(b);
    if (defect == 5) kern_add(b, i, i);
    made_finish(&m);
    if (defect == 0)
      EXPECT_OK(kern_verify(m.kern, NULL));
    else
      EXPECT_ERROR(kern_verify(m.kern, NULL), INTERNAL, words[defect]);
    kern_free(m.kern);
  }
}

#define PLANT(kern, place, value, words)                                                                               \
  do {                                                                                                                 \
    __typeof__(place) kept_ = (place);                                                                                 \
    (place) = (value);                                                                                                 \
    EXPECT_ERROR(kern_verify((kern), NULL), INTERNAL, words);                                                          \
    (place) = kept_;                                                                                                   \
    EXPECT_OK(kern_verify((kern), NULL));                                                                              \
  } while (0)

static void test_kernels(void **state) {
  (void)state;
  struct made m = made_gemm(5, 20, 3);
  struct kern *k = m.kern;
  PLANT(k, k->mems[2].role, KERN_IN, "the memories and scalars of phase 0 are not the kernel's");
  PLANT(k, k->mems[0].role, KERN_OUT, "inputs come first");
  PLANT(k, k->mems[0].count, -1, "memory 0: dtype 0, -1 elements cannot be");
  PLANT(k, k->mems[2].alias, 0, "memory 2 cannot be memory 0");
  PLANT(k, k->mems[2].alias, 2, "memory 2 cannot be memory 2");
  PLANT(k, k->phases[0].fn, 5, "phase 0 has no function of its own");
  PLANT(k, k->phases[0].fn, 0, "the memories and scalars of phase 0");
  PLANT(k, k->phases[0].tasks.div, 0, "tasks of scalar -1");
  PLANT(k, k->phases[0].tasks.scalar, 0, "tasks of scalar 0");
  PLANT(k, k->phases[0].block_threads, 48, "blocks of 48 threads");
  PLANT(k, k->phases[0].block_threads, 2048, "blocks of 2048 threads");
  PLANT(k, k->n_phases, KERN_MAX_PHASES + 1, "phases");
  PLANT(k, k->n_mems, KERN_MAX_MEMS + 1, "memories");
  struct kern_fn *fn = k->fns.at[0], *phase = k->fns.at[1];
  PLANT(k, fn->mems[1].dtype, QUERN_DTYPE_F64, "the dtype is not the memory's");
  PLANT(k, fn->insts.at[0].op, KERN_TASK, "only phases have a task");
  PLANT(k, phase->mems[2].role, KERN_IN, "the memories and scalars of phase 0");
  PLANT(k, phase->pool.at[0], phase->pool.at[3], "argument 0 is not memory");
  PLANT(k, phase->pool.at[3], phase->pool.at[0], "argument 3 is memory, not a value");
  PLANT(k, phase->pool.at[2], phase->pool.at[0], "the function it calls stores to an input");
  PLANT(k, k->failed, QUERN_STATUS_INTERNAL, "");
  kern_free(k);
}

/* ---- bounds --------------------------------------------------------------------------------------------------- */

static void expect_bounds(struct made m, bool good, int want_unproven) {
  int unproven = -1;
  if (good) {
    EXPECT_OK(kern_verify(m.kern, &unproven));
    if (unproven != want_unproven) {
      struct base_str text;
      base_str_init(&text, &ctx->heap);
      EXPECT_OK(kern_print(&text, m.kern));
      print_error("%s", text.at);
      base_str_fini(&text);
    }
    assert_int_equal(unproven, want_unproven);
  } else {
    EXPECT_ERROR(kern_verify(m.kern, NULL), INTERNAL, "no proof that it stays inside its memory");
  }
  kern_free(m.kern);
}

static void test_map_bounds(void **state) {
  (void)state;
  static const int64_t sizes[] = {1, 15, 16, 17, 100, 1000, 1024, 4099};
  for (size_t i = 0; i < BASE_COUNT(sizes); i++) {
    for (int64_t grain = 16; grain <= 1024; grain = grain * 3 + 8) {
      expect_bounds(made_map(sizes[i], grain, 0), true, 0);
      expect_bounds(made_map(sizes[i], grain, 1), false, 0);
      expect_bounds(made_map(sizes[i], grain, -1), false, 0);
    }
  }
  struct made m = made_map(1000, 64, 1);
  EXPECT_ERROR(kern_verify(m.kern, NULL), INTERNAL, ", elements to 1000 of 1000");
  kern_free(m.kern);
}

static void test_gemm_bounds(void **state) {
  (void)state;
  expect_bounds(made_gemm(64, 64, 64), true, 1); /* its one store is in the function that is called */
  expect_bounds(made_gemm(5, 20, 3), true, 1);
  expect_bounds(made_gemm(1, 1, 1), true, 0); /* one task */
  struct made m = made_gemm(5, 20, 3);
  m.kern->mems[0].count = m.kern->fns.at[1]->mems[0].count = 11; /* row 4 begins at 12 */
  EXPECT_ERROR(kern_verify(m.kern, NULL), INTERNAL, "elements to 11 of 11");
  kern_free(m.kern);
}

/* Small kernels: x is an input of 100 f32; each body loads from it in a way of its own, all right when `by` is 0, and a
** defect when it is 1. */
typedef void body(struct kern_builder *b, kern_id x, int64_t by);

static void body_const(struct kern_builder *b, kern_id x, int64_t by) { kern_load(b, x, I(b, 84 + by), 16); }
static void body_loop(struct kern_builder *b, kern_id x, int64_t by) {
  kern_id i = kern_for(b, I(b, 0), I(b, 97), 16); /* 0, ..., 96 */
  kern_load(b, x, i, 4);
  kern_load(b, x, kern_add(b, i, I(b, 3 + by)), 1);
  kern_end(b);
}
static void body_tail(struct kern_builder *b, kern_id x, int64_t by) {
  kern_id i = kern_for(b, I(b, 0), I(b, 100), 16);
  kern_load_n(b, x, i, 16, kern_sub(b, I(b, 100 + by), i));
  kern_end(b);
}
static void body_tail_min(struct kern_builder *b, kern_id x, int64_t by) {
  kern_id i = kern_for(b, I(b, 0), I(b, 100), 16);
  kern_load_n(b, x, i, 16, kern_min(b, I(b, 16), kern_sub(b, I(b, 100 + by), i)));
  kern_end(b);
}
static void body_tail_max(struct kern_builder *b, kern_id x, int64_t by) { /* the count may be negative */
  kern_id i = kern_for(b, I(b, 0), I(b, 200), 16);
  kern_load_n(b, x, i, 16, kern_max(b, I(b, 0), kern_sub(b, I(b, 100 + by), i)));
  kern_end(b);
}
static void body_tail_lanes(struct kern_builder *b, kern_id x,
                            int64_t by) { /* lanes that do not count repeat the last */
  kern_id hi = kern_min(b, kern_mul(b, kern_add(b, kern_task(b), I(b, 1)), I(b, 30)), I(b, 100));
  kern_id i = kern_for(b, kern_mul(b, kern_task(b), I(b, 30)), hi, 16);
  kern_id last = kern_sub(b, kern_sub(b, hi, i), I(b, 1 - by));
  kern_id lane = kern_min(b, kern_lane(b, QUERN_DTYPE_I64, 16), kern_splat(b, last, 16));
  kern_gather(b, x, kern_add(b, kern_splat(b, i, 16), lane));
  kern_end(b);
}
static void body_task(struct kern_builder *b, kern_id x, int64_t by) {
  kern_load(b, x, kern_add(b, kern_mul(b, kern_task(b), I(b, 25)), I(b, 9 + by)), 16);
}
static void body_div(struct kern_builder *b, kern_id x, int64_t by) { /* 25 (i / 7) + i mod 7 over 0 .. 27 */
  kern_id i = kern_for(b, I(b, 0), I(b, 28), 1);
  kern_id row = kern_mul(b, kern_idiv(b, i, 7), I(b, 25));
  kern_load(b, x, kern_add(b, kern_add(b, row, kern_imod(b, i, 7)), I(b, 18 + by)), 1);
  kern_end(b);
}
static void body_mod_aligned(struct kern_builder *b, kern_id x,
                             int64_t by) { /* multiples of 16 mod 96 are at most 80 */
  kern_id i = kern_for(b, I(b, 0), I(b, 1000), 16);
  kern_load(b, x, kern_add(b, kern_imod(b, i, 96), I(b, 4 + by)), 16);
  kern_end(b);
}
static void body_div_below(struct kern_builder *b, kern_id x, int64_t by) { /* 9 (i / 9) - i + 8 is 0 .. 8 */
  kern_id i = kern_for(b, I(b, 0), I(b, 100), 1);
  kern_load(b, x, kern_add(b, kern_sub(b, kern_mul(b, kern_idiv(b, i, 9), I(b, 9)), i), I(b, 8 - by)), 1);
  kern_end(b);
}
static void body_pair(struct kern_builder *b, kern_id x, int64_t by) { /* 9 (i / 9) + i mod 9 is i */
  kern_id i = kern_for(b, I(b, 0), I(b, 100), 1);
  kern_id j = kern_add(b, kern_mul(b, kern_idiv(b, i, 9), I(b, 9)), kern_imod(b, i, 9));
  kern_load(b, x, kern_add(b, j, I(b, by)), 1);
  kern_end(b);
}
static void body_clamp(struct kern_builder *b, kern_id x, int64_t by) { /* what was loaded, clamped */
  kern_id at = kern_cast(b, kern_load(b, kern_mem(b, 1), I(b, 0), 1), QUERN_DTYPE_I64);
  kern_load(b, x, kern_min(b, kern_max(b, at, I(b, 0)), I(b, 99 + by)), 1);
}
static void body_byte(struct kern_builder *b, kern_id x, int64_t by) { /* a byte less 156 is at most 99 */
  kern_id at = kern_cast(b, kern_const_i(b, QUERN_DTYPE_U8, 1, 200), QUERN_DTYPE_I64);
  at = kern_max(b, kern_sub(b, at, I(b, 101 - by)), I(b, 0));
  kern_load(b, x, at, 1);
}
static void body_if(struct kern_builder *b, kern_id x, int64_t by) {
  kern_id i = kern_for(b, I(b, 0), I(b, 1000), 1);
  kern_if(b, kern_bin(b, KERN_LT, i, I(b, 100 + by)));
  kern_load(b, x, i, 1);
  kern_else(b);
  kern_load(b, x, kern_sub(b, i, I(b, 1)), 0 + 1);
  kern_end(b);
  kern_end(b);
}
static void body_else(struct kern_builder *b, kern_id x, int64_t by) {
  kern_id i = kern_for(b, I(b, 0), I(b, 1000), 1);
  kern_if(b, kern_bin(b, KERN_LE, I(b, 100 + by), i));
  kern_else(b);
  kern_load(b, x, i, 1);
  kern_end(b);
  kern_end(b);
}
static void body_if_both(struct kern_builder *b, kern_id x, int64_t by) { /* 3 <= i and i < 103: i - 3 */
  kern_id i = kern_for(b, I(b, 0), I(b, 1000), 1);
  kern_id above = kern_bin(b, KERN_LE, I(b, 3), i), below = kern_bin(b, KERN_LT, i, I(b, 103));
  kern_if(b, kern_bin(b, KERN_AND, above, below));
  kern_load(b, x, kern_add(b, i, I(b, by - 3)), 1);
  kern_end(b);
  kern_end(b);
}
static void body_select(struct kern_builder *b, kern_id x, int64_t by) {
  kern_id i = kern_add(b, kern_splat(b, kern_for(b, I(b, 0), I(b, 1000), 16), 16), kern_lane(b, QUERN_DTYPE_I64, 16));
  kern_id zero = kern_const_i(b, QUERN_DTYPE_I64, 16, 0);
  kern_id inside = kern_bin(b, KERN_LT, i, kern_const_i(b, QUERN_DTYPE_I64, 16, 100 + by));
  kern_gather(b, x, kern_select(b, inside, i, zero));
  kern_end(b);
}
static void body_scalar(struct kern_builder *b, kern_id x, int64_t by) { /* a run-time extent, at most 100 */
  kern_id n = kern_min(b, kern_scalar(b, 0), I(b, 100 + by)), i = kern_for(b, I(b, 0), n, 16);
  kern_load_n(b, x, i, 16, kern_sub(b, n, i));
  kern_end(b);
}
static void body_at(struct kern_builder *b, kern_id x, int64_t by) {
  kern_id i = kern_for(b, I(b, 0), I(b, 10), 1), row = kern_at(b, x, kern_mul(b, i, I(b, 10)));
  kern_id j = kern_for(b, I(b, 0), I(b, 10), 2);
  kern_load(b, kern_at(b, row, j), I(b, by), 2);
  kern_end(b), kern_end(b);
}
static void body_at_end(struct kern_builder *b, kern_id x, int64_t by) { kern_at(b, x, I(b, 100 + by)); }
static void body_var(struct kern_builder *b, kern_id x, int64_t by) { /* a variable that is clamped when it is set */
  kern_id v = kern_var(b, I(b, 5));
  kern_for(b, I(b, 0), I(b, 10), 1);
  kern_id next = kern_min(b, kern_add(b, kern_max(b, kern_get(b, v), I(b, 0)), I(b, 7)), I(b, 99 + by));
  kern_load(b, x, kern_get(b, v), 1);
  kern_set(b, v, kern_max(b, next, I(b, 0)));
  kern_end(b);
}
static void body_shift(struct kern_builder *b, kern_id x, int64_t by) {
  kern_id i = kern_for(b, I(b, 0), I(b, 800), 1), three = I(b, 3);
  kern_load(b, x, kern_add(b, kern_bin(b, KERN_SHR, i, three), I(b, by)), 1);
  kern_load(b, x, kern_bin(b, KERN_AND, kern_sub(b, i, I(b, 400)), I(b, 63)), 1);
  kern_end(b);
}
static void body_local(struct kern_builder *b, kern_id x, int64_t by) {
  (void)x;
  kern_id l = kern_local(b, QUERN_DTYPE_F32, 40), t = kern_mul(b, kern_task(b), I(b, 10));
  kern_id i = kern_for(b, t, kern_add(b, t, I(b, 40 + by)), 1);
  kern_store(b, l, kern_sub(b, i, t), kern_const_f(b, QUERN_DTYPE_F32, 1, 0));
  kern_end(b);
}
static void body_extract(struct kern_builder *b, kern_id x, int64_t by) {
  kern_id v = kern_mul(b, kern_lane(b, QUERN_DTYPE_I64, 8), kern_const_i(b, QUERN_DTYPE_I64, 8, 33));
  kern_load(b, x, kern_add(b, kern_extract(b, v, 3), I(b, by)), 1);
}
static void body_rows(struct kern_builder *b, kern_id x, int64_t by) { /* a range of rows that ends with a minimum */
  kern_id lo = kern_mul(b, kern_task(b), I(b, 3)), hi = kern_min(b, kern_add(b, lo, I(b, 3)), I(b, 10));
  kern_id i = kern_for(b, lo, hi, 1);
  kern_load(b, x, kern_mul(b, i, I(b, 10)), 8);
  kern_load_n(b, x, kern_add(b, kern_mul(b, i, I(b, 10)), I(b, 8)), 8, I(b, 2 + by));
  kern_end(b);
}
static void body_once(struct kern_builder *b, kern_id x,
                      int64_t by) { /* a turn or none: not the one that lo could be */
  kern_id lo = kern_task(b), hi = kern_min(b, kern_add(b, lo, I(b, 1)), I(b, 3)), i = kern_for(b, lo, hi, 1);
  kern_id first = kern_splat(b, kern_mul(b, i, I(b, 8)), 8), v = kern_add(b, first, kern_lane(b, QUERN_DTYPE_I64, 8));
  kern_id at = kern_mul(b, kern_extract(b, kern_idiv(b, v, 4), 7), I(b, 19));
  kern_load(b, x, kern_add(b, at, I(b, 5 * by)), 1);
  kern_end(b);
}

static void test_bodies(void **state) {
  (void)state;
  static const struct {
    body *build;
    const char *name;
  } bodies[] = {
#define BODY(name) {body_##name, #name}
      BODY(const),  BODY(loop),        BODY(tail),      BODY(tail_min), BODY(tail_max), BODY(tail_lanes), BODY(task),
      BODY(div),    BODY(pair),        BODY(clamp),     BODY(byte),     BODY(else),     BODY(if_both),    BODY(select),
      BODY(scalar), BODY(at),          BODY(at_end),    BODY(var),      BODY(shift),    BODY(local),      BODY(extract),
      BODY(rows),   BODY(mod_aligned), BODY(div_below), BODY(once),
  };
  for (size_t i = 0; i < BASE_COUNT(bodies); i++) {
    for (int64_t by = 0; by < 2; by++) {
      struct made m = made_new();
      kern_add_mem(m.kern, QUERN_DTYPE_F32, KERN_IN, 100);
      kern_add_mem(m.kern, QUERN_DTYPE_I32, KERN_IN, 1);
      m.kern->n_scalars = 1;
      made_phase(&m, KERN_FIXED_TASKS(4));
      bodies[i].build(&m.b, kern_mem(&m.b, 0), by);
      made_finish(&m);
      quern_status status = kern_verify(m.kern, NULL);
      if ((status == QUERN_STATUS_OK) != (by == 0)) {
        print_error("%s by %d: %s\n", bodies[i].name, (int)by, quern_last_error());
        fail();
      }
      kern_free(m.kern);
    }
  }
  struct made m = made_new(); /* the other branch is not the same: there i is 100 and more */
  kern_add_mem(m.kern, QUERN_DTYPE_F32, KERN_IN, 100);
  made_phase(&m, KERN_FIXED_TASKS(4));
  body_if(&m.b, kern_mem(&m.b, 0), 0);
  made_finish(&m);
  EXPECT_ERROR(kern_verify(m.kern, NULL), INTERNAL, "index from 99, elements to 998 of 100");
  kern_free(m.kern);
}

/* What is not known, may wrap, or held elsewhere only is refused. */
static void test_refused(void **state) {
  (void)state;
  for (int kind = 0; kind < 7; kind++) {
    struct made m = made_new();
    struct kern_builder *b = &m.b;
    kern_add_mem(m.kern, QUERN_DTYPE_F32, KERN_IN, 100);
    m.kern->n_scalars = 1;
    made_phase(&m, KERN_FIXED_TASKS(2));
    kern_id x = kern_mem(b, 0), n = kern_scalar(b, 0);
    if (kind == 0) kern_load(b, x, n, 1);
    if (kind == 6) kern_prefetch(b, x, n);
    if (kind == 1) kern_load(b, x, kern_imod(b, kern_cast(b, kern_load(b, x, I(b, 0), 1), QUERN_DTYPE_I64), 101), 1);
    if (kind == 2) kern_load(b, x, kern_min(b, kern_add(b, I(b, INT64_MAX), kern_task(b)), I(b, 50)), 1); /* wraps */
    if (kind == 3) { /* 60000 * 60000 wraps in i32 */
      kern_id large = kern_const_i(b, QUERN_DTYPE_I32, 1, 60000);
      kern_load(b, x, kern_min(b, kern_cast(b, kern_mul(b, large, large), QUERN_DTYPE_I64), I(b, 50)), 1);
    }
    if (kind == 4) { /* n >= 1 where lanes are read, not behind */
      kern_id last = kern_sub(b, kern_max(b, kern_min(b, n, I(b, 50)), I(b, 0)), I(b, 1));
      kern_load_n(b, x, last, 1, kern_add(b, last, I(b, 1)));
      EXPECT_OK(kern_verify(m.kern, NULL));
      kern_load(b, x, last, 1);
    }
    if (kind == 5) { /* lanes of one vector are different values */
      kern_id r = kern_imod(b, kern_lane(b, QUERN_DTYPE_I64, 8), 3);
      kern_id apart = kern_sub(b, kern_extract(b, r, 1), kern_extract(b, r, 0));
      kern_load(b, x, kern_mul(b, apart, I(b, 100)), 1);
    }
    made_finish(&m);
    expect_bounds(m, false, 0);
  }
}

/* What never runs is not looked at. */
static void test_dead(void **state) {
  (void)state;
  for (int kind = 0; kind < 3; kind++) {
    struct made m = made_new();
    struct kern_builder *b = &m.b;
    kern_add_mem(m.kern, QUERN_DTYPE_F32, KERN_IN, 100);
    made_phase(&m, kind == 2 ? KERN_FIXED_TASKS(0) : KERN_FIXED_TASKS(1));
    kern_id x = kern_mem(b, 0);
    if (kind == 0) kern_for(b, I(b, 100), I(b, 100), 1);
    if (kind == 1) kern_if(b, kern_bin(b, KERN_LT, kern_task(b), I(b, 0)));
    kern_load(b, x, I(b, 100), 1);
    if (kind < 2) kern_end(b);
    made_finish(&m);
    expect_bounds(m, true, 0);
  }
}

/* Tasks that are as many as a scalar says. */
static void test_scalar_tasks(void **state) {
  (void)state;
  for (int64_t more = 0; more < 2; more++) {
    struct made m = made_new();
    struct kern_builder *b = &m.b;
    kern_add_mem(m.kern, QUERN_DTYPE_F32, KERN_OUT, 1000);
    m.kern->n_scalars = 1;
    made_phase(&m, (struct kern_tasks){0, 10, 32}); /* n rows of 10, in tasks of 32 elements */
    kern_id n = kern_min(b, kern_mul(b, kern_min(b, kern_scalar(b, 0), I(b, 100)), I(b, 10)), I(b, 1000 + more));
    kern_id lo = kern_mul(b, kern_task(b), I(b, 32)), hi = kern_min(b, kern_add(b, lo, I(b, 32)), n);
    kern_id i = kern_for(b, lo, hi, 16);
    kern_store_n(b, kern_mem(b, 0), kern_add(b, i, I(b, more)), kern_const_f(b, QUERN_DTYPE_F32, 16, 0),
                 kern_sub(b, hi, i));
    kern_end(b);
    made_finish(&m);
    expect_bounds(m, more == 0, 0);
  }
}

/* The range of a function's scalar is what it is called with. */
static void test_calls(void **state) {
  (void)state;
  for (int64_t count = 16; count < 18; count++) {
    struct made m = made_new();
    struct kern_fn *fn = kern_add_fn(m.kern, "fill", 0, NULL, 1);
    struct kern_builder f = {.kern = m.kern, .fn = fn}, *b = &m.b;
    kern_id l = kern_local(&f, QUERN_DTYPE_F32, 16), i = kern_for(&f, I(&f, 0), kern_scalar(&f, 0), 1);
    kern_store(&f, l, i, kern_const_f(&f, QUERN_DTYPE_F32, 1, 0));
    kern_end(&f);
    made_phase(&m, KERN_FIXED_TASKS(1));
    kern_call_fn(b, fn, 0, NULL, 1, &(kern_id){I(b, 3)});
    kern_call_fn(b, fn, 0, NULL, 1, &(kern_id){I(b, count)});
    made_finish(&m);
    expect_bounds(m, count == 16, 0);
  }
}

/* ---- races ---------------------------------------------------------------------------------------------------- */

/* Stores of f32 zeros to a memory of rows x cols, as `build` does. Returns how many stores are not proven apart. */
enum { ROWS = 37, COLS = 50 };

static int races_of(void (*build)(struct kern_builder *b, kern_id y, kern_id t), int64_t tasks) {
  struct made m = made_new();
  int unproven = -1;
  kern_add_mem(m.kern, QUERN_DTYPE_F32, KERN_OUT, ROWS * COLS);
  made_phase(&m, KERN_FIXED_TASKS(tasks));
  build(&m.b, kern_mem(&m.b, 0), kern_task(&m.b));
  made_finish(&m);
  EXPECT_OK(kern_verify(m.kern, &unproven));
  kern_free(m.kern);
  return unproven;
}

static void put(struct kern_builder *b, kern_id y, kern_id at, int lanes) {
  kern_store(b, y, at, kern_const_f(b, QUERN_DTYPE_F32, lanes, 0));
}

static void race_rows(struct kern_builder *b, kern_id y, kern_id t) { /* 37 tasks: a row each */
  kern_id row = kern_mul(b, t, I(b, COLS)), j = kern_for(b, I(b, 0), I(b, 48), 16);
  put(b, y, kern_add(b, row, j), 16);
  kern_end(b);
  put(b, y, kern_add(b, row, I(b, 48)), 2);
}
static void race_overlap(struct kern_builder *b, kern_id y, kern_id t) { /* a row and one more */
  kern_id row = kern_mul(b, t, I(b, COLS)), j = kern_for(b, I(b, 0), I(b, 51), 1);
  put(b, y, kern_min(b, kern_add(b, row, j), I(b, ROWS * COLS - 1)), 1);
  kern_end(b);
}
static void race_same(struct kern_builder *b, kern_id y, kern_id t) { /* all tasks to one place */
  (void)t;
  put(b, y, I(b, 0), 1);
}
static void race_cross(struct kern_builder *b, kern_id y, kern_id t) { /* two stores, each by itself apart */
  put(b, y, kern_mul(b, t, I(b, COLS)), 16);
  put(b, y, kern_add(b, kern_mul(b, t, I(b, COLS)), I(b, 0 + COLS)), 16);
}
static void race_tiles(struct kern_builder *b, kern_id y, kern_id t) { /* 10 x 4 tiles of 4 x 16, cut at the edges */
  kern_id i0 = kern_mul(b, kern_idiv(b, t, 4), I(b, 4)), j0 = kern_mul(b, kern_imod(b, t, 4), I(b, 16));
  kern_id i = kern_for(b, i0, kern_min(b, kern_add(b, i0, I(b, 4)), I(b, ROWS)), 1);
  kern_id left = kern_min(b, I(b, 16), kern_sub(b, I(b, COLS), j0));
  kern_store_n(b, y, kern_add(b, kern_mul(b, i, I(b, COLS)), j0), kern_const_f(b, QUERN_DTYPE_F32, 16, 0), left);
  kern_end(b);
}
static void race_tiles_wide(struct kern_builder *b, kern_id y, kern_id t) { /* tiles that are one too wide */
  kern_id i0 = kern_mul(b, kern_idiv(b, t, 4), I(b, 4)), j0 = kern_mul(b, kern_imod(b, t, 4), I(b, 11));
  kern_id i = kern_for(b, i0, kern_min(b, kern_add(b, i0, I(b, 4)), I(b, ROWS)), 1);
  kern_id j = kern_for(b, j0, kern_add(b, j0, I(b, 12)), 1);
  put(b, y, kern_add(b, kern_mul(b, i, I(b, COLS)), j), 1);
  kern_end(b), kern_end(b);
}
static void race_columns(struct kern_builder *b, kern_id y, kern_id t) { /* 50 tasks: a column each */
  kern_id i = kern_for(b, I(b, 0), I(b, ROWS), 1);
  put(b, y, kern_add(b, kern_mul(b, i, I(b, COLS)), t), 1);
  kern_end(b);
}
static void race_last(struct kern_builder *b, kern_id y, kern_id t) { /* the last task also stores the rest */
  put(b, y, kern_mul(b, t, I(b, 16)), 16);
  kern_if(b, kern_bin(b, KERN_EQ, t, I(b, 9)));
  put(b, y, I(b, 160), 8);
  kern_end(b);
}
static void race_loaded(struct kern_builder *b, kern_id y, kern_id t) { /* at a place that was loaded */
  kern_id at = kern_cast(b, kern_load(b, y, t, 1), QUERN_DTYPE_I64);
  put(b, y, kern_min(b, kern_max(b, at, I(b, 0)), I(b, 9)), 1);
}
/* A memory read as (5, 10, 37), tasks of (1, 5, 12): 5 x 2 x 3 of them, the last column stays. */
static void race_three(struct kern_builder *b, kern_id y, kern_id t) {
  kern_id q = kern_idiv(b, t, 3);
  kern_id a = kern_idiv(b, q, 2), c = kern_mul(b, kern_imod(b, q, 2), I(b, 5)),
          d = kern_mul(b, kern_imod(b, t, 3), I(b, 12));
  kern_id i = kern_for(b, c, kern_add(b, c, I(b, 5)), 1), j = kern_for(b, d, kern_add(b, d, I(b, 12)), 4);
  kern_id at = kern_add(b, kern_mul(b, a, I(b, 370)), kern_add(b, kern_mul(b, i, I(b, 37)), j));
  put(b, y, at, 4);
  kern_end(b), kern_end(b);
}

static void race_two(struct kern_builder *b, kern_id y, kern_id t) { /* one task stores 16 columns, the other 4 more */
  kern_if(b, kern_bin(b, KERN_LT, t, I(b, 1)));
  kern_id i = kern_for(b, I(b, 0), I(b, ROWS), 1);
  put(b, y, kern_mul(b, i, I(b, COLS)), 16);
  kern_end(b);
  kern_else(b);
  kern_id k = kern_for(b, I(b, 0), I(b, ROWS), 1);
  put(b, y, kern_add(b, kern_mul(b, k, I(b, COLS)), I(b, 16)), 4);
  kern_end(b), kern_end(b);
}
static void race_mirror(struct kern_builder *b, kern_id y, kern_id t) { /* from the end to the start, unrolled by two */
  kern_id lo = kern_mul(b, t, I(b, 10)), hi = kern_min(b, kern_add(b, lo, I(b, 10)), I(b, ROWS));
  kern_id i = kern_for(b, lo, hi, 1), at = kern_sub(b, I(b, ROWS - 1), i);
  put(b, y, at, 1);
  put(b, y, kern_add(b, at, I(b, 40)), 1);
  kern_end(b);
}

static void test_races(void **state) {
  (void)state;
  assert_int_equal(races_of(race_rows, ROWS), 0);
  assert_int_equal(races_of(race_overlap, ROWS), 1);
  assert_int_equal(races_of(race_same, 1), 0);
  assert_int_equal(races_of(race_same, 2), 1);
  assert_int_equal(races_of(race_cross, ROWS - 1), 2);
  assert_int_equal(races_of(race_tiles, 40), 0);
  assert_int_equal(races_of(race_tiles_wide, 40), 1);
  assert_int_equal(races_of(race_columns, COLS), 0);
  assert_int_equal(races_of(race_last, 10), 0);
  assert_int_equal(races_of(race_last, 11), 2);
  assert_int_equal(races_of(race_loaded, 10), 1);
  assert_int_equal(races_of(race_two, 2), 0);
  assert_int_equal(races_of(race_two, 3), 2);
  assert_int_equal(races_of(race_mirror, 4), 0);
  assert_int_equal(races_of(race_three, 30), 0);
}

/* ---- memory --------------------------------------------------------------------------------------------------- */

static void test_faults(void **state) {
  (void)state;
  struct made m = made_gemm(37, 50, 7);
  struct fault fault = {0};
  while (fault_next(&fault)) {
    fault_begin(&fault);
    quern_status status = kern_verify(m.kern, NULL);
    fault_end(&fault);
    EXPECT_FAULT(&fault, status);
  }
  assert_true(fault.n > 5);
  kern_free(m.kern);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(test_wrong_instructions), TEST(test_scopes), TEST(test_kernels), TEST(test_map_bounds),
      TEST(test_gemm_bounds),        TEST(test_bodies), TEST(test_refused), TEST(test_dead),
      TEST(test_scalar_tasks),       TEST(test_calls),  TEST(test_races),   TEST(test_faults),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
