/* tests/runtime/fake_blas.h -- a library that answers as cuBLASLt is documented to, on memory of the host
** Matrices of f32, f64 and bf16 lie column after column; every function counts, and the fake_blas_fail-th call of all fails. Each object that
** is made must be destroyed once.
*/
#ifndef TESTS_RUNTIME_FAKE_BLAS_H
#define TESTS_RUNTIME_FAKE_BLAS_H
#include <math.h>

#include "runtime/cuda/blas.h"

enum { FAKE_BLAS_FAILURE = 14, FAKE_BLAS_REFUSAL = 15 };

struct fake_layout {
  int type;
  uint64_t rows, columns;
  int64_t leading, stride;
  int32_t batches;
};
struct fake_product {
  int compute, scale, bias_type;
  int32_t transpose_a, transpose_b;
  uint32_t epilogue;
  char *bias, *aux;
  int64_t aux_leading, aux_stride;
};
struct fake_wish {
  uint64_t work;
  uint32_t reductions, alignment[4];
};

static struct {
  int calls, fail, live; /* functions called; the one that fails, 0: none; objects that there are */
  int versions[3];
  int offers;               /* algorithms that it has */
  uint32_t schemes[8];      /* the reduction of each */
  size_t bytes[8];          /* and workspace */
  float waves[8];           /* and waves */
  uint32_t customs[8];      /* and custom option */
  bool check_fails;         /* it knows no algorithm */
  uint64_t none, late;      /* rows of a result that it has no algorithm for; and none any more once one was chosen */
  bool gone;                /* the algorithm of the product that is asked about */
  struct fake_wish wish;    /* the last one that was asked with */
  struct fake_product last; /* the last product that was run */
  uint64_t way;             /* that it went */
  size_t work_bytes;
  const void *work;
} fake_blas;

static int fake_step(void) {
  fake_blas.calls++;
  return fake_blas.calls == fake_blas.fail ? FAKE_BLAS_FAILURE : 0;
}

static int fake_new(void **object, size_t bytes) {
  int code = fake_step();
  if (code != 0) return code;
  *object = calloc(1, bytes);
  fake_blas.live++;
  return 0;
}
static int fake_free(void *object) {
  free(object);
  fake_blas.live--;
  return 0;
}

static int fake_create(void **handle) {
  *handle = &fake_blas;
  return fake_step();
}
static int fake_property(int which, int *value) {
  *value = fake_blas.versions[which];
  return fake_step();
}
static int fake_layout_create(void **out, int type, uint64_t rows, uint64_t columns, int64_t leading) {
  int code = fake_new(out, sizeof(struct fake_layout));
  if (code == 0) *(struct fake_layout *)*out = (struct fake_layout){type, rows, columns, leading, 0, 1};
  return code;
}
static int fake_layout_set(void *object, int attribute, const void *value, size_t bytes) {
  struct fake_layout *layout = object;
  if (attribute == 5 && bytes == 4)
    memcpy(&layout->batches, value, bytes);
  else if (attribute == 6 && bytes == 8)
    memcpy(&layout->stride, value, bytes);
  else
    return 7;
  return fake_step();
}
static int fake_product_create(void **out, int compute, int scale) {
  int code = fake_new(out, sizeof(struct fake_product));
  if (code == 0)
    *(struct fake_product *)*out = (struct fake_product){.compute = compute, .scale = scale, .bias_type = -1};
  return code;
}
static int fake_product_set(void *object, int attribute, const void *value, size_t bytes) {
  struct fake_product *p = object;
  const struct {
    int attribute;
    void *to;
    size_t bytes;
  } rows[] = {{3, &p->transpose_a, 4}, {4, &p->transpose_b, 4},  {7, &p->epilogue, 4},    {8, &p->bias, 8},
              {11, &p->aux, 8},        {12, &p->aux_leading, 8}, {13, &p->aux_stride, 8}, {26, &p->bias_type, 4}};
  for (size_t i = 0; i < BASE_COUNT(rows); i++)
    if (rows[i].attribute == attribute && rows[i].bytes == bytes) {
      memcpy(rows[i].to, value, bytes);
      return fake_step();
    }
  return 7;
}
static int fake_wish_create(void **out) { return fake_new(out, sizeof(struct fake_wish)); }
static int fake_wish_set(void *object, int attribute, const void *value, size_t bytes) {
  struct fake_wish *wish = object;
  if (attribute == 1 && bytes == 8)
    memcpy(&wish->work, value, bytes);
  else if (attribute == 3 && bytes == 4)
    memcpy(&wish->reductions, value, bytes);
  else if (attribute >= 5 && attribute <= 8 && bytes == 4)
    memcpy(&wish->alignment[attribute - 5], value, bytes);
  else
    return 7;
  return fake_step();
}

static int fake_choices(void *handle, void *product, void *a, void *b, void *c, void *d, void *wish, int most,
                        struct rt_blas_choice *choices, int *n) {
  (void)handle, (void)product, (void)a, (void)b, (void)c;
  fake_blas.wish = *(struct fake_wish *)wish;
  *n = 0;
  bool none = fake_blas.gone || ((struct fake_layout *)d)->rows == fake_blas.none;
  fake_blas.gone = false;
  for (int i = 0; i < fake_blas.offers && i < most && !none; i++)
    choices[(*n)++] = (struct rt_blas_choice){
        .algorithm = {(uint64_t)i + 1}, .bytes = fake_blas.bytes[i], .waves = fake_blas.waves[i]};
  int code = fake_step();
  return code != 0 ? code : *n == 0 ? FAKE_BLAS_REFUSAL : 0;
}
static int fake_check(void *handle, void *product, void *a, void *b, void *c, void *d, const void *algorithm,
                      struct rt_blas_choice *result) {
  (void)handle, (void)product, (void)a, (void)b, (void)c;
  uint64_t way = *(const uint64_t *)algorithm;
  fake_blas.gone = ((struct fake_layout *)d)->rows == fake_blas.late;
  if (fake_blas.gone || fake_blas.check_fails || way == 0 || way > 8) return 7;
  result->bytes = fake_blas.bytes[way - 1];
  return fake_step();
}
static int fake_config(const void *algorithm, int attribute, void *value, size_t bytes, size_t *written) {
  if ((attribute != 3 && attribute != 5) || bytes != 4) return 7;
  memcpy(value, &(attribute == 3 ? fake_blas.schemes : fake_blas.customs)[*(const uint64_t *)algorithm - 1], bytes);
  *written = bytes;
  return fake_step();
}

/* ---- a product as it is documented ------------------------------------------------------------------------------ */

/* Types are those of the library: 0 f32, 1 f64, 14 bf16. */
static quern_dtype fake_dtype(int type) {
  assert_true(type == 0 || type == 1 || type == 14);
  return type == 0 ? QUERN_DTYPE_F32 : type == 1 ? QUERN_DTYPE_F64 : QUERN_DTYPE_BF16;
}
static double fake_get(int type, const void *at, int64_t i) { return base_load_float(fake_dtype(type), at, (size_t)i); }
static void fake_put(int type, void *at, int64_t i, double x) { base_store_float(fake_dtype(type), at, (size_t)i, x); }
static double fake_gelu(double x) { return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))); }
static double fake_gelu_slope(double x) {
  double u = 0.7978845608028654 * (x + 0.044715 * x * x * x), t = tanh(u);
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * 0.7978845608028654 * (1 + 3 * 0.044715 * x * x);
}

/* op(x)[i, j] */
static double fake_side(const struct fake_layout *l, const void *x, bool transposed, int64_t n, int64_t i, int64_t j) {
  int64_t row = transposed ? j : i, column = transposed ? i : j;
  assert_true(row < (int64_t)l->rows && column < (int64_t)l->columns && l->leading >= (int64_t)l->rows);
  return fake_get(l->type, x, n * l->stride + column * l->leading + row);
}

static int fake_run(void *handle, void *product, const void *alpha, const void *a, void *a_layout, const void *b,
                    void *b_layout, const void *beta, const void *c, void *c_layout, void *d, void *d_layout,
                    const void *algorithm, void *work, size_t bytes, void *stream) {
  const struct fake_product *p = product;
  const struct fake_layout *la = a_layout, *lb = b_layout, *lc = c_layout, *ld = d_layout;
  (void)handle, (void)stream;
  fake_blas.last = *p;
  fake_blas.way = *(const uint64_t *)algorithm;
  fake_blas.work = work;
  fake_blas.work_bytes = bytes;
  int64_t k = (int64_t)(p->transpose_a ? la->rows : la->columns), rows = (int64_t)ld->rows,
          columns = (int64_t)ld->columns;
  assert_int_equal(k, p->transpose_b ? lb->columns : lb->rows);
  assert_int_equal(rows, p->transpose_a ? la->columns : la->rows);
  assert_int_equal(columns, p->transpose_b ? lb->rows : lb->columns);
  if (c == d && lc != ld) return 7; /* in place is one layout */
  assert_true(lc->rows == ld->rows && lc->columns == ld->columns && lc->type == ld->type);
  assert_true(la->batches == ld->batches && lb->batches == ld->batches && lc->batches == ld->batches);
  assert_true(p->scale == (la->type == 1 ? 1 : 0));
  double times = fake_get(p->scale, alpha, 0), keep = fake_get(p->scale, beta, 0);
  assert_true((p->epilogue & 4) == 0 || p->bias_type == ld->type);
  double sums[64] = {0};
  assert_true(rows <= (int64_t)BASE_COUNT(sums));
  for (int64_t n = 0; n < ld->batches; n++)
    for (int64_t j = 0; j < columns; j++)
      for (int64_t i = 0; i < rows; i++) {
        double s = 0;
        for (int64_t t = 0; t < k; t++)
          s += fake_side(la, a, p->transpose_a, n, i, t) * fake_side(lb, b, p->transpose_b, n, t, j);
        s *= times;
        if (keep != 0) s += keep * fake_side(lc, c, false, n, i, j);
        if (p->epilogue & 4) s += fake_get(p->bias_type, p->bias, i);
        int64_t aux = n * p->aux_stride + j * p->aux_leading + i;
        if ((p->epilogue & 32) && (p->epilogue & 128)) fake_put(ld->type, p->aux, aux, s);
        if (p->epilogue & 2) s = fmax(s, 0);
        if (p->epilogue & 32) s = fake_gelu(s);
        if (p->epilogue & 64) s *= fake_gelu_slope(fake_get(ld->type, p->aux, aux));
        sums[i] += s;
        fake_put(ld->type, d, n * ld->stride + j * ld->leading + i, s);
      }
  for (int64_t i = 0; i < rows && (p->epilogue & 16); i++) fake_put(p->bias_type, p->bias, i, sums[i]);
  for (int64_t i = 0; i < rows && (p->epilogue & 256); i++) {
    double s = 0;
    for (int64_t t = 0; t < k; t++) s += fake_side(la, a, p->transpose_a, 0, i, t);
    fake_put(p->bias_type, p->bias, i, s);
  }
  for (int64_t j = 0; j < columns && (p->epilogue & 512); j++) {
    double s = 0;
    for (int64_t t = 0; t < k; t++) s += fake_side(lb, b, p->transpose_b, 0, t, j);
    fake_put(p->bias_type, p->bias, j, s);
  }
  return fake_step();
}

/* The functions by name, as a loader finds them; missing: the one that is not there, NULL: none. */
static void *fake_blas_find(void *missing, const char *symbol) {
  static const struct {
    const char *symbol;
    void (*function)(void);
  } rows[] = {{"cublasLtCreate", (void (*)(void))fake_create},
              {"cublasLtGetProperty", (void (*)(void))fake_property},
              {"cublasLtMatrixLayoutCreate", (void (*)(void))fake_layout_create},
              {"cublasLtMatrixLayoutDestroy", (void (*)(void))fake_free},
              {"cublasLtMatrixLayoutSetAttribute", (void (*)(void))fake_layout_set},
              {"cublasLtMatmulDescCreate", (void (*)(void))fake_product_create},
              {"cublasLtMatmulDescDestroy", (void (*)(void))fake_free},
              {"cublasLtMatmulDescSetAttribute", (void (*)(void))fake_product_set},
              {"cublasLtMatmulPreferenceCreate", (void (*)(void))fake_wish_create},
              {"cublasLtMatmulPreferenceDestroy", (void (*)(void))fake_free},
              {"cublasLtMatmulPreferenceSetAttribute", (void (*)(void))fake_wish_set},
              {"cublasLtMatmulAlgoGetHeuristic", (void (*)(void))fake_choices},
              {"cublasLtMatmulAlgoCheck", (void (*)(void))fake_check},
              {"cublasLtMatmulAlgoConfigGetAttribute", (void (*)(void))fake_config},
              {"cublasLtMatmul", (void (*)(void))fake_run}};
  void *found = NULL;
  if (missing != NULL && strcmp(missing, symbol) == 0) return NULL;
  for (size_t i = 0; i < BASE_COUNT(rows); i++)
    if (strcmp(rows[i].symbol, symbol) == 0) memcpy(&found, &rows[i].function, sizeof found);
  return found;
}

/* A library with two algorithms, of which the second needs 4096 bytes. */
static void fake_blas_open(struct rt_blas *blas) {
  memset(&fake_blas, 0, sizeof fake_blas);
  fake_blas.versions[0] = 13;
  fake_blas.offers = 2;
  fake_blas.bytes[1] = 4096;
  *blas = (struct rt_blas){0};
  EXPECT_OK(rt_blas_load(blas, NULL, fake_blas_find));
  fake_blas.calls = 0;
}

#endif
