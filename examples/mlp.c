/* examples/mlp.c -- trains a small network to tell two spirals apart, and draws what it has learned
** The step (forward, backward, update by Adam) is one graph, built once; the reference evaluator runs it.
** Usage: mlp [STEPS [SEED]]. Ctrl-C ends the training early and shows what there is.
*/
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "quern/quern.h"

enum { POINTS = 96, HIDDEN = 24, LAYERS = 3, PARAMS = 2 * LAYERS, ROWS = 20, COLUMNS = 48 };

static const int64_t shapes[PARAMS][2] = {{HIDDEN, 2}, {HIDDEN}, {HIDDEN, HIDDEN}, {HIDDEN}, {2, HIDDEN}, {2}};
static const int ranks[PARAMS] = {2, 1, 2, 1, 2, 1};

static volatile sig_atomic_t stopped;
static void stop(int sig) {
  (void)sig;
  stopped = 1;
}

/* Prints why the last call failed. */
static int fail(const char *what) {
  fprintf(stderr, "mlp: %s: %s\n", what, quern_last_error());
  return 1;
}

/* logits (N, 2) of points x (N, 2) */
static quern_tensor *network(quern_tensor *x, quern_tensor *const *param) {
  for (int i = 0; i < LAYERS; i++) {
    x = quern_linear(x, param[2 * i], param[2 * i + 1]);
    if (i + 1 < LAYERS) x = quern_gelu(x);
  }
  return x;
}

/* Two spirals of one and a half turns, a little noise. */
static void make_spirals(float *points, int32_t *labels) {
  for (int i = 0; i < POINTS; i++) {
    int arm = i % 2, place = i / 2, places = POINTS / 2;
    float t = 0.15f + 0.85f * (float)place / (float)places;
    float angle = 9.5f * t + 3.14159265f * (float)arm;
    points[2 * i] = t * cosf(angle) + 0.01f * sinf(91.0f * (float)i);
    points[2 * i + 1] = t * sinf(angle) + 0.01f * cosf(57.0f * (float)i);
    labels[i] = arm;
  }
}

/* What the network says over the square from -1.1 to 1.1. */
static int draw(quern_context *ctx, quern_tensor *const *param, const quern_feed *feeds) {
  static float grid[ROWS * COLUMNS][2];
  static int64_t classes[ROWS * COLUMNS];
  for (int r = 0; r < ROWS; r++) {
    for (int c = 0; c < COLUMNS; c++) {
      grid[r * COLUMNS + c][0] = 2.2f * (float)c / (COLUMNS - 1) - 1.1f;
      grid[r * COLUMNS + c][1] = 1.1f - 2.2f * (float)r / (ROWS - 1);
    }
  }
  quern_tensor *x = quern_tensor_wrap(ctx, QUERN_DTYPE_F32, QUERN_LIST(ROWS * COLUMNS, 2), grid);
  quern_tensor *best = quern_argmax(network(x, param), 1, false);
  void *dst = classes;
  if (quern_eval(ctx, 1, &best, &dst, PARAMS, feeds) != QUERN_STATUS_OK) return fail("draw");
  for (int r = 0; r < ROWS; r++) {
    for (int c = 0; c < COLUMNS; c++) putchar(classes[r * COLUMNS + c] != 0 ? '#' : '.');
    putchar('\n');
  }
  return 0;
}

/* All memory of the parameters and Adam's two moments, twice: a step reads one and writes the other. */
struct memory {
  float *at[2][3 * PARAMS];
};

static int train(quern_context *ctx, struct memory *m, int steps) {
  static float points[2 * POINTS];
  static int32_t labels[POINTS];
  make_spirals(points, labels);
  quern_tensor *x = quern_tensor_wrap(ctx, QUERN_DTYPE_F32, QUERN_LIST(POINTS, 2), points);
  quern_tensor *y = quern_tensor_wrap(ctx, QUERN_DTYPE_I32, QUERN_LIST(POINTS), labels);
  quern_tensor *step = quern_input(ctx, "step", QUERN_DTYPE_F32, QUERN_SCALAR);

  /* state: the parameters, then the first and the second moments */
  quern_tensor *old[3 * PARAMS], *grad[PARAMS], *out[1 + 3 * PARAMS];
  for (int i = 0; i < 3 * PARAMS; i++) {
    char name[32];
    snprintf(name, sizeof name, "state.%d", i);
    old[i] = quern_state(ctx, name, QUERN_DTYPE_F32, ranks[i % PARAMS], shapes[i % PARAMS]);
  }
  quern_tensor *logits = network(x, old);
  out[0] = quern_cross_entropy(logits, y, NULL);
  if (quern_grad(out[0], PARAMS, old, grad) != QUERN_STATUS_OK) return fail("gradient");

  const double rate = 0.02, beta1 = 0.9, beta2 = 0.99;
  quern_tensor *one = quern_scalar(ctx, QUERN_DTYPE_F32, 1);
  quern_tensor *fix1 = quern_sub(one, quern_pow(quern_scalar(ctx, QUERN_DTYPE_F32, beta1), step));
  quern_tensor *fix2 = quern_sub(one, quern_pow(quern_scalar(ctx, QUERN_DTYPE_F32, beta2), step));
  for (int i = 0; i < PARAMS; i++) {
    quern_tensor *m1 = quern_add(quern_mul_scalar(old[PARAMS + i], beta1), quern_mul_scalar(grad[i], 1 - beta1));
    quern_tensor *m2 =
        quern_add(quern_mul_scalar(old[2 * PARAMS + i], beta2), quern_mul_scalar(quern_square(grad[i]), 1 - beta2));
    quern_tensor *size = quern_add_scalar(quern_sqrt(quern_div(m2, fix2)), 1e-8);
    out[1 + i] = quern_sub(old[i], quern_mul_scalar(quern_div(quern_div(m1, fix1), size), rate));
    out[1 + PARAMS + i] = m1;
    out[1 + 2 * PARAMS + i] = m2;
  }
  quern_tensor *right =
      quern_mean(quern_cast(quern_eq(quern_argmax(logits, 1, false), quern_cast(y, QUERN_DTYPE_I64)), QUERN_DTYPE_F32),
                 QUERN_ALL, false);
  if (quern_context_check(ctx) != QUERN_STATUS_OK) return fail("the step");
  printf("one step is a graph of %zu nodes; %d points, %d steps on the reference evaluator\n", quern_context_nodes(ctx),
         POINTS, steps);

  quern_feed feeds[1 + 3 * PARAMS];
  int now = 0;
  for (int t = 1; t <= steps && !stopped; t++, now = 1 - now) {
    float loss, number = (float)t, share;
    void *dst[1 + 3 * PARAMS];
    dst[0] = &loss;
    for (int i = 0; i < 3 * PARAMS; i++) {
      feeds[i] = (quern_feed){old[i], m->at[now][i]};
      dst[1 + i] = m->at[1 - now][i];
    }
    feeds[3 * PARAMS] = (quern_feed){step, &number};
    if (quern_eval(ctx, 1 + 3 * PARAMS, out, dst, 1 + 3 * PARAMS, feeds) != QUERN_STATUS_OK) return fail("step");
    if (t == 1 || t == steps || t % 25 == 0) {
      void *to = &share;
      if (quern_eval(ctx, 1, &right, &to, 3 * PARAMS, feeds) != QUERN_STATUS_OK) return fail("accuracy");
      printf("step %3d/%d | loss %.4f | right %5.1f %%\n", t, steps, (double)loss, 100 * (double)share);
      fflush(stdout);
    }
  }
  if (stopped) printf("stopped\n");
  for (int i = 0; i < PARAMS; i++) feeds[i] = (quern_feed){old[i], m->at[now][i]};
  return draw(ctx, old, feeds);
}

/* Normal weights of standard deviation 1 / sqrt(inputs) * gain, zero biases and moments. */
static int begin(quern_context *ctx, struct memory *m) {
  for (int i = 0; i < 3 * PARAMS; i++) {
    int k = i % PARAMS;
    size_t n = (size_t)shapes[k][0] * (size_t)(ranks[k] == 2 ? shapes[k][1] : 1);
    for (int side = 0; side < 2; side++) {
      m->at[side][i] = calloc(n, sizeof(float));
      if (m->at[side][i] == NULL) return 1;
    }
    if (i >= PARAMS || ranks[k] == 1) continue;
    double std = (i == 0 ? 3.0 : 1.5) / sqrt((double)shapes[k][1]);
    quern_tensor *w = quern_random_normal(ctx, QUERN_DTYPE_F32, ranks[k], shapes[k], 0, std, NULL);
    void *dst = m->at[0][i];
    if (quern_eval(ctx, 1, &w, &dst, 0, NULL) != QUERN_STATUS_OK) return fail("start");
  }
  return 0;
}

int main(int argc, char **argv) {
  int steps = argc > 1 ? atoi(argv[1]) : 200;
  if (argc > 3 || steps < 1) {
    fprintf(stderr, "usage: mlp [STEPS [SEED]]   STEPS at least 1, got '%s'\n", argc > 1 ? argv[1] : "");
    return 2;
  }
  signal(SIGINT, stop);
  quern_context *ctx = NULL;
  quern_context_options options = {.size = sizeof options, .seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1};
  if (quern_context_new(&ctx, &options) != QUERN_STATUS_OK) return fail("context");
  struct memory m;
  memset(&m, 0, sizeof m);
  int rc = begin(ctx, &m);
  if (rc == 0) rc = train(ctx, &m, steps);
  for (int i = 0; i < 2 * 3 * PARAMS; i++) free(m.at[i / (3 * PARAMS)][i % (3 * PARAMS)]);
  quern_context_free(ctx);
  return rc;
}
