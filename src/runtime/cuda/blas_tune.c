/* runtime/cuda/blas_tune.c -- which algorithm of a product is fastest, by the clock
** The order in which the library offers its algorithms is a guess. QUERN_TUNE=1 lets the clock decide when a program is compiled; what it found
** is kept in the cache, under the library, the GPU and the product, and taken from there by every later compilation.
** tests: tests/runtime/test_tune.c, make test-cuda
*/
#include "runtime/cuda/blas.h"

#include <inttypes.h>
#include <stdio.h>

enum { ROUNDS = 3, MOST_RUNS = 1000, NOISE_BYTES = 1 << 16 };
static const double WINDOW = 2e-3; /* seconds that a measurement takes at least */

/* ---- memories to run on ----------------------------------------------------------------------------------- */

struct bench {
  const struct rt_cuda_driver *driver;
  void *stream;
  int n;
  void *mems[KERN_MAX_MEMS];
};

/* Numbers between 0.5 and 2 in magnitude, whichever float they are read as: products of zeros take less power, and so less time. */
static int spread_noise(const struct bench *bench, uint64_t at, size_t bytes, const uint16_t *noise) {
  const struct rt_cuda_driver *d = bench->driver;
  size_t done = BASE_MIN(bytes, (size_t)NOISE_BYTES);
  int code = d->upload(at, noise, done, bench->stream);
  for (size_t n; done < bytes && code == 0; done += n) {
    n = BASE_MIN(done, bytes - done);
    code = d->copy(at + done, at, n, bench->stream);
  }
  return code;
}

static int make_memories(struct bench *bench, const struct kern *kern, const uint16_t *noise) {
  int code = bench->driver->stream_create(&bench->stream, 1);
  for (int i = 0; i < kern->n_mems && code == 0; i++) {
    size_t bytes = (size_t)BASE_MAX(kern->mems[i].count, 1) * base_dtypes[kern->mems[i].dtype].size;
    uint64_t at = 0;
    if (kern->library_call.work == i) continue;
    code = bench->driver->alloc(&at, bytes);
    bench->mems[i] = (void *)(uintptr_t)at;
    bench->n = i + 1;
    if (code == 0) code = spread_noise(bench, at, bytes, noise);
  }
  return code;
}

static void free_memories(struct bench *bench) {
  const struct rt_cuda_driver *d = bench->driver;
  if (bench->stream != NULL) (void)d->stream_wait(bench->stream);
  for (int i = 0; i < bench->n; i++)
    if (bench->mems[i] != NULL) (void)d->free((uint64_t)(uintptr_t)bench->mems[i]);
  if (bench->stream != NULL) (void)d->stream_destroy(bench->stream);
}

/* ---- the clock -------------------------------------------------------------------------------------------- */

static quern_status run_some(const struct rt_blas_product *p, const struct rt_blas *blas, const struct bench *bench,
                             const struct rt_blas_choice *choice, void *work, int times, double *seconds) {
  const struct rt_cuda_driver *d = bench->driver;
  double start = base_clock();
  for (int i = 0; i < times; i++)
    QUERN_TRY(rt_blas_product_run(p, blas, choice->algorithm, bench->stream, bench->mems, work, choice->bytes));
  int code = d->stream_wait(bench->stream);
  QUERN_CHECK(code == 0, INTERNAL, "cuda: timing a product: error %d", code);
  *seconds = (base_clock() - start) / times;
  return QUERN_STATUS_OK;
}

/* The algorithms round-robin, so that a slow moment is not one algorithm's alone; the first runs are not counted. */
static quern_status time_all(const struct rt_blas_product *p, const struct rt_blas *blas, const struct bench *bench,
                             const struct rt_blas_choice *choices, int n, void *work, double *seconds) {
  double took;
  for (int i = 0; i < n; i++) {
    QUERN_TRY(run_some(p, blas, bench, &choices[i], work, 1, &took));
    QUERN_TRY(run_some(p, blas, bench, &choices[i], work, 1, &seconds[i]));
  }
  int times = (int)BASE_MIN(BASE_MAX(WINDOW / BASE_MAX(seconds[0], 1e-9), 2.0), (double)MOST_RUNS);
  for (int round = 0; round < ROUNDS; round++)
    for (int i = 0; i < n; i++) {
      QUERN_TRY(run_some(p, blas, bench, &choices[i], work, times, &took));
      seconds[i] = round == 0 ? took : BASE_MIN(seconds[i], took);
    }
  return QUERN_STATUS_OK;
}

quern_status rt_blas_time(const struct rt_blas_product *p, const struct rt_blas *blas,
                          const struct rt_cuda_driver *driver, struct base_heap *heap, const struct kern *kern,
                          const struct rt_blas_choice *choices, int n, double *seconds) {
  struct bench bench = {.driver = driver};
  uint64_t work = 0, random = BASE_HASH_SEED;
  size_t bytes = 0;
  uint16_t *noise = base_alloc(heap, NOISE_BYTES);
  if (noise == NULL) return QUERN_STATUS_MEMORY;
  for (size_t i = 0; i < NOISE_BYTES / sizeof *noise; i++) {
    random = base_hash_u64(random, i);
    noise[i] = (uint16_t)(0x3f00u | (random & 0x80ffu));
  }
  for (int i = 0; i < n; i++) bytes = BASE_MAX(bytes, choices[i].bytes);
  int code = make_memories(&bench, kern, noise);
  if (code == 0 && bytes > 0) code = driver->alloc(&work, bytes);
  quern_status status = QUERN_STATUS_OK;
  if (code != 0) status = base_error(QUERN_STATUS_MEMORY, "cuda: no memory to time products in (error %d)", code);
  if (status == QUERN_STATUS_OK) status = time_all(p, blas, &bench, choices, n, (void *)(uintptr_t)work, seconds);
  free_memories(&bench);
  if (work != 0) (void)driver->free(work);
  base_free(heap, noise, NOISE_BYTES);
  return status;
}

/* ---- notes ------------------------------------------------------------------------------------------------ */

static void note_name(const struct rt_blas_product *p, const struct rt_blas *blas, const struct rt_cuda_driver *driver,
                      char *name, size_t bytes) {
  int n = snprintf(name, bytes, "%s, %s, ", blas->identity, driver->name);
  if (n > 0 && (size_t)n < bytes) rt_blas_problem_print(&p->problem, name + n, bytes - (size_t)n);
}

static void print_choice(const struct rt_blas_choice *choice, char *text, size_t bytes) {
  int n = snprintf(text, bytes, "way 1 %zu", choice->bytes);
  for (int i = 0; i < RT_BLAS_WORDS && n > 0 && (size_t)n < bytes; i++)
    n += snprintf(text + n, bytes - (size_t)n, " %" PRIx64, choice->algorithm[i]);
}

static bool parse_choice(const char *text, struct rt_blas_choice *choice) {
  uint64_t *w = choice->algorithm;
  *choice = (struct rt_blas_choice){0};
  return sscanf(text,
                "way 1 %zu %" SCNx64 " %" SCNx64 " %" SCNx64 " %" SCNx64 " %" SCNx64 " %" SCNx64 " %" SCNx64
                " %" SCNx64,
                &choice->bytes, &w[0], &w[1], &w[2], &w[3], &w[4], &w[5], &w[6], &w[7]) == 1 + RT_BLAS_WORDS;
}

/* A note is taken when its algorithm is still one that the library can use in that much workspace. */
static bool take_note(const struct rt_blas_product *p, const struct rt_blas *blas, const char *text, size_t most,
                      struct rt_blas_choice *choice) {
  struct rt_blas_choice noted, result = {0};
  if (!parse_choice(text, &noted) || noted.bytes > most) return false;
  if (blas->check(blas->handle, p->product, p->a, p->b, p->c, p->d, noted.algorithm, &result) != 0) return false;
  if (result.bytes > noted.bytes) return false;
  *choice = noted;
  return true;
}

static void tuned_name(const struct rt_cuda_driver *driver, char *name, size_t bytes) {
  snprintf(name, bytes, "tuned, %s", driver->name);
}

void rt_cuda_tuned(struct base_heap *heap, const struct rt_cuda_driver *driver, char *text, size_t bytes) {
  char name[256];
  tuned_name(driver, name, sizeof name);
  text[0] = 0;
  rt_note_get(heap, name, text, bytes);
}

/* Keeps the algorithm, and marks that there is a new one. */
static void keep(struct base_heap *heap, const struct rt_cuda_driver *driver, const char *name,
                 const struct rt_blas_choice *choice) {
  char text[256], all[256];
  print_choice(choice, text, sizeof text);
  rt_note_set(heap, name, text);
  rt_cuda_tuned(heap, driver, text, sizeof text);
  uint64_t hash = base_hash_bytes(BASE_HASH_SEED, text, strlen(text));
  snprintf(text, sizeof text, "%016" PRIx64, base_hash_bytes(hash, name, strlen(name)));
  tuned_name(driver, all, sizeof all);
  rt_note_set(heap, all, text);
}

void rt_blas_tune(const struct rt_blas_product *p, const struct rt_blas *blas, const struct rt_cuda_driver *driver,
                  struct base_heap *heap, const struct kern *kern, size_t most, struct rt_blas_choice *choices, int n) {
  char name[768], text[256] = "";
  double seconds[RT_BLAS_CHOICES];
  int best = 0;
  note_name(p, blas, driver, name, sizeof name);
  rt_note_get(heap, name, text, sizeof text);
  if (take_note(p, blas, text, most, &choices[0]) || base_env_int(BASE_ENV_TUNE) != 1) return;
  if (rt_blas_time(p, blas, driver, heap, kern, choices, n, seconds) != QUERN_STATUS_OK) {
    base_log(1, "cuda: %s: not tuned: %s", name, quern_last_error());
    return;
  }
  for (int i = 1; i < n; i++)
    if (seconds[i] < seconds[best]) best = i;
  base_log(1, "cuda: %s: algorithm %d of %d takes %.1f us, the first %.1f us", name, best, n, seconds[best] * 1e6,
           seconds[0] * 1e6);
  choices[0] = choices[best];
  keep(heap, driver, name, &choices[0]);
}
