/* driver/mode_ulp.c -- the accuracy of kernels: the largest error of every function of a table against long double
** A function runs on the inputs of its row in f32, bf16, f16 and f64, as a program of the device; it fails when its
** largest error is above the row's bound. With a peer, a Python program, the same inputs go to it, and its
** results are measured by the same code: in a folder it finds peer.txt, with a line "N NAME DTYPE ROWS COLUMNS OPERANDS"
** for each of the files N.0 and N.1 of operands, and writes N.out.
** see: accuracy.h (the table), tools/accuracy.py (what makes docs/accuracy.md of it), tests/oracle/accuracy_torch.py
*/
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver/accuracy.h"

enum { PATH = 1024 };

/* A function in a dtype, and the sizes of its operands and its result. */
struct sample {
  const struct accuracy *f;
  quern_dtype dtype;
  double bound;
  int64_t rows, columns, columns_out;
};

static const char *const row_results[] = {"logsumexp", "var", "std"}; /* one element per row */

static struct sample sample_of(size_t number) {
  const struct accuracy *f = &accuracies[number / ACCURACY_DTYPES];
  size_t dtype = number % ACCURACY_DTYPES;
  struct sample s = {.f = f, .dtype = accuracy_dtypes[dtype], .bound = f->bounds[dtype]};
  accuracy_shape(s.f, s.dtype, &s.rows, &s.columns);
  s.columns_out = s.columns;
  for (size_t i = 0; i < BASE_COUNT(row_results); i++)
    if (strcmp(s.f->name, row_results[i]) == 0) s.columns_out = 1;
  return s;
}

/* Whether one of the cases that the command chose is of this function and dtype. */
static bool is_wanted(const struct sample *s, const struct case_list *cases) {
#if LDBL_MANT_DIG <= DBL_MANT_DIG
  if (s->dtype == QUERN_DTYPE_F64) return false;
#endif
  for (size_t i = 0; i < cases->n; i++)
    if (cases->at[i].dtype == s->dtype && strcmp(cases->at[i].builder->name, s->f->name) == 0) return true;
  return false;
}

/* ---- errors -------------------------------------------------------------------------------------------- */

struct worst {
  double error;
  bool two; /* b counts */
  double a, b, got, expected;
};

/* The distance between neighbors of a format near x. */
static long double ulp(quern_dtype dtype, long double x) {
  const struct base_dtype_info *d = &base_dtypes[dtype];
  int exponent, least = 2 - (1 << (d->exponent - 1));
  if (x == 0) return ldexpl(1, least - d->mantissa);
  frexpl(x, &exponent);
  return ldexpl(1, BASE_MAX(exponent - 1, least) - d->mantissa);
}

static long double largest_of(quern_dtype dtype) {
  const struct base_dtype_info *d = &base_dtypes[dtype];
  return ldexpl(2 - ldexpl(1, -d->mantissa), (1 << (d->exponent - 1)) - 1);
}

/* scale: what the error is counted in ulp of. NaN must be where it should be; what overflows counts as the largest
** number. */
static double error_of(const struct sample *s, long double got, long double expected, long double scale) {
  long double edge = largest_of(s->dtype);
  if (isnan(got) || isnan(expected)) return isnan(got) && isnan(expected) ? 0 : (double)INFINITY;
  long double error =
      fabsl(copysignl(fminl(fabsl(expected), edge), expected) - copysignl(fminl(fabsl(got), edge), got));
  if (s->f->measure == RELATIVE) {
    long double least = ldexpl(1, 2 - (1 << (base_dtypes[s->dtype].exponent - 1)));
    return fabsl(expected) < least ? 0 : (double)(error / fabsl(expected));
  }
  return (double)(error / ulp(s->dtype, fminl(fabsl(scale), edge)));
}

/* The largest finite size of a row. */
static long double size_of(int64_t n, const long double *x) {
  long double size = 0;
  for (int64_t i = 0; i < n; i++)
    if (isfinite(x[i])) size = fmaxl(size, fabsl(x[i]));
  return size;
}

/* The largest error of a result. */
static struct worst measure(const struct sample *s, void *const *x, const void *y) {
  const struct accuracy *f = s->f;
  int n = accuracy_operands(f);
  struct worst worst = {.error = -1, .two = n == 2};
  size_t bytes = (size_t)s->columns * sizeof(long double);
  long double *a = grab(bytes), *b = grab(bytes), *expected = grab(bytes);
  for (int64_t row = 0; row < s->rows; row++) {
    for (int64_t i = 0; i < s->columns; i++) {
      size_t at = (size_t)(row * s->columns + i);
      a[i] = base_load_float(s->dtype, x[0], at);
      b[i] = n == 2 ? base_load_float(s->dtype, x[1], at) : 0;
    }
    f->reference(s->columns, a, b, s->columns_out, expected);
    long double size = f->measure == OF_ROW ? fmaxl(size_of(s->columns_out, expected), size_of(s->columns, a)) : 0;
    for (int64_t i = 0; i < s->columns_out; i++) {
      double got = base_load_float(s->dtype, y, (size_t)(row * s->columns_out + i));
      long double scale = f->measure == OF_ROW ? size : f->measure == OF_X ? a[i] : expected[i];
      double error = error_of(s, got, expected[i], scale);
      if (error > worst.error)
        worst = (struct worst){error, n == 2, (double)a[i], (double)b[i], got, (double)expected[i]};
    }
  }
  free(a);
  free(b);
  free(expected);
  return worst;
}

/* ---- running ------------------------------------------------------------------------------------------- */

/* Makes the case of a sample, with the inputs of the table in place of those that the case would have. */
static bool open_sample(const struct sample *s, struct case_list *list, struct instance *in, quern_context *ctx) {
  char line[256], shape[64];
  size_t length = (size_t)snprintf(shape, sizeof shape, "%lld", (long long)s->rows);
  if (s->columns > 1) snprintf(shape + length, sizeof shape - length, "x%lld", (long long)s->columns);
  snprintf(line, sizeof line, "%s %s %s%s%s %s", s->f->name, quern_dtype_name(s->dtype), shape,
           accuracy_operands(s->f) == 2 ? "," : "", accuracy_operands(s->f) == 2 ? shape : "", s->f->keys);
  if (!case_parse(list, line, NULL, 0) || !instance_open_in(in, &list->at[list->n - 1], ctx)) return false;
  for (int k = 0; k < in->n_leaves; k++) accuracy_fill(s->f, k, s->dtype, in->data[k]);
  return true;
}

/* The evaluator has no kernels: by default they are interpreted. */
static const char *device_of(const struct options *options) { return on_device(options) ? options->device : "interp"; }

static quern_status run_sample(const struct options *options, const struct instance *in, void **y) {
  const struct way way = {.name = "ulp",
                          .device = device_of(options),
                          .target = options->target,
                          .optimize = options->optimize,
                          .threads = 1};
  struct job job = {.in = in, .n = 1, .roots = in->out, .dst = y};
  return device_run(&way, 1, &job);
}

static void print_worst(const struct sample *s, const struct worst *worst) {
  static const char *const counted[] = {
      [OF_RESULT] = "ulp", [OF_X] = "ulp of x", [OF_ROW] = "ulp of row", [RELATIVE] = "relative"};
  printf(s->f->measure == RELATIVE ? "%.2e" : "%.3f", worst->error);
  printf(" %s at %.9g", counted[s->f->measure], worst->a);
  if (worst->two) printf(", %.9g", worst->b);
}

/* Runs and prints a sample; peer: the file of a peer's result, or NULL. */
static bool check_sample(const struct options *options, const struct sample *s, const char *peer) {
  struct case_list list = {0};
  struct instance in = {0};
  quern_context *ctx;
  bool ok = false;
  if (quern_context_new(&ctx, NULL) != QUERN_STATUS_OK) return false;
  printf("%-11s %-4s ", s->f->name, quern_dtype_name(s->dtype));
  if (s->f->inputs == WITHIN) printf("[%g, %g] ", s->f->lo, s->f->hi);
  if (open_sample(s, &list, &in, ctx)) {
    size_t bytes = quern_tensor_bytes(in.out[0]);
    void *y = grab(bytes);
    if (run_sample(options, &in, &y) == QUERN_STATUS_OK) {
      struct worst worst = measure(s, in.data, y);
      ok = worst.error <= s->bound * (1 + 1e-4);
      print_worst(s, &worst);
      printf(" (bound %g)", s->bound);
      if (!ok) printf(" FAIL: got %.9g, expected %.9g", worst.got, worst.expected);
      FILE *file = peer != NULL ? fopen(peer, "rb") : NULL;
      if (file != NULL && fread(y, 1, bytes, file) == bytes) {
        worst = measure(s, in.data, y);
        printf("; peer ");
        print_worst(s, &worst);
      }
      if (file != NULL) fclose(file);
    } else {
      printf("FAIL: %s", quern_last_error());
    }
    free(y);
    instance_close(&in);
  } else {
    printf("FAIL: %s", quern_last_error());
  }
  printf("\n");
  if (!ok)
    printf("  repro: querntest --mode ulp --device %s --op %s --dtype %s\n", device_of(options), s->f->name,
           quern_dtype_name(s->dtype));
  quern_context_free(ctx);
  free(list.at);
  return ok;
}

/* ---- the peer ------------------------------------------------------------------------------------------ */

static bool write_inputs(const char *folder, FILE *list, size_t number) {
  struct sample s = sample_of(number);
  char path[PATH + 64];
  size_t bytes = (size_t)(s.rows * s.columns) * quern_dtype_size(s.dtype);
  void *data = grab(bytes);
  bool ok = true;
  for (int k = 0; k < accuracy_operands(s.f) && ok; k++) {
    snprintf(path, sizeof path, "%s/%zu.%d", folder, number, k);
    FILE *file = fopen(path, "wb");
    accuracy_fill(s.f, k, s.dtype, data);
    ok = file != NULL && fwrite(data, 1, bytes, file) == bytes;
    if (file != NULL) ok = fclose(file) == 0 && ok;
  }
  free(data);
  fprintf(list, "%zu %s %s %lld %lld %d\n", number, s.f->name, quern_dtype_name(s.dtype), (long long)s.rows,
          (long long)s.columns, accuracy_operands(s.f));
  return ok;
}

/* Has the peer compute all samples; its results are files of the folder. */
static bool run_peer(const struct options *options, const struct case_list *cases, const char *folder) {
  char path[PATH + 64], command[PATH * 4];
  snprintf(path, sizeof path, "%s/peer.txt", folder);
  FILE *list = fopen(path, "w");
  bool ok = list != NULL;
  for (size_t i = 0; i < accuracy_count * ACCURACY_DTYPES && ok; i++) {
    struct sample s = sample_of(i);
    if (is_wanted(&s, cases)) ok = write_inputs(folder, list, i);
  }
  if (list != NULL) ok = fclose(list) == 0 && ok;
  snprintf(command, sizeof command, "'%s' '%s' '%s'", options->python != NULL ? options->python : "python3",
           options->peer, folder);
  fflush(stdout);
  if (ok && system(command) == 0) return true;
  printf("the peer failed: %s\n", command);
  return false;
}

static void remove_files(const char *folder) {
  static const char *const ends[] = {"0", "1", "out"};
  char path[PATH + 64];
  for (size_t i = 0; i < accuracy_count * ACCURACY_DTYPES * BASE_COUNT(ends); i++) {
    snprintf(path, sizeof path, "%s/%zu.%s", folder, i / BASE_COUNT(ends), ends[i % BASE_COUNT(ends)]);
    remove(path);
  }
  snprintf(path, sizeof path, "%s/peer.txt", folder);
  remove(path);
  rmdir(folder);
}

void mode_ulp(const struct options *options, const struct case_list *cases, struct tally *tally) {
  char folder[PATH] = "/tmp/querntest.XXXXXX", path[PATH + 64];
  bool peer = options->peer != NULL;
  if (peer && (mkdtemp(folder) == NULL || !run_peer(options, cases, folder))) tally->failed++;
  for (size_t i = 0; i < accuracy_count * ACCURACY_DTYPES; i++) {
    struct sample s = sample_of(i);
    if (!is_wanted(&s, cases)) continue;
    snprintf(path, sizeof path, "%s/%zu.out", folder, i);
    if (check_sample(options, &s, peer ? path : NULL))
      tally_pass(tally);
    else
      tally->failed++;
  }
  if (peer) remove_files(folder);
}
