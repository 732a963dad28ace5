/* driver/mode_grad.c -- derivatives against central differences, in f64
** grad: outputs are scalarized with fixed random weights w; the gradient of sum w y against (y(x + h) - y(x -
** h)) w / 2h. grad2: the same for sum v g, g the gradient. jvp: forward derivatives along random tangents t,
** against differences along t and against the gradient: <w, J t> = <J' w, t>. In other float dtypes the
** gradient must build and evaluate; in f32 it must be near that of f64.
*/
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver/driver.h"

static const double step = 1e-5;
static const double bound_grad = 1e-6, bound_grad2 = 1e-4, bound_adjoint = 1e-10, bound_f32 = 1e-3;
enum { SAMPLES_GRAD = 64, SAMPLES_GRAD2 = 24 };

/* ---- weighted sums of tensors -------------------------------------------------------------------------- */

struct form {
  int n;
  quern_tensor *t[CASE_OPERANDS], *leaf[CASE_OPERANDS];
  double *weight[CASE_OPERANDS];
  void *stored[CASE_OPERANDS]; /* the weights in the tensors' dtype */
  quern_tensor *sum;           /* of weight times t over all tensors; NULL when there are none */
};

/* Weights for the float tensors among those given; name is a letter that no other form of the instance uses.
 */
static void form_open(struct form *f, const struct instance *in, char name, int n, quern_tensor *const *tensors) {
  *f = (struct form){0};
  for (int i = 0; i < n; i++) {
    quern_tensor *t = tensors[i];
    quern_dtype dtype = quern_tensor_dtype(t);
    size_t count = (size_t)quern_tensor_count(t);
    if (!base_dtype_is(dtype, BASE_FLOAT)) continue;
    char text[] = {name, (char)('0' + i), 0};
    int k = f->n++;
    f->t[k] = t;
    f->leaf[k] = quern_input(in->ctx, text, dtype, quern_tensor_rank(t), quern_tensor_dims(t));
    f->weight[k] = grab(count * sizeof(double));
    f->stored[k] = grab(quern_tensor_bytes(t));
    gen_normal(in->c, (uint32_t)(name * 16 + i), (int64_t)count, f->weight[k]);
    for (size_t e = 0; e < count; e++) {
      base_store_float(dtype, f->stored[k], e, f->weight[k][e]);
      f->weight[k][e] = base_load_float(dtype, f->stored[k], e);
    }
    quern_tensor *sum = quern_sum(quern_mul(f->leaf[k], t), QUERN_ALL, false);
    f->sum = f->sum == NULL ? sum : quern_add(f->sum, quern_cast(sum, quern_tensor_dtype(f->sum)));
  }
}

static void form_close(struct form *f) {
  for (int i = 0; i < f->n; i++) {
    free(f->weight[i]);
    free(f->stored[i]);
  }
}

static size_t form_feeds(const struct form *f, quern_feed *feeds) {
  for (int i = 0; i < f->n; i++) feeds[i] = (quern_feed){f->leaf[i], f->stored[i]};
  return (size_t)f->n;
}

/* Sum of weight times values, given as elements. */
static double form_dot(const struct form *f, void *const *values) {
  long double sum = 0;
  for (int i = 0; i < f->n; i++)
    for (int64_t e = 0; e < quern_tensor_count(f->t[i]); e++)
      sum += (long double)f->weight[i][e] *
             (long double)base_load_float(quern_tensor_dtype(f->t[i]), values[i], (size_t)e);
  return (double)sum;
}

/* The change of the form between two evaluations: differences first, so that nothing large cancels. */
static double form_difference(const struct form *f, void *const *up, void *const *down) {
  long double sum = 0;
  for (int i = 0; i < f->n; i++)
    for (int64_t e = 0; e < quern_tensor_count(f->t[i]); e++)
      sum += (long double)f->weight[i][e] * ((long double)((double *)up[i])[e] - (long double)((double *)down[i])[e]);
  return (double)sum;
}

/* ---- comparing ----------------------------------------------------------------------------------------- */

struct comparison {
  double error, reference;
  const char *where;
  int leaf;
  int64_t element;
  double got, expected;
};

static void compare(struct comparison *c, int leaf, int64_t element, double got, double expected) {
  double error = fabs(got - expected);
  if (!(error <= c->error)) { /* also when it is NaN */
    if (isnan(c->error)) return;
    *c = (struct comparison){error, c->reference, c->where, leaf, element, got, expected};
  }
  if (fabs(expected) > c->reference) c->reference = fabs(expected);
}

/* Whether the largest error is within bound; counts a failure otherwise. */
static bool check_bound(const struct comparison *c, double bound, const struct instance *in, const char *mode,
                        struct tally *tally) {
  if (c->error <= bound * fmax(1, c->reference)) return true;
  tally_fail(tally, in->c, mode, "%s: operand %d element %lld: %.10g, expected %.10g (error %.3g, bound %.3g)",
             c->where, c->leaf, (long long)c->element, c->got, c->expected, c->error, bound * fmax(1, c->reference));
  return false;
}

static bool fail_last(const struct instance *in, const char *mode, struct tally *tally) {
  tally_fail(tally, in->c, mode, "%s", quern_last_error());
  return false;
}

/* ---- differences --------------------------------------------------------------------------------------- */

/* The leaves that a case differentiates by. */
static int leaves(const struct instance *in, quern_tensor **x) {
  for (int i = 0; i < in->n_diff; i++) x[i] = in->leaf[in->diff[i]];
  return in->n_diff;
}

/* Compares dx, the gradient of a form by the leaves, with central differences of the form at up to `samples`
** elements. */
static quern_status differences(const struct instance *in, const struct form *f, size_t n_more, const quern_feed *more,
                                void *const *dx, int samples, struct comparison *out) {
  void *up[CASE_OPERANDS], *down[CASE_OPERANDS];
  quern_status status = QUERN_STATUS_OK;
  buffers_new((size_t)f->n, f->t, up);
  buffers_new((size_t)f->n, f->t, down);
  for (int i = 0; i < in->n_diff && status == QUERN_STATUS_OK; i++) {
    double *x = in->data[in->diff[i]];
    int64_t n = quern_tensor_count(in->leaf[in->diff[i]]), runs = n < samples ? n : samples;
    for (int64_t k = 0; k < runs && status == QUERN_STATUS_OK; k++) {
      int64_t e = k * n / runs + (n > runs ? k % (n / runs) : 0);
      double x0 = x[e], h = step * fmax(1, fabs(x0)), hi = x0 + h, lo = x0 - h;
      x[e] = hi;
      status = instance_eval(in, (size_t)f->n, f->t, up, n_more, more);
      x[e] = lo;
      if (status == QUERN_STATUS_OK) status = instance_eval(in, (size_t)f->n, f->t, down, n_more, more);
      x[e] = x0;
      if (status == QUERN_STATUS_OK)
        compare(out, in->diff[i], e, ((double *)dx[i])[e], form_difference(f, up, down) / (hi - lo));
    }
  }
  buffers_free((size_t)f->n, up);
  buffers_free((size_t)f->n, down);
  return status;
}

/* ---- grad and grad2 ------------------------------------------------------------------------------------ */

/* Gradients by the leaves of the instance, checked to have the leaves' types. */
static quern_status gradients(const struct instance *in, quern_tensor *loss, quern_tensor **dx) {
  quern_tensor *x[CASE_OPERANDS] = {0};
  size_t n = (size_t)leaves(in, x);
  QUERN_TRY(quern_grad(loss, n, x, dx));
  for (size_t i = 0; i < n; i++)
    QUERN_CHECK(ir_same_type(x[i], dx[i]), INTERNAL, "the gradient of operand %d has another type than the operand",
                in->diff[i]);
  return ir_verify(in->ctx, n, dx);
}

/* Evaluates the gradient of a case of any float dtype into new buffers; the form stays open. */
static quern_status gradient_values(const struct instance *in, struct form *f, quern_tensor **dx, void **values) {
  quern_feed feeds[CASE_OPERANDS];
  QUERN_TRY(gradients(in, f->sum, dx));
  buffers_new((size_t)in->n_diff, dx, values);
  quern_status status = instance_eval(in, (size_t)in->n_diff, dx, values, form_feeds(f, feeds), feeds);
  if (status != QUERN_STATUS_OK) buffers_free((size_t)in->n_diff, values);
  return status;
}

static bool check_grad(const struct instance *in, struct form *f, struct tally *tally) {
  quern_tensor *dx[CASE_OPERANDS];
  void *values[CASE_OPERANDS];
  struct comparison c = {.where = "gradient"};
  if (gradient_values(in, f, dx, values) != QUERN_STATUS_OK) return fail_last(in, "grad", tally);
  quern_status status = differences(in, f, 0, NULL, values, SAMPLES_GRAD, &c);
  buffers_free((size_t)in->n_diff, values);
  return status == QUERN_STATUS_OK ? check_bound(&c, bound_grad, in, "grad", tally) : fail_last(in, "grad", tally);
}

static bool check_grad2(const struct instance *in, struct form *f, struct tally *tally) {
  quern_tensor *dx[CASE_OPERANDS], *d2x[CASE_OPERANDS];
  void *values[CASE_OPERANDS];
  quern_feed feeds[CASE_OPERANDS * 2];
  struct form g;
  struct comparison c = {.where = "second derivative"};
  if (gradients(in, f->sum, dx) != QUERN_STATUS_OK) return fail_last(in, "grad2", tally);
  form_open(&g, in, 'v', in->n_diff, dx);
  size_t n_feeds = form_feeds(f, feeds);
  size_t n_both = n_feeds + form_feeds(&g, feeds + n_feeds);
  quern_status status = gradients(in, g.sum, d2x);
  if (status == QUERN_STATUS_OK) {
    buffers_new((size_t)in->n_diff, d2x, values);
    status = instance_eval(in, (size_t)in->n_diff, d2x, values, n_both, feeds);
    if (status == QUERN_STATUS_OK) status = differences(in, &g, n_feeds, feeds, values, SAMPLES_GRAD2, &c);
    buffers_free((size_t)in->n_diff, values);
  }
  form_close(&g);
  return status == QUERN_STATUS_OK ? check_bound(&c, bound_grad2, in, "grad2", tally) : fail_last(in, "grad2", tally);
}

/* The gradient in a narrower float dtype: it builds, evaluates and, in f32, is near that of f64 on the same
** inputs. */
static bool check_narrow(const struct instance *in, struct form *f, struct tally *tally) {
  quern_tensor *dx[CASE_OPERANDS], *dx64[CASE_OPERANDS];
  void *values[CASE_OPERANDS], *values64[CASE_OPERANDS];
  struct test_case c64 = *in->c;
  struct instance in64;
  struct form f64;
  struct comparison c = {.where = "f32 gradient"};
  if (gradient_values(in, f, dx, values) != QUERN_STATUS_OK) return fail_last(in, "grad", tally);
  bool ok = true;
  c64.dtype = QUERN_DTYPE_F64;
  if (in->c->dtype == QUERN_DTYPE_F32 && instance_open(&in64, &c64)) {
    for (int i = 0; i < in->n_leaves; i++) {
      quern_dtype from = quern_tensor_dtype(in->leaf[i]), to = quern_tensor_dtype(in64.leaf[i]);
      size_t count = (size_t)quern_tensor_count(in->leaf[i]);
      for (size_t e = 0; e < count; e++) base_convert(to, in64.data[i], e, from, in->data[i], e);
    }
    form_open(&f64, &in64, 'w', in64.n_out, in64.out);
    ok = gradient_values(&in64, &f64, dx64, values64) == QUERN_STATUS_OK;
    if (!ok) fail_last(in, "grad", tally);
    for (int i = 0; i < in->n_diff && ok; i++)
      for (int64_t e = 0; e < quern_tensor_count(dx[i]); e++)
        compare(&c, in->diff[i], e, (double)((float *)values[i])[e], ((double *)values64[i])[e]);
    if (ok) {
      buffers_free((size_t)in->n_diff, values64);
      ok = check_bound(&c, bound_f32, in, "grad", tally);
    }
    form_close(&f64);
    instance_close(&in64);
  }
  buffers_free((size_t)in->n_diff, values);
  return ok;
}

/* ---- jvp ----------------------------------------------------------------------------------------------- */

/* y at x + h t, for all leaves at once. */
static quern_status eval_along(const struct instance *in, const struct form *t, const struct form *f, double h,
                               void **y) {
  double *saved[CASE_OPERANDS];
  for (int i = 0; i < in->n_diff; i++) {
    size_t n = (size_t)quern_tensor_count(in->leaf[in->diff[i]]);
    double *x = in->data[in->diff[i]];
    saved[i] = grab(n * sizeof(double));
    memcpy(saved[i], x, n * sizeof(double));
    for (size_t e = 0; e < n; e++) x[e] += h * t->weight[i][e];
  }
  quern_status status = instance_eval(in, (size_t)f->n, f->t, y, 0, NULL);
  for (int i = 0; i < in->n_diff; i++) {
    memcpy(in->data[in->diff[i]], saved[i], (size_t)quern_tensor_count(in->leaf[in->diff[i]]) * sizeof(double));
    free(saved[i]);
  }
  return status;
}

/* <w, J t> = <J' w, t>, unless the case has no gradient. */
static quern_status adjoint(const struct instance *in, struct form *f, const struct form *t, double forward,
                            struct comparison *c) {
  quern_tensor *dx[CASE_OPERANDS];
  void *values[CASE_OPERANDS];
  if (!case_differentiable(in->c, "grad")) return QUERN_STATUS_OK;
  QUERN_TRY(gradient_values(in, f, dx, values));
  compare(c, 0, 0, forward, form_dot(t, values));
  buffers_free((size_t)in->n_diff, values);
  return QUERN_STATUS_OK;
}

static quern_status jvp_values(const struct instance *in, struct form *f, const struct form *t, void **ty, void **up,
                               void **down, struct comparison *direct, struct comparison *paired) {
  quern_tensor *x[CASE_OPERANDS] = {0}, *tangent[CASE_OPERANDS];
  quern_feed feeds[CASE_OPERANDS];
  size_t n = (size_t)leaves(in, x);
  QUERN_TRY(quern_jvp(n, x, t->leaf, (size_t)f->n, f->t, tangent));
  for (int i = 0; i < f->n; i++)
    QUERN_CHECK(ir_same_type(f->t[i], tangent[i]), INTERNAL,
                "the tangent of result %d has another type than the result", i);
  QUERN_TRY(ir_verify(in->ctx, (size_t)f->n, tangent));
  QUERN_TRY(instance_eval(in, (size_t)f->n, tangent, ty, form_feeds(t, feeds), feeds));
  QUERN_TRY(eval_along(in, t, f, step, up));
  QUERN_TRY(eval_along(in, t, f, -step, down));
  for (int i = 0; i < f->n; i++)
    for (int64_t e = 0; e < quern_tensor_count(f->t[i]); e++)
      compare(direct, i, e, ((double *)ty[i])[e], (((double *)up[i])[e] - ((double *)down[i])[e]) / (2 * step));
  return adjoint(in, f, t, form_dot(f, ty), paired);
}

static bool check_jvp(const struct instance *in, struct form *f, struct tally *tally) {
  void *ty[CASE_OPERANDS], *up[CASE_OPERANDS], *down[CASE_OPERANDS];
  struct comparison direct = {.where = "forward derivative"}, paired = {.where = "<w, J t> against <J' w, t>"};
  quern_tensor *x[CASE_OPERANDS] = {0};
  struct form t;
  form_open(&t, in, 't', leaves(in, x), x);
  buffers_new((size_t)f->n, f->t, ty);
  buffers_new((size_t)f->n, f->t, up);
  buffers_new((size_t)f->n, f->t, down);
  quern_status status = jvp_values(in, f, &t, ty, up, down, &direct, &paired);
  buffers_free((size_t)f->n, ty);
  buffers_free((size_t)f->n, up);
  buffers_free((size_t)f->n, down);
  form_close(&t);
  if (status != QUERN_STATUS_OK) return fail_last(in, "jvp", tally);
  return check_bound(&direct, bound_grad, in, "jvp", tally) && check_bound(&paired, bound_adjoint, in, "jvp", tally);
}

/* ---- the modes ----------------------------------------------------------------------------------------- */

typedef bool check(const struct instance *in, struct form *f, struct tally *tally);

static void run(const char *mode, check *check_f64, check *check_other, const struct case_list *cases,
                struct tally *tally) {
  for (size_t i = 0; i < cases->n; i++) {
    const struct test_case *c = &cases->at[i];
    check *check_case = c->dtype == QUERN_DTYPE_F64 ? check_f64 : check_other;
    struct instance in;
    struct form f;
    if (check_case == NULL || !case_differentiable(c, mode)) continue;
    if (!instance_open(&in, c)) {
      tally_fail(tally, c, mode, "%s", quern_last_error());
      continue;
    }
    form_open(&f, &in, 'w', in.n_out, in.out);
    if (f.sum != NULL && in.n_diff > 0 && check_case(&in, &f, tally)) tally_pass(tally);
    form_close(&f);
    instance_close(&in);
  }
}

void mode_grad(const struct options *options, const struct case_list *cases, struct tally *tally) {
  if (on_device(options))
    mode_grad_device(options, cases, tally);
  else
    run("grad", check_grad, check_narrow, cases, tally);
}

void mode_grad2(const struct options *options, const struct case_list *cases, struct tally *tally) {
  (void)options;
  run("grad2", check_grad2, NULL, cases, tally);
}

void mode_jvp(const struct options *options, const struct case_list *cases, struct tally *tally) {
  (void)options;
  run("jvp", check_jvp, NULL, cases, tally);
}
