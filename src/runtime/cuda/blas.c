/* runtime/cuda/blas.c -- GEMMs by cuBLASLt
** The library is asked for its algorithms to do a product, once per kernel; the algorithm is stored in the kernel's call, so that a program that was
** saved or cached uses the same one again. Descriptors are made once per module.
** keeps: nothing of cuBLASLt is needed to build Quern; the same bits every time: products split over the terms are added up by a kernel of
**        their own, in order, and rounded once
** see:   docs/design/008-libraries.md      tests: tests/runtime/test_blas.c, make test-cuda
*/
#include "runtime/cuda/blas.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

enum { OLDEST_MAJOR = 12, NEWEST_MAJOR = 13 };
enum { WHOSE = RT_BLAS_WORDS, BYTES };                /* words of an algorithm after the library's own */
enum { LAYOUT_BATCHES = 5, LAYOUT_BATCH_STRIDE = 6 }; /* cublasLtMatrixLayoutAttribute_t */
/* cublasLtMatmulDescAttributes_t */
enum {
  PRODUCT_TRANSPOSE_A = 3,
  PRODUCT_TRANSPOSE_B = 4,
  PRODUCT_EPILOGUE = 7,
  PRODUCT_BIAS = 8,
  PRODUCT_AUX = 11,
  PRODUCT_AUX_LEADING = 12,
  PRODUCT_AUX_BATCH_STRIDE = 13,
  PRODUCT_BIAS_TYPE = 26
};
/* cublasLtMatmulPreferenceAttributes_t; the alignments of B, C and D follow */
enum { WISH_WORK = 1, WISH_REDUCTIONS = 3, WISH_ALIGNMENT_A = 5 };
enum { CONFIG_REDUCTION = 3, CONFIG_CUSTOM = 5 }; /* cublasLtMatmulAlgoConfigAttributes_t */
enum { REDUCTION_IN_COMPUTE_TYPE = 2 };           /* cublasLtReductionScheme_t: a step of its own, before rounding */
enum { SOME_ADDRESS = 4096 };                     /* that nobody follows, with the alignment of every other */

/* ---- the library ------------------------------------------------------------------------------------------ */

static const char *const places[] = {"libcublasLt.so.13",
                                     "libcublasLt.so.12",
                                     "libcublasLt.so",
                                     "/usr/local/cuda/lib64/libcublasLt.so",
                                     "/usr/local/cuda/lib/libcublasLt.so",
                                     "/usr/local/cuda/targets/x86_64-linux/lib/libcublasLt.so"};

quern_status rt_blas_check(const struct rt_blas *blas, int code, const char *what) {
  static const struct {
    int code;
    quern_status status;
    const char *name;
  } rows[] = {{1, QUERN_STATUS_INTERNAL, "it is not initialized"}, {3, QUERN_STATUS_MEMORY, "there is no memory"},
              {7, QUERN_STATUS_INTERNAL, "an invalid value"},      {8, QUERN_STATUS_UNSUPPORTED, "not on this GPU"},
              {13, QUERN_STATUS_INTERNAL, "execution failed"},     {14, QUERN_STATUS_INTERNAL, "an internal error"},
              {15, QUERN_STATUS_UNSUPPORTED, "not supported"}};
  if (code == 0) return QUERN_STATUS_OK;
  for (size_t i = 0; i < BASE_COUNT(rows); i++)
    if (rows[i].code == code)
      return base_error(rows[i].status, "%s: %s: %s (error %d)", blas->identity, what, rows[i].name, code);
  return base_error(QUERN_STATUS_INTERNAL, "%s: %s: error %d", blas->identity, what, code);
}

quern_status rt_blas_load(struct rt_blas *blas, void *library, void *(*find)(void *library, const char *symbol)) {
  int version[3] = {0};
  snprintf(blas->identity, sizeof blas->identity, "cuBLASLt");
#define BLAS(NAME, SYMBOL, PARAMETERS)                                                                                 \
  *(void **)&blas->NAME = find(library, #SYMBOL);                                                                      \
  QUERN_CHECK(blas->NAME != NULL, UNSUPPORTED, "cuBLASLt has no function " #SYMBOL ": it is too old");
#include "runtime/cuda/blas.def"
#undef BLAS
  for (int i = 0; i < 3; i++) QUERN_TRY(rt_blas_check(blas, blas->property(i, &version[i]), "its version"));
  snprintf(blas->identity, sizeof blas->identity, "cuBLASLt %d.%d.%d", version[0], version[1], version[2]);
  QUERN_CHECK(version[0] >= OLDEST_MAJOR && version[0] <= NEWEST_MAJOR, UNSUPPORTED,
              "%s is too %s: versions %d to %d are known", blas->identity, version[0] < OLDEST_MAJOR ? "old" : "new",
              (int)OLDEST_MAJOR, (int)NEWEST_MAJOR);
  return rt_blas_check(blas, blas->create(&blas->handle), "a handle");
}

static void *open_any(void) {
  void *library = NULL;
  for (size_t i = 0; i < BASE_COUNT(places) && library == NULL; i++) library = dlopen(places[i], RTLD_NOW | RTLD_LOCAL);
  return library;
}

static void load_ahead(void) { (void)open_any(); }

static quern_status load(struct rt_blas *blas) {
  void *library = open_any();
  QUERN_CHECK(library != NULL, UNSUPPORTED, "libcublasLt.so is not installed");
  return rt_blas_load(blas, library, dlsym);
}

static _Atomic(struct rt_blas *) used;
void rt_blas_use(struct rt_blas *blas) { atomic_store(&used, blas); }

static quern_status load_any(void *what) { return load(what); }

quern_status rt_blas_open(struct rt_blas **blas) {
  static struct rt_once once = {.lock = PTHREAD_MUTEX_INITIALIZER};
  static struct rt_blas opened;
  *blas = atomic_load(&used);
  if (*blas != NULL) return QUERN_STATUS_OK;
  *blas = &opened;
  return rt_once(&once, load_any, &opened);
}

/* ---- descriptors ------------------------------------------------------------------------------------------ */

static quern_status make_layout(void **layout, const struct rt_blas *blas, const struct rt_blas_matrix *m,
                                int64_t batches) {
  int32_t count = (int32_t)batches;
  int code = blas->layout_create(layout, m->type, m->rows, m->columns, m->leading);
  if (code == 0 && batches > 1) code = blas->layout_set(*layout, LAYOUT_BATCHES, &count, sizeof count);
  if (code == 0 && batches > 1) code = blas->layout_set(*layout, LAYOUT_BATCH_STRIDE, &m->batch, sizeof m->batch);
  return rt_blas_check(blas, code, "a layout");
}

static void *address(const struct rt_blas_matrix *m, char *base) { return base + m->at * (int64_t)m->size; }

/* The addresses that belong to the descriptor. */
static int point(const struct rt_blas_product *p, const struct rt_blas *blas, void *bias, void *aux) {
  int code = 0;
  if (p->problem.bias != KERN_NONE) code = blas->product_set(p->product, PRODUCT_BIAS, &bias, sizeof bias);
  if (p->problem.aux.mem != KERN_NONE && code == 0) code = blas->product_set(p->product, PRODUCT_AUX, &aux, sizeof aux);
  return code;
}

static int set_end(const struct rt_blas_product *p, const struct rt_blas *blas) {
  const struct rt_blas_problem *q = &p->problem;
  int32_t type = q->bias_type;
  int code = blas->product_set(p->product, PRODUCT_EPILOGUE, &(uint32_t){(uint32_t)q->epilogue}, sizeof(uint32_t));
  if (q->bias != KERN_NONE && code == 0) code = blas->product_set(p->product, PRODUCT_BIAS_TYPE, &type, sizeof type);
  if (q->aux.mem != KERN_NONE && code == 0)
    code = blas->product_set(p->product, PRODUCT_AUX_LEADING, &q->aux.leading, sizeof q->aux.leading);
  if (q->aux.mem != KERN_NONE && q->batches > 1 && code == 0)
    code = blas->product_set(p->product, PRODUCT_AUX_BATCH_STRIDE, &q->aux.batch, sizeof q->aux.batch);
  bool loose = q->d.alignment < 16; /* then so may be what the library is given no alignment of */
  char *virtual_tensor = (char *)(uintptr_t)SOME_ADDRESS + (loose ? q->d.alignment : 0);
  return code != 0 ? code : point(p, blas, virtual_tensor, address(&q->aux, virtual_tensor));
}

static quern_status make_product(struct rt_blas_product *p, const struct rt_blas *blas) {
  const struct rt_blas_problem *q = &p->problem;
  int32_t transpose_a = q->transpose_a, transpose_b = q->transpose_b;
  int code = blas->product_create(&p->product, q->compute, q->scale);
  if (code == 0) code = blas->product_set(p->product, PRODUCT_TRANSPOSE_A, &transpose_a, sizeof transpose_a);
  if (code == 0) code = blas->product_set(p->product, PRODUCT_TRANSPOSE_B, &transpose_b, sizeof transpose_b);
  return rt_blas_check(blas, code != 0 ? code : set_end(p, blas), "a product");
}

void rt_blas_product_fini(struct rt_blas_product *p, const struct rt_blas *blas) {
  void *const layouts[] = {p->a, p->b, p->c, p->d};
  for (size_t i = 0; i < BASE_COUNT(layouts); i++)
    if (layouts[i] != NULL) (void)blas->layout_destroy(layouts[i]);
  if (p->product != NULL) (void)blas->product_destroy(p->product);
  p->a = p->b = p->c = p->d = p->product = NULL;
}

static quern_status make_all(struct rt_blas_product *p, const struct rt_blas *blas) {
  const struct rt_blas_problem *q = &p->problem;
  QUERN_TRY(make_layout(&p->a, blas, &q->a, q->batches));
  QUERN_TRY(make_layout(&p->b, blas, &q->b, q->batches));
  QUERN_TRY(make_layout(&p->c, blas, &q->c, q->batches));
  QUERN_TRY(make_layout(&p->d, blas, &q->d, q->batches));
  return make_product(p, blas);
}

quern_status rt_blas_product_init(struct rt_blas_product *p, const struct rt_blas *blas, const struct kern *kern) {
  *p = (struct rt_blas_product){0};
  QUERN_TRY(rt_blas_problem_make(&p->problem, kern));
  quern_status status = make_all(p, blas);
  if (status != QUERN_STATUS_OK) rt_blas_product_fini(p, blas);
  return status;
}

/* ---- choosing --------------------------------------------------------------------------------------------- */

static int set_wishes(const struct rt_blas_problem *q, const struct rt_blas *blas, void *wish, size_t most) {
  const struct rt_blas_matrix *const matrices[] = {&q->a, &q->b, &q->c, &q->d};
  uint64_t bytes = most;
  uint32_t reductions = REDUCTION_IN_COMPUTE_TYPE;
  int code = blas->wish_set(wish, WISH_WORK, &bytes, sizeof bytes);
  if (code == 0) code = blas->wish_set(wish, WISH_REDUCTIONS, &reductions, sizeof reductions);
  for (int i = 0; i < (int)BASE_COUNT(matrices) && code == 0; i++)
    code = blas->wish_set(wish, WISH_ALIGNMENT_A + i, &matrices[i]->alignment, sizeof matrices[i]->alignment);
  return code;
}

/* A split product whose parts are added in place takes them in the order in which they are done, and rounds each. */
static bool is_exact(const struct rt_blas *blas, const struct rt_blas_choice *choice) {
  uint32_t scheme = 0;
  size_t written;
  int code = blas->config(choice->algorithm, CONFIG_REDUCTION, &scheme, sizeof scheme, &written);
  return code == 0 && (scheme & ~(uint32_t)REDUCTION_IN_COMPUTE_TYPE) == 0;
}

static bool is_usable(const struct rt_blas *blas, const struct rt_blas_choice *choice, size_t most) {
  return choice->state == 0 && choice->bytes <= most && is_exact(blas, choice);
}

static quern_status no_choice(const struct rt_blas_product *p, const struct rt_blas *blas, int code) {
  char text[512];
  rt_blas_problem_print(&p->problem, text, sizeof text);
  return base_error(code == 3 ? QUERN_STATUS_MEMORY : QUERN_STATUS_UNSUPPORTED, "%s has no algorithm for %s (error %d)",
                    blas->identity, text, code);
}

quern_status rt_blas_choose(const struct rt_blas_product *p, const struct rt_blas *blas, size_t most,
                            struct rt_blas_choice choices[RT_BLAS_CHOICES], int *n) {
  void *wish = NULL;
  int found = 0;
  *n = 0;
  int code = blas->wish_create(&wish);
  if (code == 0) code = set_wishes(&p->problem, blas, wish, most);
  if (code == 0)
    code = blas->choices(blas->handle, p->product, p->a, p->b, p->c, p->d, wish, RT_BLAS_CHOICES, choices, &found);
  if (wish != NULL) (void)blas->wish_destroy(wish);
  for (int i = 0; i < found && code == 0; i++)
    if (is_usable(blas, &choices[i], most)) choices[(*n)++] = choices[i];
  return *n > 0 ? QUERN_STATUS_OK : no_choice(p, blas, code);
}

/* The library's own number of how a kernel works; on Hopper, from 4 on, on the largest tiles. */
static uint32_t custom_of(const struct rt_blas *blas, const struct rt_blas_choice *choice) {
  uint32_t custom = 0;
  size_t written;
  return blas->config(choice->algorithm, CONFIG_CUSTOM, &custom, sizeof custom, &written) == 0 ? custom : 0;
}

/* Of large products without an epilogue the first algorithm on smaller tiles is faster on Hopper than the library thinks (see the note): it is put first. */
static void prefer(const struct rt_blas_product *p, const struct rt_blas *blas, const struct rt_cuda_driver *driver,
                   struct rt_blas_choice *choices, int n) {
  enum { HOPPER = 9, NO_END = 1, LARGEST_TILES = 4, LARGE_WAVES = 2 };
  if (driver->major != HOPPER || p->problem.epilogue != NO_END || choices[0].waves < LARGE_WAVES) return;
  int i = 0;
  while (i < n && custom_of(blas, &choices[i]) >= LARGEST_TILES) i++;
  if (i == 0 || i == n) return;
  struct rt_blas_choice first = choices[0];
  choices[0] = choices[i];
  choices[i] = first;
}

/* ---- the table -------------------------------------------------------------------------------------------- */

static uint64_t whose(const struct rt_blas *blas) {
  return base_hash_bytes(BASE_HASH_SEED, blas->identity, strlen(blas->identity));
}

quern_status rt_blas_query_algorithm(const struct rt_blas *blas, const struct rt_cuda_driver *driver,
                                     struct base_heap *heap, const struct kern *kern, struct kern_library_call *call,
                                     size_t *bytes) {
  struct rt_blas_product p;
  struct rt_blas_choice choices[RT_BLAS_CHOICES];
  int n;
  size_t most = call->work != KERN_NONE ? RT_BLAS_WORK : 0;
  QUERN_TRY(rt_blas_product_init(&p, blas, kern));
  quern_status status = rt_blas_choose(&p, blas, most, choices, &n);
  if (status == QUERN_STATUS_OK) {
    prefer(&p, blas, driver, choices, n);
    rt_blas_tune(&p, blas, driver, heap, kern, most, choices, n);
    memset(call->algorithm, 0, sizeof call->algorithm);
    memcpy(call->algorithm, choices[0].algorithm, sizeof choices[0].algorithm);
    call->algorithm[WHOSE] = whose(blas);
    call->algorithm[BYTES] = choices[0].bytes;
    *bytes = choices[0].bytes;
  }
  rt_blas_product_fini(&p, blas);
  return status;
}

struct plan {
  struct base_heap *heap;
  pthread_mutex_t lock; /* of the descriptor, which has addresses in it */
  struct rt_blas_product product;
  uint64_t algorithm[RT_BLAS_WORDS];
  size_t work;
};

/* Whether the library still knows the algorithm of the call, and it needs no more workspace than there is. */
static bool is_known(const struct plan *plan, const struct rt_blas *blas, const struct kern_library_call *call) {
  const struct rt_blas_product *p = &plan->product;
  struct rt_blas_choice result = {0};
  return call->algorithm[WHOSE] == whose(blas) &&
         blas->check(blas->handle, p->product, p->a, p->b, p->c, p->d, call->algorithm, &result) == 0 &&
         result.bytes <= plan->work;
}

static quern_status find_algorithm(struct plan *plan, const struct rt_blas *blas,
                                   const struct kern_library_call *call) {
  struct rt_blas_choice choices[RT_BLAS_CHOICES];
  int n;
  memcpy(plan->algorithm, call->algorithm, sizeof plan->algorithm);
  if (is_known(plan, blas, call)) return QUERN_STATUS_OK;
  QUERN_TRY(rt_blas_choose(&plan->product, blas, plan->work, choices, &n));
  memcpy(plan->algorithm, choices[0].algorithm, sizeof plan->algorithm);
  return QUERN_STATUS_OK;
}

void rt_blas_plan_free(const struct rt_blas *blas, void *made) {
  struct plan *plan = made;
  if (plan == NULL) return;
  rt_blas_product_fini(&plan->product, blas);
  pthread_mutex_destroy(&plan->lock);
  base_free(plan->heap, plan, sizeof *plan);
}

quern_status rt_blas_plan(const struct rt_blas *blas, struct base_heap *heap, const struct kern *kern, void **made) {
  const struct kern_library_call *call = &kern->library_call;
  *made = NULL;
  struct plan *plan = base_alloc_zero(heap, sizeof *plan);
  if (plan == NULL) return QUERN_STATUS_MEMORY;
  plan->heap = heap;
  plan->work = call->work != KERN_NONE ? (size_t)kern->mems[call->work].count : 0;
  pthread_mutex_init(&plan->lock, NULL);
  quern_status status = rt_blas_product_init(&plan->product, blas, kern);
  if (status == QUERN_STATUS_OK) status = find_algorithm(plan, blas, call);
  if (status == QUERN_STATUS_OK)
    *made = plan;
  else
    rt_blas_plan_free(blas, plan);
  return status;
}

/* With everything that the library was given: addresses as what they are more than a multiple of 256. */
static quern_status run_error(const struct rt_blas_product *p, const struct rt_blas *blas, int code, void *const *mems,
                              const void *work, size_t bytes) {
  const struct rt_blas_problem *q = &p->problem;
  const struct rt_blas_matrix *const matrices[] = {&q->a, &q->b, &q->c, &q->d};
  unsigned at[4];
  char text[512], what[768];
  rt_blas_problem_print(q, text, sizeof text);
  for (int i = 0; i < 4; i++) at[i] = (unsigned)((uintptr_t)address(matrices[i], mems[matrices[i]->mem]) % 256);
  snprintf(what, sizeof what, "%s, at %u %u %u %u%s, %zu bytes of workspace at %u", text, at[0], at[1], at[2], at[3],
           mems[q->c.mem] == mems[q->d.mem] ? " (in place)" : "", bytes, (unsigned)((uintptr_t)work % 256));
  return rt_blas_check(blas, code, what);
}

quern_status rt_blas_product_run(const struct rt_blas_product *p, const struct rt_blas *blas, const uint64_t *algorithm,
                                 void *stream, void *const *mems, void *work, size_t bytes) {
  static const float one = 1, zero = 0;
  static const double one_f64 = 1, zero_f64 = 0;
  const struct rt_blas_problem *q = &p->problem;
  bool f64 = q->scale == q->a.type && q->a.size == sizeof(double);
  const void *alpha = f64 ? (const void *)&one_f64 : &one;
  const void *beta = q->add ? alpha : f64 ? (const void *)&zero_f64 : &zero;
  void *bias = q->bias != KERN_NONE ? mems[q->bias] : NULL;
  void *aux = q->aux.mem != KERN_NONE ? address(&q->aux, mems[q->aux.mem]) : NULL;
  void *c = address(&q->c, mems[q->c.mem]), *d = address(&q->d, mems[q->d.mem]);
  void *layout = c == d ? p->d : p->c; /* in place it must be the very same layout */
  int code = point(p, blas, bias, aux);
  if (code == 0)
    code =
        blas->product(blas->handle, p->product, alpha, address(&q->a, mems[q->a.mem]), p->a,
                      address(&q->b, mems[q->b.mem]), p->b, beta, c, layout, d, p->d, algorithm, work, bytes, stream);
  return code == 0 ? QUERN_STATUS_OK : run_error(p, blas, code, mems, work, bytes);
}

quern_status rt_blas_run(const struct rt_blas *blas, void *made, void *stream, void *const *mems, void *work) {
  struct plan *plan = made;
  pthread_mutex_lock(&plan->lock);
  quern_status status = rt_blas_product_run(&plan->product, blas, plan->algorithm, stream, mems, work, plan->work);
  pthread_mutex_unlock(&plan->lock);
  return status;
}

static quern_status open_library(const struct rt_cuda_driver *driver, char *identity, size_t bytes) {
  struct rt_blas *blas;
  (void)driver;
  QUERN_TRY(rt_blas_open(&blas));
  snprintf(identity, bytes, "%s", blas->identity);
  return QUERN_STATUS_OK;
}

/* A product of bf16 with sums of f32. */
static void warm_up(void) {
  enum { COMPUTE_F32 = 68, TYPE_F32 = 0, TYPE_BF16 = 14, NO_END = 1 };
  const struct rt_blas_matrix matrix = {
      .type = TYPE_BF16, .size = 2, .rows = 256, .columns = 256, .leading = 256, .alignment = 256};
  struct rt_blas_problem any = {
      .compute = COMPUTE_F32, .scale = TYPE_F32, .batches = 1, .terms = 256, .epilogue = NO_END, .bias = KERN_NONE};
  struct rt_blas_choice choices[RT_BLAS_CHOICES];
  struct rt_blas *blas;
  int n;
  any.a = any.b = any.c = any.d = any.aux = matrix;
  any.aux.mem = KERN_NONE;
  if (rt_blas_open(&blas) != QUERN_STATUS_OK) return;
  struct rt_blas_product p = {.problem = any};
  if (make_all(&p, blas) == QUERN_STATUS_OK) (void)!rt_blas_choose(&p, blas, 0, choices, &n);
  rt_blas_product_fini(&p, blas);
}

static quern_status query_algorithm(const struct rt_cuda_driver *driver, struct base_heap *heap,
                                    const struct kern *kern, struct kern_library_call *call, size_t *bytes) {
  struct rt_blas *blas;
  QUERN_TRY(rt_blas_open(&blas));
  return rt_blas_query_algorithm(blas, driver, heap, kern, call, bytes);
}

static quern_status plan(const struct rt_cuda_driver *driver, struct base_heap *heap, const struct kern *kern,
                         void **made) {
  struct rt_blas *blas;
  (void)driver;
  QUERN_TRY(rt_blas_open(&blas));
  return rt_blas_plan(blas, heap, kern, made);
}

static quern_status run(const struct rt_cuda_driver *driver, void *made, void *stream, void *const *mems, void *work) {
  struct rt_blas *blas;
  (void)driver;
  QUERN_TRY(rt_blas_open(&blas));
  return rt_blas_run(blas, made, stream, mems, work);
}

static void free_plan(const struct rt_cuda_driver *driver, void *made) {
  struct rt_blas *blas;
  (void)driver;
  if (rt_blas_open(&blas) == QUERN_STATUS_OK) rt_blas_plan_free(blas, made);
}

const struct rt_cuda_library rt_cuda_blas = {.name = "cuBLASLt",
                                             .bit = BASE_LIBRARY_BLAS,
                                             .load = load_ahead,
                                             .open = open_library,
                                             .warm_up = warm_up,
                                             .query_algorithm = query_algorithm,
                                             .plan = plan,
                                             .run = run,
                                             .free = free_plan};
