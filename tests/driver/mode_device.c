/* driver/mode_device.c -- gradients and bits of programs
** grad: gradients on a device against those of the evaluator, which mode_grad.c compares with differences. bits: the
** same bits with any number of threads, fused or not, optimized or not, with less memory, and with dead bytes
** overwritten; on GPUs fused or not may be another order of sums. compile: the device compiles results and gradients, and
** runs nothing. memory: resident memory grows by what is planned and 32 MiB at most; the second run allocates nothing.
*/
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "codegen/codegen.h"
#include "driver/driver.h"
#include "probe/probe.h"
#include "runtime/null/null.h"

/* A batch of cases in one context. */
struct batch {
  quern_context *ctx;
  size_t n;
  struct instance in[BATCH];
  struct job jobs[BATCH];
  quern_tensor *roots[BATCH][ROOTS];
  void *expected[BATCH][ROOTS], *got[BATCH][ROOTS];
};

/* Opens the cases that are wanted; fills roots and room for their values. */
static void batch_open(struct batch *b, size_t n, const struct test_case *cases, const char *mode,
                       bool (*wants)(const struct test_case *c), struct tally *tally) {
  b->n = 0;
  if (quern_context_new(&b->ctx, NULL) != QUERN_STATUS_OK) return;
  for (size_t i = 0; i < n; i++) {
    size_t k = b->n, n_roots;
    if (!wants(&cases[i])) continue;
    if (!instance_open_in(&b->in[k], &cases[i], b->ctx)) {
      tally_fail(tally, &cases[i], mode, "%s", quern_last_error());
      continue;
    }
    if (roots_of(&b->in[k], b->roots[k], &n_roots) != QUERN_STATUS_OK) {
      tally_fail(tally, &cases[i], mode, "%s", quern_last_error());
      instance_close(&b->in[k]);
      continue;
    }
    buffers_new(n_roots, b->roots[k], b->expected[k]);
    buffers_new(n_roots, b->roots[k], b->got[k]);
    b->jobs[k] = (struct job){.in = &b->in[k], .n = n_roots, .roots = b->roots[k]};
    b->n++;
  }
}

static void batch_close(struct batch *b) {
  for (size_t i = 0; i < b->n; i++) {
    buffers_free(b->jobs[i].n, b->expected[i]);
    buffers_free(b->jobs[i].n, b->got[i]);
    instance_close(&b->in[i]);
  }
  quern_context_free(b->ctx);
}

/* Runs the batch into one of its rooms. alone: one by one, telling which fail by a status each. */
static bool batch_run(struct batch *b, const struct way *way, bool expected) {
  for (size_t i = 0; i < b->n; i++) b->jobs[i].dst = expected ? b->expected[i] : b->got[i];
  return device_run(way, b->n, b->jobs) == QUERN_STATUS_OK;
}

/* ---- grad ---------------------------------------------------------------------------------------------- */

static bool has_gradient(const struct test_case *c) {
  return base_dtype_is(c->dtype, BASE_FLOAT) && case_differentiable(c, "grad");
}

/* How far two results of a float type may be apart, relative to the largest: sums in other orders, other polynomials,
** and what a chain of operations makes of that. */
static double bound_of(quern_dtype dtype) { return 1024 * ldexp(1, -base_dtypes[dtype].mantissa - 1); }

static bool near(const quern_tensor *t, const void *got, const void *expected, int64_t *where) {
  double scale = 1;
  quern_dtype dtype = quern_tensor_dtype(t);
  if (!base_dtype_is(dtype, BASE_FLOAT)) return true; /* mode value looks at those */
  for (int64_t i = 0; i < quern_tensor_count(t); i++) {
    double x = fabs(base_load_float(dtype, expected, (size_t)i));
    if (isfinite(x)) scale = fmax(scale, x);
  }
  for (int64_t i = 0; i < quern_tensor_count(t); i++) {
    double x = base_load_float(dtype, got, (size_t)i), y = base_load_float(dtype, expected, (size_t)i);
    *where = i;
    if ((isnan(x) && isnan(y)) || x == y) continue;
    if (!(fabs(x - y) <= scale * bound_of(dtype))) return false;
  }
  return true;
}

static void check_gradient(struct batch *b, size_t i, struct tally *tally) {
  const struct instance *in = &b->in[i];
  const struct job *job = &b->jobs[i];
  if (instance_eval(in, job->n, job->roots, b->expected[i], 0, NULL) != QUERN_STATUS_OK) {
    tally_fail(tally, in->c, "grad", "%s", quern_last_error());
    return;
  }
  for (size_t k = 0; k < job->n; k++) {
    int64_t at = 0;
    quern_dtype dtype = quern_tensor_dtype(job->roots[k]);
    if (near(job->roots[k], b->got[i][k], b->expected[i][k], &at)) continue;
    tally_fail(tally, in->c, "grad",
               "root %zu (%d results, then gradients) element %lld: %.9g, the evaluator gives %.9g", k, in->n_out,
               (long long)at, base_load_float(dtype, b->got[i][k], (size_t)at),
               base_load_float(dtype, b->expected[i][k], (size_t)at));
    return;
  }
  tally_pass(tally);
}

void mode_grad_device(const struct options *options, const struct case_list *cases, struct tally *tally) {
  const struct way way = {.name = "grad",
                          .device = options->device,
                          .target = options->target,
                          .optimize = options->optimize,
                          .threads = 2};
  static struct batch b;
  for (size_t first = 0; first < cases->n; first += BATCH) {
    batch_open(&b, BASE_MIN(BATCH, cases->n - first), &cases->at[first], "grad", has_gradient, tally);
    bool all = batch_run(&b, &way, false);
    for (size_t i = 0; i < b.n; i++) {
      if (all || device_run(&way, 1, &b.jobs[i]) == QUERN_STATUS_OK)
        check_gradient(&b, i, tally);
      else
        tally_fail(tally, b.in[i].c, "grad", "%s", quern_last_error());
    }
    batch_close(&b);
  }
}

/* ---- bits ---------------------------------------------------------------------------------------------- */

static bool wants_all(const struct test_case *c) {
  (void)c;
  return true;
}

/* The first root of a job that is not as expected; false when all are. */
static bool differs(const struct batch *b, size_t i, size_t *root, int64_t *at) {
  for (*root = 0; *root < b->jobs[i].n; ++*root) {
    *at = first_difference(b->roots[i][*root], b->got[i][*root], b->expected[i][*root]);
    if (*at >= 0) return true;
  }
  return false;
}

/* Compares a way with what is expected; failed[i] is set, once, when case i is not the same. */
static void compare_way(struct batch *b, const struct way *way, bool *failed, struct tally *tally) {
  bool all = batch_run(b, way, false);
  for (size_t i = 0; i < b->n; i++) {
    size_t root;
    int64_t at;
    if (failed[i]) continue;
    if (!all && device_run(way, 1, &b->jobs[i]) != QUERN_STATUS_OK) {
      tally_fail(tally, b->in[i].c, "bits", "%s: %s", way->name, quern_last_error());
      failed[i] = true;
    } else if (differs(b, i, &root, &at)) {
      tally_fail(tally, b->in[i].c, "bits", "%s: root %zu (%d results, then gradients) differs at element %lld",
                 way->name, root, b->in[i].n_out, (long long)at);
      failed[i] = true;
    }
  }
}

static bool is_gpu(const char *target) {
  struct cg_target found;
  return target != NULL && cg_target_parse(&found, target) == QUERN_STATUS_OK && found.base.gpu;
}

void mode_bits_device(const struct options *options, const struct case_list *cases, struct tally *tally) {
  const char *device = options->device, *target = options->target;
  const char *same = target != NULL ? target : device_target(device); /* bits are those of the target's row */
  const struct way base = {"one thread", device, 1, 1, NULL, false, false, false, target};
  const struct way ways[] = {{"two threads, dead bytes overwritten", device, 1, 2, NULL, true, false, false, target},
                             {"three threads", device, 1, 3, NULL, false, false, false, target},
                             {"eight threads, less memory", device, 1, 8, NULL, false, true, false, target},
                             {"not fused", device, 1, 1, "-fuse", false, false, false, target},
                             {"not optimized", device, 0, 1, NULL, false, false, false, target},
                             {"interpreted", "interp", 1, 1, NULL, false, false, false, same}};
  static struct batch b;
  for (size_t first = 0; first < cases->n; first += BATCH) {
    bool failed[BATCH] = {false};
    batch_open(&b, BASE_MIN(BATCH, cases->n - first), &cases->at[first], "bits", wants_all, tally);
    bool all = batch_run(&b, &base, true);
    for (size_t i = 0; i < b.n && !all; i++) {
      failed[i] = device_run(&base, 1, &b.jobs[i]) != QUERN_STATUS_OK;
      if (failed[i]) tally_fail(tally, b.in[i].c, "bits", "%s", quern_last_error());
    }
    for (size_t w = 0; w < BASE_COUNT(ways); w++) {
      if ((ways[w].passes != NULL || ways[w].optimize == 0) && is_gpu(same)) continue;
      if (w == 0 || strcmp(ways[w].device, device) == 0 || strcmp(device, "interp") != 0)
        compare_way(&b, &ways[w], failed, tally);
    }
    for (size_t i = 0; i < b.n; i++)
      if (!failed[i]) tally_pass(tally);
    batch_close(&b);
  }
}

/* ---- compile ------------------------------------------------------------------------------------------- */

enum { MOST_TARGETS = 16 };

/* Compiles a batch for a target, NULL: the device's own; what fails is reported with it. */
static void compile_batch(const struct batch *b, const struct way *way, struct tally *tally) {
  const char *target = way->target != NULL ? way->target : way->device;
  char mode[128], message[1024]; /* of all together */
  size_t failed = tally->failed;
  snprintf(mode, sizeof mode, "compile --device %s%s%s", way->device, way->target != NULL ? " --target " : "",
           way->target != NULL ? way->target : "");
  bool all = device_compile(way, b->n, b->jobs) == QUERN_STATUS_OK;
  if (!all) snprintf(message, sizeof message, "%s", quern_last_error());
  for (size_t i = 0; i < b->n; i++) {
    if (all || device_compile(way, 1, &b->jobs[i]) == QUERN_STATUS_OK)
      tally_pass(tally);
    else
      tally_fail(tally, b->in[i].c, mode, "%s: %s", target, quern_last_error());
  }
  if (all || tally->failed > failed) return;
  printf("FAIL %zu cases as one program, each of which can be compiled: %s: %s\n", b->n, target, message);
  tally->failed++;
}

/* The targets of a list, separated by commas. */
static size_t split_targets(const char *list, char text[256], const char *targets[MOST_TARGETS]) {
  size_t n = 0;
  snprintf(text, 256, "%s", list);
  for (char *at = text, *rest; n < MOST_TARGETS && (at = strtok_r(at, ",", &rest)) != NULL; at = NULL)
    targets[n++] = at;
  return n;
}

/* Texts that the compiler has seen, whatever for: a hash table that is never full. */
static struct {
  uint64_t at[1 << 16];
  size_t n;
  unsigned long start, every;
} seen;

/* New texts, and every N-th of those that an earlier target had. */
static bool wants_text(const struct cg_target *target, uint64_t text) {
  (void)target;
  size_t i = text % BASE_COUNT(seen.at);
  for (; seen.at[i] != 0; i = (i + 1) % BASE_COUNT(seen.at))
    if (seen.at[i] == text) return (text + seen.start) % seen.every == 0;
  if (seen.n < BASE_COUNT(seen.at) / 2) {
    seen.at[i] = text;
    seen.n++;
  }
  return true;
}

void mode_compile(const struct options *options, const struct case_list *cases, struct tally *tally) {
  const char *device = on_device(options) ? options->device : "null", *targets[MOST_TARGETS] = {NULL};
  char text[256];
  size_t n = options->target != NULL ? split_targets(options->target, text, targets) : 1;
  static struct batch b;
  if (n == 0) {
    printf("querntest: --target names none\n");
    tally->failed++;
  }
  rt_null_quick(options->quick);
  if (options->repeat_every != 0) {
    seen.start = options->repeat_start;
    seen.every = options->repeat_every;
    rt_null_choose(wants_text);
  }
  for (size_t first = 0; first < cases->n; first += BATCH) {
    batch_open(&b, BASE_MIN(BATCH, cases->n - first), &cases->at[first], "compile", wants_all, tally);
    for (size_t i = 0; i < n; i++) {
      const struct way way = {"compile", device, options->optimize, 1, NULL, false, false, false, targets[i]};
      compile_batch(&b, &way, tally);
    }
    batch_close(&b);
  }
}

/* ---- memory -------------------------------------------------------------------------------------------- */

/* Says what cannot be looked at here. */
static void announce(void) {
  struct probe_bytes bytes;
  if (!probe_reset_peak() || !probe_read(&bytes)) printf("skipped: the peak of resident memory cannot be reset here\n");
  if (!probe_counts()) printf("skipped: calls of malloc are not counted in this build; those of the library are\n");
}

void mode_memory(const struct options *options, const struct case_list *cases, struct tally *tally) {
  const struct way ways[] = {
      {.name = "one thread", .device = "cpu", .optimize = options->optimize, .threads = 1, .watched = true},
      {.name = "two threads", .device = "cpu", .optimize = options->optimize, .threads = 2, .watched = true}};
  static struct batch b;
  if (strcmp(options->device, "cpu") != 0) {
    printf("querntest: --mode memory is of programs that are compiled (HINT: --device cpu)\n");
    tally->failed++;
    return;
  }
  announce();
  for (size_t first = 0; first < cases->n; first += BATCH) {
    bool failed[BATCH] = {false};
    batch_open(&b, BASE_MIN(BATCH, cases->n - first), &cases->at[first], "memory", wants_all, tally);
    for (size_t w = 0; w < BASE_COUNT(ways); w++) {
      size_t wrong = 0;
      if (batch_run(&b, &ways[w], false)) continue;
      char message[512]; /* of all together */
      snprintf(message, sizeof message, "%s", quern_last_error());
      for (size_t i = 0; i < b.n; i++) {
        if (failed[i] || device_run(&ways[w], 1, &b.jobs[i]) == QUERN_STATUS_OK) continue;
        failed[i] = true;
        wrong++;
        tally_fail(tally, b.in[i].c, "memory", "%s: %s", ways[w].name, quern_last_error());
      }
      if (wrong > 0) continue;
      printf("FAIL cases %zu to %zu as one program, %s: %s\n", first, first + b.n, ways[w].name, message);
      tally->failed++;
    }
    for (size_t i = 0; i < b.n; i++)
      if (!failed[i]) tally_pass(tally);
    batch_close(&b);
  }
}
