/* examples/eager.c -- learns a curve in eager use: every step is built, computed and forgotten; memory does not grow
** The same few lines of expressions are compiled once and found again 10,000 times.
** Usage: eager [STEPS]
*/
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "quern/quern.h"

enum { POINTS = 64, WAVES = 8 };

/* Prints why the last call failed. */
static int fail(const char *what) {
  fprintf(stderr, "eager: %s: %s\n", what, quern_last_error());
  return 1;
}

/* sin(1 x), sin(2 x), ... of points over a turn, and a saw to be made of them. */
static void make_curve(float *waves, float *curve) {
  for (int i = 0; i < POINTS; i++) {
    float x = 6.2831853f * ((float)i + 0.5f) / POINTS;
    curve[i] = 1 - x / 3.14159265f;
    for (int k = 0; k < WAVES; k++) waves[i * WAVES + k] = sinf((float)(k + 1) * x);
  }
}

static int train(quern_context *ctx, int steps) {
  static float waves[POINTS * WAVES], curve[POINTS], zeros[WAVES];
  make_curve(waves, curve);
  quern_tensor *x = quern_tensor_wrap(ctx, QUERN_DTYPE_F32, QUERN_LIST(POINTS, WAVES), waves);
  quern_tensor *y = quern_tensor_wrap(ctx, QUERN_DTYPE_F32, QUERN_LIST(POINTS, 1), curve);
  quern_tensor *keep[2]; /* the amplitudes, and the loss */
  quern_tensor **w = &keep[0], **loss = &keep[1];
  *w = quern_tensor_copy(ctx, QUERN_DTYPE_F32, QUERN_LIST(WAVES, 1), zeros);

  quern_mark mark;
  if (quern_context_mark(ctx, &mark) != QUERN_STATUS_OK) return fail("mark");
  for (int t = 1; t <= steps; t++) {
    quern_tensor *dw;
    *loss = quern_mse_loss(quern_matmul(x, *w), y, QUERN_REDUCTION_MEAN);
    if (quern_grad(*loss, 1, w, &dw) != QUERN_STATUS_OK) return fail("gradient");
    *w = quern_sub(*w, quern_mul_scalar(dw, 0.001));
    if (quern_tensors_realize(2, keep) != QUERN_STATUS_OK) return fail("step");
    if (quern_context_rewind(ctx, mark, 2, keep) != QUERN_STATUS_OK) return fail("rewind");
    if (t == 1 || t == steps || t % 2500 == 0) {
      printf("step %5d/%d | loss %.4f | %zu tensors, %zu KiB\n", t, steps,
             (double)*(const float *)quern_tensor_data(*loss), quern_context_nodes(ctx),
             quern_context_memory(ctx).live_bytes >> 10);
    }
  }
  const float *amplitudes = quern_tensor_data(*w);
  printf("the saw is");
  for (int k = 0; k < WAVES; k++) printf(" %s%.3f sin %dx", k > 0 ? "+ " : "", (double)amplitudes[k], k + 1);
  printf("\n");

  quern_pool_stats pool;
  if (quern_pool_get(ctx, &pool) != QUERN_STATUS_OK) return fail("pool");
  printf("memory for elements was asked for %llu times, the allocator %llu times\n",
         (unsigned long long)pool.hits + pool.misses, (unsigned long long)pool.misses);
  return 0;
}

int main(int argc, char **argv) {
  int steps = argc > 1 ? atoi(argv[1]) : 10000;
  if (argc > 2 || steps < 1) {
    fprintf(stderr, "usage: eager [STEPS]   STEPS at least 1, got '%s'\n", argc > 1 ? argv[1] : "");
    return 2;
  }
  quern_context *ctx = NULL;
  if (quern_context_new(&ctx, NULL) != QUERN_STATUS_OK) return fail("context");
  int rc = train(ctx, steps);
  quern_context_free(ctx);
  return rc;
}
