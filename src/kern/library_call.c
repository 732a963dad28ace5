/* kern/library_call.c -- library calls: checked, as text, in the hash, and run with plain loops
** in:    a kernel whose call is one of kern.h     out: what a library gives, up to the order of sums
** keeps: sums are in the dtype of accumulators, from the first term to the last; every result is rounded once
** see:   library_attention.c, docs/design/008-libraries.md      tests: tests/kern/test_library_call.c
*/
#include <math.h>
#include <stdio.h>

#include "kern/kern_int.h"

/* ---- checking -------------------------------------------------------------------------------------------- */

quern_status kern_library_fault(const struct kern *kern, const char *fmt, ...) {
  char what[BASE_MESSAGE_BYTES / 2];
  va_list args;
  va_start(args, fmt);
  vsnprintf(what, sizeof what, fmt, args);
  va_end(args);
  return base_error(QUERN_STATUS_INTERNAL, "kernel %s, its call: %s", kern_name(kern), what);
}

quern_status kern_check_reach(const struct kern *kern, const char *name, int mem, enum kern_role role, int64_t at,
                              int n, const int64_t *extents, const int64_t *strides) {
  if (mem < 0 || mem >= kern->n_mems) return kern_library_fault(kern, "%s is memory %d, which there is not", name, mem);
  if (kern->mems[mem].role != role)
    return kern_library_fault(kern, "%s, memory %d, has role %d, not %d", name, mem, (int)kern->mems[mem].role,
                              (int)role);
  if ((unsigned)kern->mems[mem].dtype >= QUERN_DTYPE_COUNT)
    return kern_library_fault(kern, "%s, memory %d, has dtype %d", name, mem, (int)kern->mems[mem].dtype);
  int64_t last = at;
  for (int i = 0; i < n; i++) {
    int64_t reach;
    if (extents[i] == 0) return QUERN_STATUS_OK;
    if (extents[i] < 0 || strides[i] < 0 || !kern_mul_fits(extents[i] - 1, strides[i], &reach) ||
        !kern_add_fits(last, reach, &last))
      return kern_library_fault(kern, "%s has extent %lld with stride %lld", name, (long long)extents[i],
                                (long long)strides[i]);
  }
  if (at < 0 || last >= kern->mems[mem].count)
    return kern_library_fault(kern, "%s has elements %lld to %lld of a memory of %lld", name, (long long)at,
                              (long long)last, (long long)kern->mems[mem].count);
  return QUERN_STATUS_OK;
}

static quern_status check_matrix(const struct kern *kern, const char *name, const struct kern_matrix *m,
                                 enum kern_role role, int64_t rows, int64_t columns) {
  const struct kern_gemm *g = &kern->library_call.gemm;
  if (m->mem == KERN_NONE) return QUERN_STATUS_OK;
  const int64_t extents[] = {g->batch, rows, columns}, strides[] = {m->batch, m->row, m->column};
  QUERN_TRY(kern_check_reach(kern, name, m->mem, role, m->at, 3, extents, strides));
  if ((m->row != 1 && rows != 1) && (m->column != 1 && columns != 1))
    return kern_library_fault(kern, "neither rows nor columns of %s are neighbors: strides %lld and %lld", name,
                              (long long)m->row, (long long)m->column);
  return QUERN_STATUS_OK;
}

static quern_status check_vector(const struct kern *kern, const char *name, int mem, enum kern_role role, int64_t n) {
  const int64_t stride = 1;
  return mem == KERN_NONE ? QUERN_STATUS_OK : kern_check_reach(kern, name, mem, role, 0, 1, &n, &stride);
}

static quern_dtype dtype_of(const struct kern *kern, int mem) { return kern->mems[mem].dtype; }

/* Operands of one dtype; the others of that dtype or of accumulators. */
static quern_status check_dtypes(const struct kern *kern) {
  const struct kern_gemm *g = &kern->library_call.gemm;
  quern_dtype dtype = dtype_of(kern, g->a.mem), acc = kern_acc_dtype(dtype);
  bool known =
      dtype == QUERN_DTYPE_F32 || dtype == QUERN_DTYPE_F64 || dtype == QUERN_DTYPE_BF16 || dtype == QUERN_DTYPE_F16;
  if (!known || dtype_of(kern, g->b.mem) != dtype)
    return kern_library_fault(kern, "operands of %s and %s", base_dtypes[dtype].name,
                              base_dtypes[dtype_of(kern, g->b.mem)].name);
  const int others[] = {g->y.mem, g->add.mem, g->aux.mem, g->bias, g->a_sums, g->y_sums};
  for (size_t i = 0; i < BASE_COUNT(others); i++) {
    if (others[i] == KERN_NONE) continue;
    quern_dtype other = dtype_of(kern, others[i]);
    if (other != dtype && other != acc)
      return kern_library_fault(kern, "memory %d is of %s beside operands of %s", others[i], base_dtypes[other].name,
                                base_dtypes[dtype].name);
  }
  return QUERN_STATUS_OK;
}

static quern_status check_gemm(const struct kern *kern) {
  const struct kern_gemm *g = &kern->library_call.gemm;
  if (g->batch < 0 || g->rows < 0 || g->columns < 0 || g->terms < 0 || g->a.mem < 0 || g->b.mem < 0 || g->y.mem < 0)
    return kern_library_fault(kern, "a product of %lld x %lld x %lld with %lld terms", (long long)g->batch,
                              (long long)g->rows, (long long)g->columns, (long long)g->terms);
  QUERN_TRY(check_matrix(kern, "a", &g->a, KERN_IN, g->rows, g->terms));
  QUERN_TRY(check_matrix(kern, "b", &g->b, KERN_IN, g->columns, g->terms));
  QUERN_TRY(check_matrix(kern, "y", &g->y, KERN_OUT, g->rows, g->columns));
  QUERN_TRY(check_matrix(kern, "add", &g->add, KERN_IN, g->rows, g->columns));
  QUERN_TRY(check_matrix(kern, "aux", &g->aux, g->back ? KERN_IN : KERN_OUT, g->rows, g->columns));
  QUERN_TRY(check_vector(kern, "bias", g->bias, KERN_IN, g->columns));
  QUERN_TRY(check_vector(kern, "a_sums", g->a_sums, KERN_OUT, g->rows));
  QUERN_TRY(check_vector(kern, "y_sums", g->y_sums, KERN_OUT, g->columns));
  if ((unsigned)g->act > KERN_ACT_GELU_TANH || (g->back && (g->act == KERN_ACT_NONE || g->aux.mem == KERN_NONE)))
    return kern_library_fault(kern, "activation %d%s", (int)g->act,
                              g->back ? " backward, without the saved pre-activation" : "");
  if (g->batch != 1 && (g->bias != KERN_NONE || g->a_sums != KERN_NONE || g->y_sums != KERN_NONE))
    return kern_library_fault(kern, "a vector beside %lld products", (long long)g->batch);
  return check_dtypes(kern);
}

/* ---- text ------------------------------------------------------------------------------------------------ */

static void print_matrix(struct base_str *str, const char *name, const struct kern_matrix *m) {
  if (m->mem == KERN_NONE) return;
  base_str_printf(str, "  %s: mem %d, %lld + %lld n + %lld i + %lld j\n", name, m->mem, (long long)m->at,
                  (long long)m->batch, (long long)m->row, (long long)m->column);
}

static void print_vector(struct base_str *str, const char *name, int mem) {
  if (mem != KERN_NONE) base_str_printf(str, "  %s: mem %d\n", name, mem);
}

static void print_gemm(struct base_str *str, const struct kern *kern) {
  static const char *const acts[] = {"", ", relu", ", gelu_tanh"};
  const struct kern_gemm *g = &kern->library_call.gemm;
  base_str_printf(str, " %lld x %lld x %lld, terms %lld%s%s%s:\n", (long long)g->batch, (long long)g->rows,
                  (long long)g->columns, (long long)g->terms, acts[g->act], g->back ? " backward" : "",
                  g->tf32 ? ", tf32" : "");
  print_matrix(str, "a", &g->a);
  print_matrix(str, "b", &g->b);
  print_matrix(str, "y", &g->y);
  print_matrix(str, "add", &g->add);
  print_matrix(str, "aux", &g->aux);
  print_vector(str, "bias", g->bias);
  print_vector(str, "a_sums", g->a_sums);
  print_vector(str, "y_sums", g->y_sums);
}

/* ---- hashing --------------------------------------------------------------------------------------------- */

static uint64_t hash_matrix(uint64_t h, const struct kern_matrix *m) {
  const int64_t words[] = {m->mem, m->at, m->batch, m->row, m->column};
  return base_hash_bytes(h, words, sizeof words);
}

static uint64_t hash_gemm(uint64_t h, const struct kern *kern) {
  const struct kern_gemm *g = &kern->library_call.gemm;
  const int64_t words[] = {g->batch,  g->rows,   g->columns, g->terms, g->bias,
                           g->a_sums, g->y_sums, g->act,     g->back,  g->tf32};
  const struct kern_matrix *const matrices[] = {&g->a, &g->b, &g->y, &g->add, &g->aux};
  h = base_hash_bytes(h, words, sizeof words);
  for (size_t i = 0; i < BASE_COUNT(matrices); i++) h = hash_matrix(h, matrices[i]);
  return h;
}

/* ---- running --------------------------------------------------------------------------------------------- */

static int64_t element(const struct kern_matrix *m, int64_t n, int64_t i, int64_t j) {
  return m->at + n * m->batch + i * m->row + j * m->column;
}

static double load(const struct kern *kern, void *const *mems, const struct kern_matrix *m, int64_t n, int64_t i,
                   int64_t j) {
  return base_load_float(dtype_of(kern, m->mem), mems[m->mem], (size_t)element(m, n, i, j));
}

static void store(const struct kern *kern, void *const *mems, const struct kern_matrix *m, int64_t n, int64_t i,
                  int64_t j, double x) {
  base_store_float(dtype_of(kern, m->mem), mems[m->mem], (size_t)element(m, n, i, j), x);
}

static const double gelu_slope = 0.7978845608028654, gelu_cube = 0.044715; /* sqrt(2 / pi) */

static double activate(enum kern_activation act, double x) {
  if (act == KERN_ACT_RELU) return isnan(x) || x > 0 ? x : 0;
  if (act == KERN_ACT_GELU_TANH) return 0.5 * x * (1 + tanh(gelu_slope * (x + gelu_cube * x * x * x)));
  return x;
}

static double activation_slope(enum kern_activation act, double x) {
  if (act == KERN_ACT_RELU) return x > 0 ? 1 : 0;
  double t = tanh(gelu_slope * (x + gelu_cube * x * x * x));
  double inner = isinf(x) ? 0 : 0.5 * x * (1 - t * t) * gelu_slope * (1 + 3 * gelu_cube * x * x);
  return 0.5 * (1 + t) + inner;
}

/* x + y in the dtype of accumulators. */
static double plus(quern_dtype acc, double x, double y) {
  return acc == QUERN_DTYPE_F32 ? (double)((float)x + (float)y) : x + y;
}

/* A row of an operand, widened. */
static void load_row(const struct kern *kern, void *const *mems, const struct kern_matrix *m, int64_t n, int64_t i,
                     double *to) {
  for (int64_t k = 0; k < kern->library_call.gemm.terms; k++) to[k] = load(kern, mems, m, n, i, k);
}

static double sum_products(quern_dtype acc, int64_t terms, const double *a, const double *b) {
  if (acc == QUERN_DTYPE_F64) {
    double sum = 0;
    for (int64_t k = 0; k < terms; k++) sum = fma(a[k], b[k], sum);
    return sum;
  }
  float sum = 0;
  for (int64_t k = 0; k < terms; k++) sum = fmaf((float)a[k], (float)b[k], sum);
  return (double)sum;
}

/* Element (n, i, j) from its sum; sums of columns grow in y_sums. */
static void finish_element(const struct kern *kern, void *const *mems, int64_t n, int64_t i, int64_t j, double s,
                           double *y_sums) {
  const struct kern_gemm *g = &kern->library_call.gemm;
  quern_dtype acc = kern_acc_dtype(dtype_of(kern, g->a.mem));
  if (g->add.mem != KERN_NONE) s = plus(acc, s, load(kern, mems, &g->add, n, i, j));
  if (g->bias != KERN_NONE) s = plus(acc, s, base_load_float(dtype_of(kern, g->bias), mems[g->bias], (size_t)j));
  double y = activate(g->back ? KERN_ACT_NONE : g->act, s);
  if (g->back) y = s * activation_slope(g->act, load(kern, mems, &g->aux, n, i, j));
  if (!g->back && g->aux.mem != KERN_NONE) store(kern, mems, &g->aux, n, i, j, s);
  if (y_sums != NULL) y_sums[j] = plus(acc, y_sums[j], y);
  store(kern, mems, &g->y, n, i, j, y);
}

/* Rows of b, of the whole batch entry, are widened once. */
static void run_batch(const struct kern *kern, void *const *mems, int64_t n, double *b, double *a, double *y_sums) {
  const struct kern_gemm *g = &kern->library_call.gemm;
  quern_dtype acc = kern_acc_dtype(dtype_of(kern, g->a.mem));
  for (int64_t j = 0; j < g->columns; j++) load_row(kern, mems, &g->b, n, j, b + j * g->terms);
  for (int64_t i = 0; i < g->rows; i++) {
    load_row(kern, mems, &g->a, n, i, a);
    for (int64_t j = 0; j < g->columns; j++)
      finish_element(kern, mems, n, i, j, sum_products(acc, g->terms, a, b + j * g->terms), y_sums);
    if (g->a_sums == KERN_NONE) continue;
    double sum = 0;
    for (int64_t k = 0; k < g->terms; k++) sum = plus(acc, sum, a[k]);
    base_store_float(dtype_of(kern, g->a_sums), mems[g->a_sums], (size_t)i, sum);
  }
}

static quern_status run_gemm(const struct kern *kern, void *const *mems) {
  const struct kern_gemm *g = &kern->library_call.gemm;
  int64_t wide, sums = g->y_sums != KERN_NONE ? g->columns : 0;
  size_t bytes;
  bool fits = kern_mul_fits(g->columns + 1, g->terms, &wide) && kern_add_fits(wide, sums, &wide) &&
              base_size((size_t)wide, sizeof(double), 0, &bytes);
  QUERN_CHECK(fits, MEMORY, "kernel %s: no room for %lld columns of %lld terms", kern_name(kern), (long long)g->columns,
              (long long)g->terms);
  double *room = base_alloc_zero(kern->heap, bytes);
  if (room == NULL) return QUERN_STATUS_MEMORY;
  double *b = room + sums, *a = b + g->columns * g->terms, *y_sums = sums > 0 ? room : NULL;
  for (int64_t n = 0; n < g->batch; n++) run_batch(kern, mems, n, b, a, y_sums);
  for (int64_t j = 0; j < sums; j++) base_store_float(dtype_of(kern, g->y_sums), mems[g->y_sums], (size_t)j, y_sums[j]);
  base_free(kern->heap, room, bytes);
  return QUERN_STATUS_OK;
}

/* ---- kinds ----------------------------------------------------------------------------------------------- */

static const struct {
  const char *name;
  quern_status (*check)(const struct kern *kern);
  void (*print)(struct base_str *str, const struct kern *kern);
  uint64_t (*hash)(uint64_t h, const struct kern *kern);
  quern_status (*run)(const struct kern *kern, void *const *mems);
} kinds[] = {
    [KERN_LIBRARY_NONE] = {"none", NULL, NULL, NULL, NULL},
    [KERN_LIBRARY_GEMM] = {"gemm", check_gemm, print_gemm, hash_gemm, run_gemm},
    [KERN_LIBRARY_ATTENTION] = {"attention", kern_check_attention, kern_print_attention, kern_hash_attention,
                                kern_run_attention},
    [KERN_LIBRARY_ATTENTION_BACK] = {"attention backward", kern_check_attention, kern_print_attention,
                                     kern_hash_attention, kern_run_attention},
    [KERN_LIBRARY_CONV] = {"convolution", kern_check_conv, kern_print_conv, kern_hash_conv, kern_run_conv},
};

bool kern_has_library_call(const struct kern *kern) {
  return (unsigned)kern->library_call.kind < BASE_COUNT(kinds) && kinds[kern->library_call.kind].check != NULL;
}

quern_status kern_check_library_call(const struct kern *kern) {
  int calls = 0;
  for (int i = 0; i < kern->n_phases; i++) calls += kern->phases[i].library_call;
  if (calls == 0 && kern->library_call.kind == KERN_LIBRARY_NONE) return QUERN_STATUS_OK;
  if (calls != 1 || !kern_has_library_call(kern))
    return kern_library_fault(kern, "%d phases are calls, of kind %d", calls, (int)kern->library_call.kind);
  int work = kern->library_call.work;
  if (work != KERN_NONE && (work < 0 || work >= kern->n_mems || kern->mems[work].role != KERN_WORK ||
                            kern->mems[work].dtype != QUERN_DTYPE_U8))
    return kern_library_fault(kern, "memory %d is no workspace of u8", work);
  return kinds[kern->library_call.kind].check(kern);
}

void kern_print_library_call(struct base_str *str, const struct kern *kern) {
  if (!kern_has_library_call(kern)) return;
  base_str_add(str, kinds[kern->library_call.kind].name);
  kinds[kern->library_call.kind].print(str, kern);
}

uint64_t kern_hash_library_call(uint64_t h, const struct kern *kern) {
  if (!kern_has_library_call(kern)) return h;
  h = base_hash_u64(base_hash_u64(h, (uint64_t)kern->library_call.kind), (uint64_t)kern->n_scalars);
  for (int i = 0; i < kern->n_mems; i++) {
    const struct kern_mem *m = &kern->mems[i];
    const int64_t words[] = {(int64_t)base_dtype_code(m->dtype), m->role, m->alias, m->in_place_class,
                             i == kern->library_call.work ? 0 : m->count};
    h = base_hash_bytes(h, words, sizeof words);
  }
  return kinds[kern->library_call.kind].hash(base_hash_u64(h, (uint64_t)kern->library_call.work), kern);
}

quern_status kern_interp_library_call(const struct kern *kern, void *const *mems) {
  return kinds[kern->library_call.kind].run(kern, mems);
}
