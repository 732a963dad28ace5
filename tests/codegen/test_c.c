/* tests/codegen/test_c.c -- every instruction, dtype and number of lanes: the compiled C gives the interpreter's bits
** For each target that this machine runs and each compiler it has, one unit with all kernels. Values are chosen at
** edges: zeros of both signs, subnormal numbers, limits of all formats, halves, infinities, NaN.
*/
#define _DEFAULT_SOURCE
#include "codegen/run.h"

enum { N = 1024, MAX_OUTS = 96 };

/* ---- one kernel a dtype and number of lanes -------------------------------------------------------------- */

static bool is_narrow(quern_dtype d) { return base_dtype_is(d, BASE_FLOAT) && base_dtypes[d].size < 4; }

struct maker {
  struct kern_builder b;
  int n_outs;
  quern_dtype outs[MAX_OUTS];
  char what[MAX_OUTS][48];
  int first_out; /* -1 while the outputs are only counted */
  kern_id at;    /* of the task's first element */
};

/* Stores a value of any lanes to the next output; each has room for 64 lanes' worth a task. */
static void out(struct maker *m, kern_id value, const char *fmt, const char *detail) {
  int number = m->n_outs++, lanes = kern_at_id(&m->b, value)->lanes;
  assert_true(number < MAX_OUTS);
  m->outs[number] = kern_at_id(&m->b, value)->dtype;
  snprintf(m->what[number], sizeof m->what[number], fmt, detail);
  if (m->first_out < 0) return;
  kern_id at = kern_mul_i(&m->b, kern_task(&m->b), lanes);
  kern_store(&m->b, kern_mem(&m->b, m->first_out + number), at, value);
}

static void make_arithmetic(struct maker *m, quern_dtype dtype, kern_id x, kern_id y, kern_id z) {
  static const struct {
    enum kern_op op;
    int n, classes;
  } ops[] = {
      {KERN_ADD, 2, BASE_NUM},     {KERN_SUB, 2, BASE_NUM},    {KERN_MUL, 2, BASE_NUM},     {KERN_DIV, 2, BASE_NUM},
      {KERN_MOD, 2, BASE_INT},     {KERN_NEG, 1, BASE_NUM},    {KERN_ABS, 1, BASE_NUM},     {KERN_SQRT, 1, BASE_FLOAT},
      {KERN_FLOOR, 1, BASE_FLOAT}, {KERN_CEIL, 1, BASE_FLOAT}, {KERN_ROUND, 1, BASE_FLOAT}, {KERN_TRUNC, 1, BASE_FLOAT},
      {KERN_MAX, 2, BASE_ANY},     {KERN_MIN, 2, BASE_ANY},    {KERN_AND, 2, BASE_BITS},    {KERN_OR, 2, BASE_BITS},
      {KERN_XOR, 2, BASE_BITS},    {KERN_NOT, 1, BASE_BITS},   {KERN_SHL, 2, BASE_INT},     {KERN_SHR, 2, BASE_INT},
      {KERN_EQ, 2, BASE_ANY},      {KERN_LT, 2, BASE_ANY},     {KERN_LE, 2, BASE_ANY},      {KERN_FMA, 3, BASE_FLOAT}};
  int lanes = kern_at_id(&m->b, x)->lanes, bits = 8 * (int)base_dtypes[dtype].size;
  for (size_t i = 0; i < BASE_COUNT(ops) && !is_narrow(dtype); i++) {
    if (!base_dtype_is(dtype, (enum base_dtype_class)ops[i].classes)) continue;
    kern_id value = ops[i].n == 1   ? kern_un(&m->b, ops[i].op, x)
                    : ops[i].n == 2 ? kern_bin(&m->b, ops[i].op, x, y)
                                    : kern_fma(&m->b, x, y, z);
    out(m, value, "%s", kern_ops[ops[i].op].name);
    if (kern_ops[ops[i].op].result == KERN_RESULT_MASK) {
      kern_id not = kern_un(&m->b, KERN_NOT, value);
      out(m, kern_select(&m->b, not, x, z), "select by not %s", kern_ops[ops[i].op].name);
      if (dtype != QUERN_DTYPE_BOOL)
        out(m, kern_cast(&m->b, value, dtype), "mask of %s cast", kern_ops[ops[i].op].name);
    }
  }
  if (base_dtype_is(dtype, BASE_INT)) { /* ptxas 13.0 lost the sign of the second */
    kern_id minus[3] = {kern_un(&m->b, KERN_NEG, x), kern_un(&m->b, KERN_NEG, y), kern_un(&m->b, KERN_NEG, z)};
    out(m, kern_min(&m->b, kern_min(&m->b, minus[0], minus[1]), minus[2]), "the least of three %s", "negatives");
    out(m, kern_max(&m->b, kern_max(&m->b, minus[0], minus[1]), minus[2]), "the greatest of three %s", "negatives");
    kern_id more = minus[0];
    for (int i = 1; i < 3; i++) more = kern_select(&m->b, kern_bin(&m->b, KERN_LT, more, minus[i]), minus[i], more);
    out(m, more, "the greatest of three %s, selected", "negatives");
  }
  if (base_dtype_is(dtype, BASE_FLOAT) && !is_narrow(dtype)) { /* a comparison that chooses between what it compares */
    kern_id less = kern_bin(&m->b, KERN_LT, x, y);
    out(m, kern_select(&m->b, less, x, y), "the %s", "lesser");
    out(m, kern_select(&m->b, less, y, x), "the %s", "greater");
  }
  if (base_dtype_is(dtype, BASE_FLOAT) && !is_narrow(dtype)) {
    double far = dtype == QUERN_DTYPE_F32 ? 200 : 1500;
    kern_id power = kern_un(&m->b, KERN_ROUND, kern_mul(&m->b, y, kern_const_f(&m->b, dtype, lanes, 16)));
    power = kern_min(&m->b, power, kern_const_f(&m->b, dtype, lanes, far));
    power = kern_max(&m->b, power, kern_const_f(&m->b, dtype, lanes, -far));
    kern_id near = kern_min(&m->b, x, kern_const_f(&m->b, dtype, lanes, 3.75));
    near = kern_max(&m->b, near, kern_const_f(&m->b, dtype, lanes, 0.25));
    near = kern_add(&m->b, near, kern_mul(&m->b, power, kern_const_f(&m->b, dtype, lanes, 0))); /* NaN where power is */
    out(m, kern_bin(&m->b, KERN_SCALE, near, power), "%s", "scale");
  }
  for (int by = 0; base_dtype_is(dtype, BASE_INT) && by < 4; by++) {
    const int counts[] = {3, bits - 1, bits, -5};
    static const char *const names[] = {"", "", "too large", "below 0"};
    kern_id count = kern_const_i(&m->b, dtype, lanes, counts[by]);
    out(m, kern_bin(&m->b, KERN_SHL, x, count), "shl by constant %s", names[by]);
    out(m, kern_bin(&m->b, KERN_SHR, x, count), "shr by constant %s", names[by]);
  }
}

static uint64_t one_bits(quern_dtype dtype) {
  uint64_t bits = 0, one = 1;
  base_convert(dtype, &bits, 0, QUERN_DTYPE_U64, &one, 0);
  return bits;
}

static void make_movement(struct maker *m, quern_dtype dtype, kern_id x, kern_id y, kern_id mask) {
  int lanes = kern_at_id(&m->b, x)->lanes, size = (int)base_dtypes[dtype].size, pattern[KERN_MAX_LANES];
  out(m, kern_select(&m->b, mask, x, y), "select%s", "");
  for (int d = 0; d < QUERN_DTYPE_COUNT; d++)
    if ((quern_dtype)d != dtype) out(m, kern_cast(&m->b, x, (quern_dtype)d), "cast to %s", base_dtypes[d].name);
  if (dtype != QUERN_DTYPE_BOOL) {
    static const quern_dtype unsigneds[] = {QUERN_DTYPE_U8, QUERN_DTYPE_U16, QUERN_DTYPE_U32, QUERN_DTYPE_U64};
    for (int i = 0; i < 4; i++) {
      int bytes = lanes * size, to = 1 << i;
      if (bytes % to != 0 || bytes / to > KERN_MAX_LANES || unsigneds[i] == dtype) continue;
      kern_id cast = kern_bitcast(&m->b, x, unsigneds[i]);
      out(m, kern_bitcast(&m->b, kern_un(&m->b, KERN_NOT, cast), dtype), "bitcast to %s",
          base_dtypes[unsigneds[i]].name);
    }
  } else {
    kern_id byte = kern_bitcast(&m->b, x, QUERN_DTYPE_U8);
    out(m, byte, "bitcast to u8%s", "");
    out(m, kern_bitcast(&m->b, byte, QUERN_DTYPE_BOOL), "bitcast to bool%s", "");
  }
  out(m, kern_splat(&m->b, kern_extract(&m->b, x, lanes - 1), lanes), "splat of extract%s", "");
  static const enum kern_op folds[] = {KERN_MAX, KERN_MIN, KERN_ADD, KERN_MUL};
  for (int i = 0; i < (is_narrow(dtype) ? 0 : dtype == QUERN_DTYPE_BOOL ? 2 : 4); i++)
    out(m, kern_splat(&m->b, kern_hreduce(&m->b, folds[i], x), lanes), "fold by %s", kern_ops[folds[i]].name);
  kern_id constant = kern_const_bits(&m->b, dtype, lanes, one_bits(dtype));
  out(m, kern_select(&m->b, mask, constant, y), "select of constant%s", "");
  if (lanes == 1) return;
  kern_id low = kern_low(&m->b, x), high = kern_high(&m->b, y);
  out(m, low, "low%s", "");
  out(m, high, "high%s", "");
  out(m, kern_join(&m->b, high, low), "join%s", "");
  for (int i = 0; i < lanes; i++) pattern[i] = i % 2 ? lanes + i / 2 : i / 2;
  out(m, kern_shuffle(&m->b, x, y, lanes, pattern), "shuffle %s", "interleaved");
  for (int i = 0; i < lanes; i++) pattern[i] = (i * 7 + 3) % (2 * lanes);
  out(m, kern_shuffle(&m->b, x, y, lanes, pattern), "shuffle %s", "mixed");
  for (int i = 0; i < lanes / 2; i++) pattern[i] = lanes - 1 - i;
  out(m, kern_shuffle(&m->b, x, y, lanes / 2, pattern), "shuffle %s", "half");
}

/* Memory: gathers, and the first lanes only. Counts of -1 to beyond the last lane. */
static void make_memory(struct maker *m, quern_dtype dtype, kern_id x, int lanes) {
  kern_id lane = kern_lane(&m->b, QUERN_DTYPE_I64, lanes);
  kern_id first = kern_splat(&m->b, m->at, lanes), last = kern_const_i(&m->b, QUERN_DTYPE_I64, lanes, N - 1);
  kern_id back = kern_sub(&m->b, last, kern_add(&m->b, first, lane));
  kern_prefetch(&m->b, kern_mem(&m->b, 0), m->at);
  out(m, kern_gather(&m->b, kern_mem(&m->b, 0), back), "gather%s", "");
  kern_id count = kern_sub(&m->b, kern_imod(&m->b, kern_task(&m->b), lanes + 3), kern_index(&m->b, 1));
  kern_id part = kern_load_n(&m->b, kern_mem(&m->b, 0), m->at, lanes, count);
  out(m, part, "load of some lanes%s", "");
  kern_id many = kern_add(&m->b, count, kern_index(&m->b, 258));
  out(m, kern_load_n(&m->b, kern_mem(&m->b, 0), m->at, lanes, many), "load of more than all lanes%s", "");
  int number = m->n_outs++;
  m->outs[number] = dtype;
  snprintf(m->what[number], sizeof m->what[number], "store of some lanes");
  if (m->first_out < 0) return;
  kern_store_n(&m->b, kern_mem(&m->b, m->first_out + number), m->at, x, count);
}

static void make_body(struct maker *m, quern_dtype dtype, int lanes) {
  struct kern_builder *b = &m->b;
  m->at = kern_mul(b, kern_task(b), kern_index(b, lanes));
  kern_id x = kern_load(b, kern_mem(b, 0), m->at, lanes), y = kern_load(b, kern_mem(b, 1), m->at, lanes);
  kern_id z = kern_load(b, kern_mem(b, 2), m->at, lanes), mask = kern_load(b, kern_mem(b, 3), m->at, lanes);
  make_arithmetic(m, dtype, x, y, z);
  make_movement(m, dtype, x, y, mask);
  make_memory(m, dtype, x, lanes);
}

/* Inputs x, y, z, a mask; then the outputs, whose number is found by a first round. */
static struct kern *make_kernel(struct maker *m, quern_dtype dtype, int lanes) {
  struct kern *kern = NULL;
  *m = (struct maker){.first_out = -1};
  for (int round = 0; round < 2; round++) {
    kern_free(kern);
    kern = new_kernel();
    for (int i = 0; i < 3; i++) kern_add_mem(kern, dtype, KERN_IN, N);
    kern_add_mem(kern, QUERN_DTYPE_BOOL, KERN_IN, N);
    for (int i = 0; i < m->n_outs; i++) kern->mems[kern_add_mem(kern, m->outs[i], KERN_OUT, N * 8)].streaming = i % 2;
    m->first_out = round == 0 ? -1 : 4;
    m->n_outs = 0;
    m->b = (struct kern_builder){kern, kern_add_phase(kern, KERN_FIXED_TASKS(N / lanes))};
    make_body(m, dtype, lanes);
  }
  char root[32];
  snprintf(root, sizeof root, "%s_%d", base_dtypes[dtype].name, lanes);
  EXPECT_OK(kern_finish(kern, root, NULL));
  return kern;
}

static void make_all_types(struct built *built, const struct cg_target *target, bool best) {
  static struct maker makers[MAX_KERNELS];
  for (int d = 0; d < QUERN_DTYPE_COUNT; d++) {
    int full = target->base.vector_bytes / (int)base_dtypes[d].size;
    const int lanes[] = {1, best ? 2 : 1, full, best ? 2 * full : full, run_all ? KERN_MAX_LANES : 1};
    for (size_t i = 0; i < BASE_COUNT(lanes); i++) {
      if (lanes[i] > KERN_MAX_LANES || (i > 0 && lanes[i] <= lanes[i - 1])) continue;
      size_t n = built->n++;
      assert_true(n < MAX_KERNELS);
      built->kernels[n] = make_kernel(&makers[n], (quern_dtype)d, lanes[i]);
      built->what[n] = makers[n].what;
    }
  }
}
static void test_all_types(void **state) {
  (void)state;
  compare_all(make_all_types);
}

int main(int argc, char **argv) {
  read_arguments(argc, argv);
  const struct CMUnitTest tests[] = {TEST_HEAP(test_all_types)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
