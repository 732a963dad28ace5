/* runtime/cuda/blas_problem.c -- a GEMM of the kernel IR in cuBLASLt's words
** The library's matrices lie column after column. A result that lies row after row is its own transpose to it, so that the sides change
** places; a bias is along the columns of a result, which are then the library's rows, as it wants.
** keeps: gelu, which the library computes to about 1e-5, is asked for results of 16 bits only;
**        nothing is asked of the library that means something else to it: what it has no words for is UNSUPPORTED
** see: docs/design/008-libraries.md      tests: tests/runtime/test_blas.c
*/
#include "runtime/cuda/blas.h"

#include <stdio.h>

enum { F32 = 0, F64 = 1, F16 = 2, BF16 = 14, NONE = -1 };       /* cudaDataType */
enum { COMPUTE_F32 = 68, COMPUTE_F64 = 70, COMPUTE_TF32 = 77 }; /* cublasComputeType_t */
enum { ALIGNMENT = 64 };                                        /* of memories, bytes: the plan's */
enum { PLAIN = 1, RELU = 2, BIAS = 4, SUM = 16, GELU = 32, BACK_GELU = 64, AUX = 128, SUM_A = 256, SUM_B = 512 };
enum { AUX_MULTIPLE = 8 }; /* of the leading dimension of aux, elements */

static int type_of(quern_dtype dtype) {
  static const struct {
    quern_dtype dtype;
    int type;
  } rows[] = {{QUERN_DTYPE_F32, F32}, {QUERN_DTYPE_F64, F64}, {QUERN_DTYPE_F16, F16}, {QUERN_DTYPE_BF16, BF16}};
  for (size_t i = 0; i < BASE_COUNT(rows); i++)
    if (rows[i].dtype == dtype) return rows[i].type;
  return NONE;
}

/* ---- matrices --------------------------------------------------------------------------------------------- */

/* Whether a matrix of these extents lies row after row (or column after column), rows apart from each other. */
static bool lies(const struct kern_matrix *x, int64_t rows, int64_t columns, bool by_rows) {
  int64_t near = by_rows ? x->column : x->row, far = by_rows ? x->row : x->column;
  int64_t length = by_rows ? columns : rows, count = by_rows ? rows : columns;
  return (near == 1 || length == 1) && (far >= length || count == 1);
}

static uint32_t lowest_bit(uint64_t x) { return (uint32_t)(x & (~x + 1)); }

static struct rt_blas_matrix lay(const struct kern *kern, const struct kern_gemm *g, const struct kern_matrix *x,
                                 int64_t rows, int64_t columns, bool by_rows) {
  int64_t far = by_rows ? x->row : x->column, length = by_rows ? columns : rows;
  size_t size = base_dtypes[kern->mems[x->mem].dtype].size;
  uint64_t apart = ((uint64_t)x->at | (g->batch > 1 ? (uint64_t)x->batch : 0)) * size;
  return (struct rt_blas_matrix){.mem = x->mem,
                                 .at = x->at,
                                 .type = type_of(kern->mems[x->mem].dtype),
                                 .size = size,
                                 .rows = (uint64_t)length,
                                 .columns = (uint64_t)(by_rows ? rows : columns),
                                 .leading = BASE_MAX(far, length),
                                 .batch = x->batch,
                                 .alignment = lowest_bit(apart | (kern->unaligned_base ? size : ALIGNMENT))};
}

static quern_status check_lies(const struct kern_matrix *x, int64_t rows, int64_t columns, bool by_rows, bool either,
                               const char *name) {
  bool fine = x->at >= 0 && (lies(x, rows, columns, by_rows) || (either && lies(x, rows, columns, !by_rows)));
  QUERN_CHECK(fine, UNSUPPORTED,
              "cuBLASLt: matrix %s of %lld x %lld with strides %lld and %lld cannot be described to it", name,
              (long long)rows, (long long)columns, (long long)x->row, (long long)x->column);
  return QUERN_STATUS_OK;
}

/* ---- epilogues -------------------------------------------------------------------------------------------- */

/* What may come together. A kept value before relu is a bit to the library: it has no words for ours. */
static const struct end {
  enum kern_activation act;
  bool back, bias, kept, a_sums, y_sums;
  int epilogue;
} ends[] = {
    {KERN_ACT_NONE, false, false, false, false, false, PLAIN},
    {KERN_ACT_NONE, false, true, false, false, false, BIAS},
    {KERN_ACT_RELU, false, false, false, false, false, RELU},
    {KERN_ACT_RELU, false, true, false, false, false, RELU | BIAS},
    {KERN_ACT_GELU_TANH, false, false, false, false, false, GELU},
    {KERN_ACT_GELU_TANH, false, true, false, false, false, GELU | BIAS},
    {KERN_ACT_GELU_TANH, false, false, true, false, false, GELU | AUX},
    {KERN_ACT_GELU_TANH, false, true, true, false, false, GELU | AUX | BIAS},
    {KERN_ACT_GELU_TANH, true, false, true, false, false, BACK_GELU | AUX},
    {KERN_ACT_GELU_TANH, true, false, true, false, true, BACK_GELU | AUX | SUM},
    {KERN_ACT_NONE, false, false, false, true, false, SUM_B},
};

static quern_status find_end(struct rt_blas_problem *p, const struct kern *kern, const struct kern_gemm *g,
                             bool by_rows) {
  bool bias = g->bias != KERN_NONE, kept = g->aux.mem != KERN_NONE, a_sums = g->a_sums != KERN_NONE;
  bool y_sums = g->y_sums != KERN_NONE;
  const struct end *end = ends, *last = ends + BASE_COUNT(ends);
  while (end < last && (end->act != g->act || end->back != g->back || end->bias != bias || end->kept != kept ||
                        end->a_sums != a_sums || end->y_sums != y_sums))
    end++;
  QUERN_CHECK(end < last, UNSUPPORTED, "cuBLASLt: no epilogue has activation %d%s%s%s%s%s together", (int)g->act,
              g->back ? ", backward" : "", bias ? ", bias" : "", kept ? ", kept" : "", a_sums ? ", sums of a" : "",
              y_sums ? ", sums of y" : "");
  QUERN_CHECK(g->act != KERN_ACT_GELU_TANH || p->d.size == 2, UNSUPPORTED,
              "cuBLASLt: its gelu is not exact enough for a result of %zu bytes", p->d.size);
  QUERN_CHECK(by_rows || !(bias || y_sums), UNSUPPORTED,
              "cuBLASLt: a bias along the columns of a result that lies column after column");
  QUERN_CHECK(g->batch == 1 || !(bias || a_sums || y_sums), UNSUPPORTED, "cuBLASLt: a bias of %lld products",
              (long long)g->batch);
  p->epilogue = end->epilogue == SUM_B && !by_rows ? SUM_A : end->epilogue;
  p->bias = bias ? g->bias : a_sums ? g->a_sums : y_sums ? g->y_sums : KERN_NONE;
  p->bias_type = p->bias != KERN_NONE ? type_of(kern->mems[p->bias].dtype) : NONE;
  QUERN_CHECK(p->bias == KERN_NONE || p->bias_type != NONE, UNSUPPORTED, "cuBLASLt: a bias of %s",
              base_dtypes[kern->mems[p->bias].dtype].name);
  return QUERN_STATUS_OK;
}

/* ---- all of it -------------------------------------------------------------------------------------------- */

static quern_status check_types(struct rt_blas_problem *p, const struct kern *kern, const struct kern_gemm *g) {
  quern_dtype a = kern->mems[g->a.mem].dtype, b = kern->mems[g->b.mem].dtype, y = kern->mems[g->y.mem].dtype;
  bool known = type_of(a) != NONE && a == b && (y == a || (base_dtypes[a].size == 2 && y == QUERN_DTYPE_F32));
  QUERN_CHECK(known, UNSUPPORTED, "cuBLASLt: products of %s and %s as %s", base_dtypes[a].name, base_dtypes[b].name,
              base_dtypes[y].name);
  QUERN_CHECK(g->add.mem == KERN_NONE || kern->mems[g->add.mem].dtype == y, UNSUPPORTED,
              "cuBLASLt: %s is added to a result of %s", base_dtypes[kern->mems[g->add.mem].dtype].name,
              base_dtypes[y].name);
  QUERN_CHECK(g->aux.mem == KERN_NONE || kern->mems[g->aux.mem].dtype == y, UNSUPPORTED,
              "cuBLASLt: %s is kept of a result of %s", base_dtypes[kern->mems[g->aux.mem].dtype].name,
              base_dtypes[y].name);
  p->compute = a == QUERN_DTYPE_F64 ? COMPUTE_F64 : a == QUERN_DTYPE_F32 && g->tf32 ? COMPUTE_TF32 : COMPUTE_F32;
  p->scale = a == QUERN_DTYPE_F64 ? F64 : F32;
  return QUERN_STATUS_OK;
}

static quern_status lay_extra(struct rt_blas_problem *p, const struct kern *kern, const struct kern_gemm *g,
                              bool by_rows) {
  p->add = g->add.mem != KERN_NONE;
  p->c = p->d;
  p->aux = (struct rt_blas_matrix){.mem = KERN_NONE, .type = NONE};
  if (p->add) {
    QUERN_TRY(check_lies(&g->add, g->rows, g->columns, by_rows, false, "add"));
    p->c = lay(kern, g, &g->add, g->rows, g->columns, by_rows);
  }
  if (g->aux.mem == KERN_NONE) return QUERN_STATUS_OK;
  QUERN_TRY(check_lies(&g->aux, g->rows, g->columns, by_rows, false, "kept"));
  p->aux = lay(kern, g, &g->aux, g->rows, g->columns, by_rows);
  QUERN_CHECK(p->aux.leading % AUX_MULTIPLE == 0 && (g->batch == 1 || p->aux.batch % AUX_MULTIPLE == 0), UNSUPPORTED,
              "cuBLASLt: rows of %lld elements are kept; a multiple of %d is needed", (long long)p->aux.leading,
              (int)AUX_MULTIPLE);
  return QUERN_STATUS_OK;
}

quern_status rt_blas_problem_make(struct rt_blas_problem *p, const struct kern *kern) {
  const struct kern_gemm *g = &kern->library_call.gemm;
  *p = (struct rt_blas_problem){.batches = g->batch, .terms = g->terms};
  QUERN_CHECK(g->batch > 0 && g->batch <= INT32_MAX && g->rows > 0 && g->columns > 0 && g->terms > 0, UNSUPPORTED,
              "cuBLASLt: %lld products of %lld x %lld with %lld terms", (long long)g->batch, (long long)g->rows,
              (long long)g->columns, (long long)g->terms);
  QUERN_TRY(check_types(p, kern, g));
  QUERN_TRY(check_lies(&g->a, g->rows, g->terms, true, true, "a"));
  QUERN_TRY(check_lies(&g->b, g->columns, g->terms, true, true, "b"));
  QUERN_TRY(check_lies(&g->y, g->rows, g->columns, true, true, "y"));
  bool a_rows = lies(&g->a, g->rows, g->terms, true), b_rows = lies(&g->b, g->columns, g->terms, true);
  bool by_rows = lies(&g->y, g->rows, g->columns, true);
  struct rt_blas_matrix a = lay(kern, g, &g->a, g->rows, g->terms, a_rows);
  struct rt_blas_matrix b = lay(kern, g, &g->b, g->columns, g->terms, b_rows);
  p->a = by_rows ? b : a;
  p->b = by_rows ? a : b;
  p->transpose_a = by_rows ? b_rows : a_rows; /* the library's a has the terms as columns, its b as rows */
  p->transpose_b = by_rows ? !a_rows : !b_rows;
  p->d = lay(kern, g, &g->y, g->rows, g->columns, by_rows);
  QUERN_TRY(lay_extra(p, kern, g, by_rows));
  return find_end(p, kern, g, by_rows);
}

static int print_matrix(const struct rt_blas_matrix *m, const char *name, char *text, size_t bytes) {
  return snprintf(text, bytes, " %s %d %llux%llu/%lld,%lld@%u", name, m->type, (unsigned long long)m->rows,
                  (unsigned long long)m->columns, (long long)m->leading, (long long)m->batch, m->alignment);
}

void rt_blas_problem_print(const struct rt_blas_problem *p, char *text, size_t bytes) {
  const struct rt_blas_matrix *const matrices[] = {&p->a, &p->b, &p->c, &p->d, &p->aux};
  static const char *const names[] = {"a", "b", "c", "d", "aux"};
  int n = snprintf(text, bytes, "gemm %d %d %c%c %lld*%lld end %d bias %d", p->compute, p->add, "nt"[p->transpose_a],
                   "nt"[p->transpose_b], (long long)p -> batches, (long long)p -> terms, p -> epilogue, p -> bias_type);
  for (size_t i = 0; i < BASE_COUNT(matrices) && n > 0 && (size_t)n < bytes; i++)
    n += print_matrix(matrices[i], names[i], text + n, bytes - (size_t)n);
}
