/* prof/calibrate.c -- what the CPU can do: fma rate, bandwidth of each level of memory, the price of a launch
** Small generated kernels, each run until it took long enough, the best of several times; the figures are kept in
** the cache under the CPU's name and the number of threads.
** tests: tests/prof/test_calibrate.c
*/
#include <inttypes.h>
#include <stdio.h>

#include "prof/prof.h"

const char *const prof_level_names[PROF_LEVELS] = {"L1", "L2", "L3", "DRAM"};

enum { CHAINS = 12, STREAMS = 4, VECTORS = 2, LOADS = STREAMS * VECTORS, PASSES = 3 };
static const double WINDOW = 3e-4, BUDGET = 2e-2; /* seconds of a launch at least, and of a kernel in a pass */

/* ---- kernels: scalar 0 is how often the inner loop is repeated ---------------------------------------- */

static quern_status begin(struct kern **kern, struct base_heap *heap, struct kern_builder *b, int threads,
                          quern_dtype dtype, int64_t in, int64_t out) {
  QUERN_TRY(kern_new(kern, heap));
  (*kern)->n_scalars = 1;
  (void)kern_add_mem(*kern, dtype, KERN_IN, in);
  (void)kern_add_mem(*kern, dtype, KERN_OUT, out);
  *b = (struct kern_builder){*kern, kern_add_phase(*kern, KERN_FIXED_TASKS(threads))};
  return (*kern)->failed;
}

/* CHAINS fma chains that do not wait for each other. */
static quern_status fma_kernel(struct kern **kern, struct base_heap *heap, int threads, quern_dtype dtype, int lanes) {
  struct kern_builder b;
  QUERN_TRY(begin(kern, heap, &b, threads, dtype, lanes, (int64_t)threads * lanes));
  kern_id in = kern_mem(&b, 0), out = kern_mem(&b, 1), zero = kern_index(&b, 0), acc[CHAINS];
  kern_id x = kern_load(&b, in, zero, lanes);
  for (int i = 0; i < CHAINS; i++) acc[i] = kern_var(&b, kern_const_f(&b, dtype, lanes, i));
  (void)kern_for(&b, zero, kern_scalar(&b, 0), 1);
  for (int i = 0; i < CHAINS; i++) kern_set(&b, acc[i], kern_fma(&b, kern_get(&b, acc[i]), x, x));
  kern_end(&b);
  kern_id sum = kern_get(&b, acc[0]);
  for (int i = 1; i < CHAINS; i++) sum = kern_add(&b, sum, kern_get(&b, acc[i]));
  kern_store(&b, out, kern_mul_i(&b, kern_task(&b), lanes), sum);
  return kern_finish(*kern, "calibrate_fma", NULL);
}

/* Each thread adds up its share of the elements, or copies them: streams far from each other, as one alone does not
** keep memory busy. */
static quern_status read_kernel(struct kern **kern, struct base_heap *heap, int threads, int lanes, int64_t share,
                                bool copy) {
  struct kern_builder b;
  QUERN_TRY(begin(kern, heap, &b, threads, QUERN_DTYPE_F32, share * threads,
                  copy ? share * threads : (int64_t)threads * lanes));
  kern_id in = kern_mem(&b, 0), out = kern_mem(&b, 1), zero = kern_index(&b, 0), acc[LOADS];
  kern_id base = kern_mul_i(&b, kern_task(&b), share);
  for (int i = 0; i < LOADS; i++) acc[i] = kern_var(&b, kern_const_f(&b, QUERN_DTYPE_F32, lanes, 0));
  (void)kern_for(&b, zero, kern_scalar(&b, 0), 1);
  kern_id at = kern_range(&b, 0, share / STREAMS, (int64_t)VECTORS * lanes);
  for (int i = 0; i < LOADS; i++) {
    int64_t from = i / VECTORS * (share / STREAMS) + i % VECTORS * lanes;
    kern_id index = kern_add_i(&b, kern_add(&b, base, at), from);
    kern_id x = kern_load(&b, in, index, lanes);
    if (copy)
      kern_store(&b, out, index, x);
    else
      kern_set(&b, acc[i], kern_add(&b, kern_get(&b, acc[i]), x));
  }
  kern_end(&b);
  kern_end(&b);
  if (!copy) {
    kern_id sum = kern_get(&b, acc[0]);
    for (int i = 1; i < LOADS; i++) sum = kern_add(&b, sum, kern_get(&b, acc[i]));
    kern_store(&b, out, kern_mul_i(&b, kern_task(&b), lanes), sum);
  }
  return kern_finish(*kern, copy ? "calibrate_copy" : "calibrate_read", NULL);
}

/* ---- measuring ------------------------------------------------------------------------------------------ */

enum { FMA_F32, FMA_F64, READ, COPY = READ + PROF_LEVELS, KERNELS };

struct bench {
  struct base_heap *heap;
  struct rt_pool *pool;
  struct kern *kernels[KERNELS];
  struct rt_module *module;
  char *in, *out;
  size_t bytes;            /* of each */
  size_t windows[KERNELS]; /* bytes that a launch goes on by, so that it finds nothing in the caches; 0: it stays */
  size_t at;               /* where the next one is */
};

/* The best of a few launches of so many rounds, in seconds. */
static quern_status best_of(struct bench *bench, int k, int64_t rounds, int times, double *best) {
  for (int i = 0; i < times; i++) {
    size_t window = bench->windows[k];
    bench->at = window > 0 && bench->at + 2 * window <= bench->bytes ? bench->at + window : 0;
    void *mems[] = {bench->in + bench->at, bench->out + bench->at};
    struct kern_launch launch = {.mems = mems, .scalars = &rounds};
    double start = base_clock();
    QUERN_TRY(rt_cpu.launch(bench->module, (size_t)k, &launch, bench->pool, NULL, 0));
    double took = base_clock() - start;
    if (i == 0 || took < *best) *best = took;
  }
  return QUERN_STATUS_OK;
}

/* Seconds of one round of the kernel's loop. Windows are short, so that some of them meet no other program. */
static quern_status time_kernel(struct bench *bench, int k, double *seconds) {
  int64_t rounds = 1;
  size_t window = bench->windows[k];
  double took, best, stop = base_clock() + BUDGET;
  if (window > 0)
    QUERN_TRY(best_of(bench, k, 1, (int)(bench->bytes / window), &took)); /* what was cached is gone now */
  QUERN_TRY(best_of(bench, k, rounds, 3, &best));
  while (best < WINDOW && rounds < INT64_C(1) << 40 && window == 0) QUERN_TRY(best_of(bench, k, rounds *= 2, 3, &best));
  do {
    QUERN_TRY(best_of(bench, k, rounds, 3, &took));
    best = BASE_MIN(best, took);
  } while (base_clock() < stop);
  *seconds = best / (double)rounds;
  return QUERN_STATUS_OK;
}

/* What a launch costs while the threads are awake: launches that follow each other, the best of several times. */
static quern_status time_launch(struct bench *bench, double *seconds) {
  enum { TIMES = 100, BATCHES = 20 };
  double best = 0;
  for (int batch = 0; batch < BATCHES; batch++) {
    double start = base_clock(), last;
    for (int i = 0; i < TIMES; i++) QUERN_TRY(best_of(bench, FMA_F32, 0, 1, &last));
    double took = (base_clock() - start) / TIMES;
    if (batch == 0 || took < best) best = took;
  }
  *seconds = best;
  return QUERN_STATUS_OK;
}

/* The memory that DRAM is measured in: more than the caches hold. */
static int64_t dram_bytes(const struct cg_target *target) {
  const int64_t least = INT64_C(128) << 20, most = INT64_C(512) << 20;
  return BASE_MAX(least, BASE_MIN(4 * target->base.l3_bytes, most));
}

int64_t prof_limits_bytes(struct base_heap *heap) {
  enum { PROCESS = 16 << 20 };
  struct cg_target target;
  return rt_notes_kept(heap) && rt_cpu.target(&target) == QUERN_STATUS_OK ? 2 * dram_bytes(&target) + PROCESS : 0;
}

/* Elements that each thread goes through, of about so many bytes. */
static int64_t share_of(int64_t bytes, int lanes) {
  int64_t step = (int64_t)LOADS * lanes;
  return BASE_MAX(bytes / 4 / step, 1) * step;
}

static quern_status make_kernels(struct bench *bench, const struct cg_target *target, int threads, int lanes,
                                 const int64_t *shares) {
  QUERN_TRY(fma_kernel(&bench->kernels[FMA_F32], bench->heap, threads, QUERN_DTYPE_F32, lanes));
  QUERN_TRY(fma_kernel(&bench->kernels[FMA_F64], bench->heap, threads, QUERN_DTYPE_F64, lanes / 2));
  for (int i = 0; i < PROF_LEVELS; i++)
    QUERN_TRY(read_kernel(&bench->kernels[READ + i], bench->heap, threads, lanes, shares[i], false));
  QUERN_TRY(read_kernel(&bench->kernels[COPY], bench->heap, threads, lanes, shares[PROF_DRAM], true));
  for (int i = 0; i < PROF_LEVELS; i++) bench->bytes = BASE_MAX(bench->bytes, (size_t)(shares[i] * threads * 4));
  bench->bytes = BASE_MAX(bench->bytes, (size_t)dram_bytes(target));
  bench->windows[READ + PROF_DRAM] = bench->windows[COPY] = (size_t)(shares[PROF_DRAM] * threads * 4);
  return QUERN_STATUS_OK;
}

static quern_status measure(struct prof_limits *limits, struct bench *bench, const struct cg_target *target) {
  int lanes = target->base.vector_bytes / 4, threads = limits->threads;
  struct rt_stats stats = {0};
  double seconds[KERNELS];
  /* half of a cache, so that the rest of the program has room in it */
  const int64_t shares[PROF_LEVELS] = {share_of(target->base.l1_bytes / 2, lanes),
                                       share_of(target->base.l2_bytes / 2, lanes),
                                       share_of(target->base.l3_bytes / 2 / threads, lanes),
                                       share_of(BASE_MIN(INT64_C(4) << 20, (INT64_C(32) << 20) / threads), lanes)};
  QUERN_TRY(make_kernels(bench, target, threads, lanes, shares));
  QUERN_TRY(
      rt_cpu.build(&bench->module, bench->heap, KERNELS, (const struct kern *const *)bench->kernels, target, &stats));
  if (stats.compiled + stats.cached == 0) return QUERN_STATUS_OK; /* interpreted: which does not measure the machine */
  bench->in = base_alloc_zero(bench->heap, bench->bytes);
  bench->out = base_alloc_zero(bench->heap, bench->bytes);
  if (bench->in == NULL || bench->out == NULL) return QUERN_STATUS_MEMORY;
  for (int pass = 0; pass < PASSES; pass++) {
    for (int k = 0; k < KERNELS; k++) {
      double took;
      QUERN_TRY(time_kernel(bench, k, &took));
      if (pass == 0 || took < seconds[k]) seconds[k] = took;
    }
  }
  limits->flops_f32 = 2.0 * CHAINS * lanes * threads / seconds[FMA_F32];
  limits->flops_f64 = 1.0 * CHAINS * lanes * threads / seconds[FMA_F64];
  for (int i = 0; i < PROF_LEVELS; i++) {
    limits->bytes[i] = i == PROF_DRAM ? (int64_t)bench->bytes : 2 * shares[i] * threads * 4;
    limits->bandwidth[i] = 4.0 * (double)(shares[i] * threads) / seconds[READ + i];
  }
  /* what a level gives, those nearer give too: a smaller figure only means that another program was running */
  for (int i = PROF_LEVELS - 2; i >= 0; i--)
    limits->bandwidth[i] = BASE_MAX(limits->bandwidth[i], limits->bandwidth[i + 1]);
  limits->copy = 8.0 * (double)(shares[PROF_DRAM] * threads) / seconds[COPY];
  return time_launch(bench, &limits->launch);
}

/* ---- keeping -------------------------------------------------------------------------------------------- */

/* The CPU's name, as far as the system reports it. */
static void cpu_name(char *name, size_t bytes) {
  snprintf(name, bytes, "CPU");
  FILE *file = fopen("/proc/cpuinfo", "r");
  if (file == NULL) return;
  char line[256];
  while (fgets(line, sizeof line, file) != NULL) {
    char *colon = strchr(line, ':');
    if (strncmp(line, "model name", 10) != 0 || colon == NULL) continue;
    colon[strcspn(colon, "\n")] = 0;
    snprintf(name, bytes, "%s", colon + 1);
    break;
  }
  (void)fclose(file);
}

static bool parse(const char *text, struct prof_limits *l) {
  int n = sscanf(text, "limits 2 %d %lf %lf %lf %lf %lf %lf %lf %lf %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64,
                 &l->threads, &l->flops_f32, &l->flops_f64, &l->bandwidth[0], &l->bandwidth[1], &l->bandwidth[2],
                 &l->bandwidth[3], &l->copy, &l->launch, &l->bytes[0], &l->bytes[1], &l->bytes[2], &l->bytes[3]);
  return n == 13;
}

static void print(const struct prof_limits *l, char *text, size_t bytes) {
  snprintf(text, bytes,
           "limits 2 %d %.6g %.6g %.6g %.6g %.6g %.6g %.6g %.6g %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64,
           l->threads, l->flops_f32, l->flops_f64, l->bandwidth[0], l->bandwidth[1], l->bandwidth[2], l->bandwidth[3],
           l->copy, l->launch, l->bytes[0], l->bytes[1], l->bytes[2], l->bytes[3]);
}

/* What the limits of this CPU are stored under. */
static quern_status limits_key(char key[320], struct cg_target *target, int threads) {
  char name[256];
  QUERN_TRY(rt_cpu.target(target));
  cpu_name(name, sizeof name);
  snprintf(key, 320, "limits %s, %s, %d threads", name, target->base.name, threads);
  return QUERN_STATUS_OK;
}

bool prof_limits_find(struct prof_limits *limits, struct base_heap *heap, int threads) {
  char key[320], text[512] = "";
  struct cg_target target;
  *limits = (struct prof_limits){0};
  if (limits_key(key, &target, threads) != QUERN_STATUS_OK) return false;
  rt_note_get(heap, key, text, sizeof text);
  return parse(text, limits) && limits->threads == threads;
}

quern_status prof_limits_get(struct prof_limits *limits, struct base_heap *heap, int threads, bool again) {
  char key[320], text[512] = "";
  struct cg_target target;
  QUERN_TRY(limits_key(key, &target, threads));
  if (!again && prof_limits_find(limits, heap, threads)) return QUERN_STATUS_OK;
  *limits = (struct prof_limits){.threads = threads};
  struct bench bench = {.heap = heap};
  quern_status status = rt_pool_new(&bench.pool, heap, threads);
  if (status == QUERN_STATUS_OK) status = measure(limits, &bench, &target);
  if (status == QUERN_STATUS_OK && limits->flops_f32 > 0) {
    print(limits, text, sizeof text);
    rt_note_set(heap, key, text);
  }
  if (bench.module != NULL) rt_cpu.free(bench.module);
  for (int i = 0; i < KERNELS; i++) kern_free(bench.kernels[i]);
  base_free(heap, bench.in, bench.bytes);
  base_free(heap, bench.out, bench.bytes);
  if (bench.pool != NULL) rt_pool_free(bench.pool);
  return status;
}
