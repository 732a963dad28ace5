/* examples/gradient_of_gradient.c -- second and third derivatives: a Hessian times a vector, and an equation solved by a network
** A gradient is an expression like any other, so it can be differentiated again.
** Usage: gradient_of_gradient [cpu | cuda | opencl]. Exits with 1 when a result is not the known one.
*/
#include <math.h>
#include <stdio.h>

#include "quern/quern.h"

enum { N = 6, POINTS = 64, STEPS = 600 };
static const double pi = 3.14159265358979324;

#define TRY(call)                                                                                                      \
  do {                                                                                                                 \
    if ((call) != QUERN_STATUS_OK) return fprintf(stderr, "gradient_of_gradient: %s\n", quern_last_error()), 1;        \
  } while (0)

/* f(x) = the sum over i of 100 (x[i+1] - x[i]^2)^2 + (1 - x[i])^2, Rosenbrock's function: (N,) -> () */
static quern_tensor *rosenbrock(quern_tensor *x) {
  quern_tensor *a = quern_slice(x, 0, 0, N - 1, 1), *b = quern_slice(x, 0, 1, N, 1); /* (N - 1,) both */
  quern_tensor *curve = quern_square(quern_sub(b, quern_square(a)));                 /* (N - 1,) */
  quern_tensor *slope = quern_square(quern_sub(quern_ones_like(a), a));              /* (N - 1,) */
  return quern_sum(quern_add(quern_mul_scalar(curve, 100), slope), QUERN_ALL, false);
}

/* H v, the derivative of the gradient in the direction v, without the matrix H: forward mode over reverse mode. */
static int hessian_times_vector(quern_context *ctx, const char *device) {
  quern_tensor *x = quern_input(ctx, "x", QUERN_DTYPE_F64, QUERN_LIST(N)), *gradient, *product;
  quern_tensor *v = quern_input(ctx, "v", QUERN_DTYPE_F64, QUERN_LIST(N));
  TRY(quern_grad(rosenbrock(x), 1, &x, &gradient));  /* (N,) */
  TRY(quern_jvp(1, &x, &v, 1, &gradient, &product)); /* (N,) */

  quern_program *program;
  quern_instance *instance;
  quern_program_options options = QUERN_INIT(quern_program_options);
  options.device = device;
  TRY(quern_program_compile(&program, ctx, 1, &product, &options));
  TRY(quern_instance_new(&instance, program));
  double at[N], direction[N], got[N], worst = 0;
  for (int i = 0; i < N; i++) at[i] = 0.5 + 0.25 * i, direction[i] = 1 - 0.5 * i;
  TRY(quern_instance_bind(instance, "x", at, sizeof at));
  TRY(quern_instance_bind(instance, "v", direction, sizeof direction));
  TRY(quern_instance_run_bound(instance, (void *[]){got}));

  for (int i = 0; i < N; i++) { /* the Hessian has three diagonals, known in closed form */
    double known = 0;
    if (i + 1 < N)
      known += (1200 * at[i] * at[i] - 400 * at[i + 1] + 2) * direction[i] - 400 * at[i] * direction[i + 1];
    if (i > 0) known += 200 * direction[i] - 400 * at[i - 1] * direction[i - 1];
    printf("(H v)[%d] = %12.4f, known %12.4f\n", i, got[i], known);
    worst = fmax(worst, fabs(got[i] - known) / fmax(1, fabs(known)));
  }
  quern_instance_free(instance);
  quern_program_free(program);
  return worst < 1e-12 ? 0 : 1;
}

/* u (POINTS, 1) of x (POINTS, 1): x (1 - x) times a network, so that u(0) = u(1) = 0 whatever the network says */
static quern_tensor *solution(quern_model *model, quern_tensor *x) {
  quern_scope *root = quern_model_scope(model);
  quern_tensor *h = quern_tanh(quern_nn_linear(quern_scope_in(root, "input"), x, 32, NULL)); /* (POINTS, 32) */
  h = quern_tanh(quern_nn_linear(quern_scope_in(root, "hidden"), h, 32, NULL));              /* (POINTS, 32) */
  h = quern_nn_linear(quern_scope_in(root, "output"), h, 1, NULL);                           /* (POINTS, 1) */
  return quern_mul(quern_mul(x, quern_sub(quern_ones_like(x), x)), h);
}

/* u'' = -pi^2 sin(pi x) with u(0) = u(1) = 0, whose solution is sin(pi x): the loss is the mean square of what is wrong with
** the equation, and its gradient by the parameters is a third derivative. */
static int solve_equation(quern_context *ctx, const char *device) {
  quern_model *model;
  TRY(quern_model_new(&model, ctx, NULL));
  quern_tensor *x = quern_input(ctx, "x", QUERN_DTYPE_F32, QUERN_LIST(POINTS, 1)), *slope, *bend;
  quern_tensor *u = solution(model, x);                              /* (POINTS, 1) */
  TRY(quern_grad(quern_sum(u, QUERN_ALL, false), 1, &x, &slope));    /* u' (POINTS, 1): u[i] depends on x[i] alone */
  TRY(quern_grad(quern_sum(slope, QUERN_ALL, false), 1, &x, &bend)); /* u'' (POINTS, 1) */
  quern_tensor *wanted = quern_mul_scalar(quern_sin(quern_mul_scalar(x, pi)), -pi * pi); /* (POINTS, 1) */
  quern_tensor *loss = quern_mse_loss(bend, wanted, QUERN_REDUCTION_MEAN);               /* () */
  quern_step *step;
  TRY(quern_step_new(&step, model, loss, NULL));

  quern_program *program;
  quern_instance *training;
  quern_program_options options = QUERN_INIT(quern_program_options);
  options.device = device;
  options.n_updates = quern_step_updates(step, &options.updates);
  TRY(quern_program_compile(&program, ctx, 2, (quern_tensor *[]){loss, u}, &options));
  TRY(quern_instance_new(&training, program));
  TRY(quern_instance_init_states(training, model));
  float points[POINTS], u_now[POINTS], lr = 0, loss_now = 0, worst = 0;
  for (int i = 0; i < POINTS; i++) points[i] = ((float)i + 0.5f) / POINTS;
  TRY(quern_instance_bind(training, "x", points, sizeof points));
  TRY(quern_instance_bind(training, "lr", &lr, sizeof lr));
  for (int i = 0; i < STEPS; i++) {
    lr = 0.01f * (1 - (float)i / STEPS);
    TRY(quern_instance_run_bound(training, (void *[]){&loss_now, u_now}));
    if (i == 0 || (i + 1) % 200 == 0) printf("step %3d/%d | loss %.6f\n", i + 1, STEPS, (double)loss_now);
  }
  for (int i = 0; i < POINTS; i++) worst = fmaxf(worst, fabsf(u_now[i] - sinf((float)pi * points[i])));
  printf("u differs from sin(pi x) by %.5f at most\n", (double)worst);

  quern_instance_free(training);
  quern_program_free(program);
  quern_step_free(step);
  quern_model_free(model);
  return worst < 0.01f ? 0 : 1;
}

int main(int argc, char **argv) {
  const char *device = argc > 1 ? argv[1] : "cpu";
  quern_context *ctx;
  TRY(quern_context_new(&ctx, NULL));
  int wrong = hessian_times_vector(ctx, device) | solve_equation(ctx, device);
  quern_context_free(ctx);
  return wrong;
}
