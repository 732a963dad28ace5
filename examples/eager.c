/* examples/eager.c -- eager use: every step is built, computed and forgotten; memory does not grow
** Fits the amplitudes of eight sines to a saw. The same few lines of expressions are compiled once and found again.
** Usage: eager [STEPS]. Exits with 1 when memory grows or an amplitude is not what the saw has.
*/
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "quern/quern.h"

enum { POINTS = 64, WAVES = 8 };

#define TRY(call)                                                                                                      \
  do {                                                                                                                 \
    if ((call) != QUERN_STATUS_OK) return fprintf(stderr, "eager: %s\n", quern_last_error()), 1;                       \
  } while (0)

int main(int argc, char **argv) {
  static float waves[POINTS][WAVES], saw[POINTS][1], zeros[WAVES][1];
  int steps = argc > 1 ? atoi(argv[1]) : 10000;
  for (int i = 0; i < POINTS; i++) {
    float x = 6.2831853f * ((float)i + 0.5f) / POINTS;
    saw[i][0] = 1 - x / 3.14159265f;
    for (int k = 0; k < WAVES; k++) waves[i][k] = sinf((float)(k + 1) * x);
  }
  quern_context *ctx;
  TRY(quern_context_new(&ctx, NULL));
  quern_tensor *x = quern_tensor_wrap(ctx, QUERN_DTYPE_F32, QUERN_LIST(POINTS, WAVES), waves); /* (64, 8) */
  quern_tensor *y = quern_tensor_wrap(ctx, QUERN_DTYPE_F32, QUERN_LIST(POINTS, 1), saw);       /* (64, 1) */
  quern_tensor *w = quern_tensor_copy(ctx, QUERN_DTYPE_F32, QUERN_LIST(WAVES, 1), zeros);      /* (8, 1) */

  size_t early = 0, now = 0;
  quern_mark mark;
  TRY(quern_context_mark(ctx, &mark));
  for (int t = 1; t <= steps; t++) {
    quern_tensor *loss = quern_mse_loss(quern_matmul(x, w), y, QUERN_REDUCTION_MEAN), *dw; /* (), (8, 1) */
    TRY(quern_grad(loss, 1, &w, &dw));
    quern_tensor *keep[2] = {quern_sub(w, quern_mul_scalar(dw, 0.1)), loss};
    TRY(quern_tensors_realize(2, keep));           /* computed now, by one program */
    TRY(quern_context_rewind(ctx, mark, 2, keep)); /* all that the step made goes, but for these two */
    w = keep[0];
    quern_context_stats stats = QUERN_INIT(quern_context_stats);
    TRY(quern_context_get_stats(ctx, &stats));
    now = stats.live_bytes;
    if (t == 100) early = now;
    if (t == 1 || t == steps || t % 2500 == 0)
      printf("step %5d/%d | loss %.4f | %zu tensors, %zu KiB\n", t, steps,
             (double)*(const float *)quern_tensor_data(keep[1]), quern_context_node_count(ctx), now >> 10);
  }
  const float *amplitudes = quern_tensor_data(w);
  double first = (double)amplitudes[0];
  printf("the saw is");
  for (int k = 0; k < WAVES; k++) printf(" %s%.3f sin %dx", k > 0 ? "+ " : "", (double)amplitudes[k], k + 1);
  printf("\n");
  quern_context_free(ctx);
  return fabs(first - 0.6366) < 0.001 && (early == 0 || now < early + 65536) ? 0 : 1; /* 2 / pi */
}
