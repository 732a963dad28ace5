/* tests/install/program.c -- the smallest program a user writes against an installed Quern: 2 * (1 + 2 + 3) */
#include <stdio.h>
#include <quern/quern.h>

int main(void) {
  quern_context *ctx = NULL;
  float sum = 0;
  void *dst = &sum;
  if (quern_context_new(&ctx, NULL) != QUERN_STATUS_OK) return 1;
  quern_tensor *x = quern_arange(ctx, QUERN_DTYPE_F32, 3, 1, 1);
  quern_tensor *y = quern_sum(quern_mul_scalar(x, 2), QUERN_ALL, false);
  quern_status status = quern_eval(ctx, 1, &y, &dst, 0, NULL);
  if (status == QUERN_STATUS_OK)
    printf("%g\n", (double)sum);
  else
    fprintf(stderr, "%s\n", quern_last_error());
  quern_context_free(ctx);
  return status != QUERN_STATUS_OK;
}
