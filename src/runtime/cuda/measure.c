/* runtime/cuda/measure.c -- what a GPU can do: products by cuBLASLt, copies, the price of a launch
** The best of several times; memory for it is taken and given back.
** tests: tests/runtime/test_measure.c, make test-cuda
*/
#include "runtime/cuda/blas.h"

enum { SIDE = 4096, LARGE_SIDE = 8192, MANY_SMS = 60 }; /* of products; a large GPU is not filled by small ones */
enum { ROUNDS = 5, COPIES = 8, LAUNCHES = 500, ALGORITHMS = 3 };
static const size_t FAR_BYTES = (size_t)1 << 30,
                    NEAR_BYTES = (size_t)8 << 20; /* copied through memory; inside the L2 */

/* ---- products --------------------------------------------------------------------------------------------- */

static quern_status make_product(struct kern **out, struct base_heap *heap, quern_dtype dtype, int64_t side,
                                 bool tf32) {
  struct kern_library_call call = {.kind = KERN_LIBRARY_GEMM,
                                   .gemm = {.batch = 1, .rows = side, .columns = side, .terms = side}};
  struct kern_gemm *g = &call.gemm;
  struct kern *kern;
  QUERN_TRY(kern_new(&kern, heap));
  *out = kern;
  g->a = (struct kern_matrix){.mem = kern_add_mem(kern, dtype, KERN_IN, side * side), .row = side, .column = 1};
  g->b = (struct kern_matrix){.mem = kern_add_mem(kern, dtype, KERN_IN, side * side), .row = side, .column = 1};
  g->y = (struct kern_matrix){.mem = kern_add_mem(kern, dtype, KERN_OUT, side * side), .row = side, .column = 1};
  g->add.mem = g->aux.mem = g->bias = g->a_sums = g->y_sums = KERN_NONE;
  g->tf32 = tf32;
  call.work = kern_add_mem(kern, QUERN_DTYPE_U8, KERN_WORK, 1);
  kern_add_library_call(kern, &call);
  return kern_finish(kern, "calibrate_gemm", NULL);
}

static quern_status time_product(const struct rt_blas *blas, const struct rt_cuda_driver *driver,
                                 struct base_heap *heap, const struct kern *kern, double *best) {
  struct rt_blas_product p;
  struct rt_blas_choice choices[RT_BLAS_CHOICES];
  double seconds[RT_BLAS_CHOICES];
  int n;
  QUERN_TRY(rt_blas_product_init(&p, blas, kern));
  quern_status status = rt_blas_choose(&p, blas, (size_t)RT_BLAS_WORK, choices, &n);
  n = BASE_MIN(n, ALGORITHMS);
  if (status == QUERN_STATUS_OK) status = rt_blas_time(&p, blas, driver, heap, kern, choices, n, seconds);
  for (int i = 0; i < n && status == QUERN_STATUS_OK; i++) *best = i == 0 ? seconds[0] : BASE_MIN(*best, seconds[i]);
  rt_blas_product_fini(&p, blas);
  return status;
}

/* Operations a second; a product that the library cannot do has none. */
static quern_status measure_product(const struct rt_blas *blas, const struct rt_cuda_driver *driver,
                                    struct base_heap *heap, quern_dtype dtype, int64_t side, bool tf32, double *rate) {
  struct kern *kern = NULL;
  double seconds = 0;
  quern_status status = make_product(&kern, heap, dtype, side, tf32);
  if (status == QUERN_STATUS_OK) status = time_product(blas, driver, heap, kern, &seconds);
  kern_free(kern);
  *rate = seconds > 0 ? 2.0 * (double)side * (double)side * (double)side / seconds : 0;
  return status == QUERN_STATUS_UNSUPPORTED ? QUERN_STATUS_OK : status;
}

quern_status rt_blas_measure(const struct rt_blas *blas, const struct rt_cuda_driver *driver, struct base_heap *heap,
                             struct rt_rates *rates) {
  int64_t large = driver->multiprocessors >= MANY_SMS ? LARGE_SIDE : SIDE;
  const struct {
    quern_dtype dtype;
    bool tf32;
    int64_t side;
    double *rate;
  } rows[] = {{QUERN_DTYPE_F32, false, SIDE, &rates->f32},
              {QUERN_DTYPE_F32, true, large, &rates->tf32},
              {QUERN_DTYPE_BF16, false, large, &rates->bf16},
              {QUERN_DTYPE_F16, false, large, &rates->f16},
              {QUERN_DTYPE_F64, false, SIDE, &rates->f64}};
  for (size_t i = 0; i < BASE_COUNT(rows); i++)
    QUERN_TRY(measure_product(blas, driver, heap, rows[i].dtype, rows[i].side, rows[i].tf32, rows[i].rate));
  return QUERN_STATUS_OK;
}

/* ---- memory ----------------------------------------------------------------------------------------------- */

/* Bytes read and written a second by copies of so many bytes. */
static int time_copies(const struct rt_cuda_driver *d, void *stream, uint64_t to, uint64_t from, size_t bytes,
                       double *rate) {
  int code = 0;
  for (int round = 0; round <= ROUNDS && code == 0; round++) { /* the first is not counted */
    double start = base_clock();
    for (int i = 0; i < COPIES && code == 0; i++) code = d->copy(to, from, bytes, stream);
    if (code == 0) code = d->stream_wait(stream);
    if (code == 0 && round > 0) *rate = BASE_MAX(*rate, 2.0 * (double)bytes * COPIES / (base_clock() - start));
  }
  return code;
}

/* Seconds of the least that a stream can be asked for, one after another. */
static int time_launches(const struct rt_cuda_driver *d, void *stream, uint64_t at, double *seconds) {
  int code = 0;
  for (int round = 0; round <= ROUNDS && code == 0; round++) {
    double start = base_clock();
    for (int i = 0; i < LAUNCHES && code == 0; i++) code = d->fill(at, 0, 1, stream);
    if (code == 0) code = d->stream_wait(stream);
    double took = (base_clock() - start) / LAUNCHES;
    if (code == 0 && round > 0) *seconds = round == 1 ? took : BASE_MIN(*seconds, took);
  }
  return code;
}

/* With the context current. */
static int measure_memory(const struct rt_cuda_driver *d, struct rt_rates *rates) {
  size_t left = 0, all = 0;
  uint64_t to = 0, from = 0;
  void *stream = NULL;
  int code = d->info(&left, &all);
  size_t bytes = BASE_MAX(BASE_MIN(left / 4, FAR_BYTES), NEAR_BYTES);
  if (code == 0) code = d->stream_create(&stream, 1);
  if (code == 0) code = d->alloc(&to, bytes);
  if (code == 0) code = d->alloc(&from, bytes);
  if (code == 0) code = d->fill(from, 1, bytes, stream);
  if (code == 0) code = time_copies(d, stream, to, from, bytes, &rates->copy);
  if (code == 0) code = time_copies(d, stream, to, from, NEAR_BYTES, &rates->cached);
  if (code == 0) code = time_launches(d, stream, to, &rates->launch);
  rates->cached = BASE_MAX(rates->cached, rates->copy);
  if (to != 0) (void)d->free(to);
  if (from != 0) (void)d->free(from);
  if (stream != NULL) (void)d->stream_destroy(stream);
  return code;
}

quern_status rt_cuda_measure(struct base_heap *heap, struct rt_rates *rates) {
  struct rt_cuda_driver *driver;
  struct rt_blas *blas;
  void *popped;
  *rates = (struct rt_rates){0};
  QUERN_TRY(rt_cuda_open(&driver));
  QUERN_TRY(rt_cuda_check(driver, driver->context_push(driver->context), "its context"));
  quern_status status = rt_cuda_check(driver, measure_memory(driver, rates), "measuring");
  if (status == QUERN_STATUS_OK && rt_blas_open(&blas) == QUERN_STATUS_OK)
    status = rt_blas_measure(blas, driver, heap, rates);
  (void)driver->context_pop(&popped);
  return status;
}
