/* tests/api/test_wrong_control.c -- wrong calls of loops, branches, composites and derivatives */
#include "api/wrong.h"

static quern_tensor *results[8];

#define LOOP(...) (&(quern_loop_options){.size = sizeof(quern_loop_options), __VA_ARGS__})

/* ---- bodies: of a loop, whose argument 0 is the index, and of the others ------------------------------- */

static void same(void *user, quern_tensor *const *args, quern_tensor **out) { (void)user, out[0] = args[1]; }

static void grows(void *user, quern_tensor *const *args, quern_tensor **out) {
  (void)user, out[0] = quern_unsqueeze(args[1], 0);
}

static void same_first(void *user, quern_tensor *const *args, quern_tensor **out) { (void)user, out[0] = args[0]; }

static void grows_first(void *user, quern_tensor *const *args, quern_tensor **out) {
  (void)user, out[0] = quern_unsqueeze(args[0], 0);
}

static void truth(void *user, quern_tensor *const *args, quern_tensor **out) {
  (void)user, (void)args;
  out[0] = quern_scalar(ctx, QUERN_DTYPE_BOOL, 1);
}

static void gives_null(void *user, quern_tensor *const *args, quern_tensor **out) { (void)user, (void)args, (void)out; }

static void gives_foreign(void *user, quern_tensor *const *args, quern_tensor **out) {
  (void)user, (void)args;
  out[0] = quern_scalar(other, QUERN_DTYPE_F32, 1);
}

static void gives_input(void *user, quern_tensor *const *args, quern_tensor **out) {
  (void)user, (void)args;
  out[0] = quern_input(ctx, "x", QUERN_DTYPE_F32, QUERN_SCALAR);
}

static void breaks(void *user, quern_tensor *const *args, quern_tensor **out) {
  (void)user, out[0] = quern_add(args[0], T(F32, 3));
}

static void rule(void *user, int n, quern_tensor *const *x, int n_results, quern_tensor *const *y,
                 quern_tensor *const *dy, quern_tensor **dx) {
  (void)user, (void)n, (void)x, (void)n_results, (void)y;
  dx[0] = dy[0];
}

static quern_status grad_of_while(void) {
  quern_tensor *x = quern_input(ctx, "x", QUERN_DTYPE_F32, QUERN_SCALAR), *y = NULL;
  quern_status status = quern_while(ctx, 1, 0, &x, truth, same_first, NULL, &y);
  return status != QUERN_STATUS_OK ? status : quern_grad(y, 1, &x, results);
}

#define ROWS "api/wrong_control.def"
#include "api/rows.h"
