/* nn/init.c -- how parameters begin, as expressions of a seed
** Glorot and Bengio, "Understanding the difficulty of training deep feedforward neural networks", 2010; He et al., "Delving
** deep into rectifiers", 2015; Saxe et al., "Exact solutions to the nonlinear dynamics of learning", 2013 (orthogonal).
** keeps: values depend on the seed and the shape alone; dtypes narrower than f32 are computed in f32 and rounded once
** tests: tests/nn/test_init.c
*/
#include "nn/nn.h"

#include <math.h>

#include "tensor/compound.h"

/* ---- fans -------------------------------------------------------------------------------------------------------- */

static double product(int from, int rank, const int64_t *dims) {
  double n = 1;
  for (int k = from; k < rank; k++) n *= (double)dims[k];
  return n;
}

double nn_fan_in(int rank, const int64_t *dims) { return product(1, rank, dims); }

static double fan_out(int rank, const int64_t *dims) { return (double)dims[0] * product(2, rank, dims); }

quern_init nn_weight_init(const quern_init *given) {
  return given != NULL ? *given : (quern_init){QUERN_INIT_KAIMING_UNIFORM, sqrt(5), 0};
}

quern_init nn_bias_init(const quern_init *given, double fan_in) {
  double bound = fan_in > 0 ? 1 / sqrt(fan_in) : 0;
  return given != NULL ? *given : (quern_init){QUERN_INIT_UNIFORM, -bound, bound};
}

/* ---- kinds ------------------------------------------------------------------------------------------------------- */

/* The inverse of erf for |x| < 0.99, within 2e-7: Giles, "Approximating the erfinv function", 2010. */
static quern_tensor *inverse_erf(quern_tensor *x) {
  static const double terms[] = {3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087,
                                 -0.00125372503, -0.00417768164, 0.246640727,     1.50140941};
  quern_tensor *w = quern_log1p(quern_neg(quern_square(x)));
  w = quern_add_scalar(quern_neg(w), -2.5);
  quern_tensor *p = quern_mul_scalar(w, 2.81022636e-08);
  for (size_t i = 0; i < BASE_COUNT(terms); i++) {
    if (i > 0) p = quern_mul(p, w);
    p = quern_add_scalar(p, terms[i]);
  }
  return quern_mul(p, x);
}

/* Within two standard deviations: the inverse of the distribution at uniform numbers between those of -2 and 2. */
static quern_tensor *truncated(quern_context *ctx, quern_dtype dtype, int rank, const int64_t *dims, double mean,
                               double deviation, const quern_random *from) {
  double edge = erf(sqrt(2));
  quern_tensor *u = quern_random_uniform(ctx, dtype, rank, dims, -edge, edge, from);
  quern_tensor *z = quern_clip(quern_mul_scalar(inverse_erf(u), sqrt(2)), -2, 2);
  return quern_add_scalar(quern_mul_scalar(z, deviation), mean);
}

/* args: i, q (m, n), a random row; the row made orthogonal to those before it, twice ("twice is enough"), becomes row i. */
static void orthogonal_row(void *user, quern_tensor *const *args, quern_tensor **results) {
  (void)user;
  quern_tensor *i = args[0], *q = args[1], *v = args[2];
  int64_t n = quern_tensor_dim(v, 0);
  for (int time = 0; time < 2; time++) {
    quern_tensor *along = quern_matmul(q, v);
    v = quern_sub(v, quern_matmul(along, q));
  }
  quern_tensor *length = quern_sqrt(quern_sum(quern_square(v), QUERN_ALL, false));
  v = quern_reshape(quern_div(v, length), 2, (int64_t[]){1, n});
  quern_tensor *zero = quern_scalar_int(quern_tensor_context(i), QUERN_DTYPE_I64, 0);
  results[0] = quern_update_at(q, v, 2, (quern_tensor *[]){i, zero});
}

static quern_tensor *orthogonal(quern_context *ctx, quern_dtype dtype, int rank, const int64_t *dims, double gain,
                                const quern_random *from) {
  int64_t rows = dims[0], columns = 1;
  for (int k = 1; k < rank; k++) columns *= dims[k];
  int64_t m = BASE_MIN(rows, columns), n = BASE_MAX(rows, columns), shape[] = {m, n};
  quern_tensor *z = quern_random_normal(ctx, dtype, 2, shape, 0, 1, from);
  quern_tensor *q = quern_zeros(ctx, dtype, 2, shape);
  quern_loop_options options = {.size = sizeof options, .trip = m, .n_carries = 1, .n_scanned = 1};
  if (m > 0 && quern_loop(ctx, &options, (quern_tensor *[]){q, z}, orthogonal_row, NULL, &q) != QUERN_STATUS_OK)
    return ir_fail_last(ctx);
  if (rows > columns) q = quern_transpose(q, 0, 1);
  return quern_mul_scalar(quern_reshape(q, rank, dims), gain);
}

const char *nn_init_wrong(quern_init init, int rank) {
  double a = init.a, b = init.b;
  if ((unsigned)init.kind > QUERN_INIT_ORTHOGONAL) return "an init of no kind";
  if (init.kind == QUERN_INIT_CONSTANT) return isnan(a) ? "a constant that is not a number" : NULL;
  if (!isfinite(a) || !isfinite(b)) return "an init with a number that is not finite";
  if (init.kind == QUERN_INIT_UNIFORM) return a <= b ? NULL : "uniform from a to b with a > b";
  if (init.kind <= QUERN_INIT_TRUNCATED_NORMAL) return b >= 0 ? NULL : "a standard deviation below 0";
  return rank >= 2 ? NULL : "an init that counts inputs and outputs needs two axes";
}

quern_tensor *nn_init_value(quern_context *ctx, quern_init init, quern_dtype dtype, int rank, const int64_t *dims,
                            quern_tensor *seed) {
  if (init.kind == QUERN_INIT_CONSTANT) return quern_full(ctx, dtype, rank, dims, init.a);
  quern_random from = {seed, NULL, 1};
  quern_dtype wide = tensor_wide(dtype);
  double gain = init.a != 0 ? init.a : 1, bound = 0, deviation = init.b, mean = init.a;
  double in = rank >= 2 ? fmax(nn_fan_in(rank, dims), 1) : 1, out = rank >= 2 ? fan_out(rank, dims) : 1;
  double both = fmax(nn_fan_in(rank, dims) + out, 1), rectified = 2 / (1 + init.a * init.a);
  switch (init.kind) {
  case QUERN_INIT_UNIFORM: return quern_random_uniform(ctx, dtype, rank, dims, init.a, init.b, &from);
  case QUERN_INIT_TRUNCATED_NORMAL: return quern_cast(truncated(ctx, wide, rank, dims, init.a, init.b, &from), dtype);
  case QUERN_INIT_ORTHOGONAL: return quern_cast(orthogonal(ctx, wide, rank, dims, gain, &from), dtype);
  case QUERN_INIT_XAVIER_UNIFORM: bound = gain * sqrt(6 / both); break;
  case QUERN_INIT_KAIMING_UNIFORM: bound = sqrt(3 * rectified / in); break;
  case QUERN_INIT_XAVIER_NORMAL: mean = 0, deviation = gain * sqrt(2 / both); break;
  case QUERN_INIT_KAIMING_NORMAL: mean = 0, deviation = sqrt(rectified / in); break;
  default: break;
  }
  if (init.kind == QUERN_INIT_XAVIER_UNIFORM || init.kind == QUERN_INIT_KAIMING_UNIFORM)
    return quern_random_uniform(ctx, dtype, rank, dims, -fabs(bound), fabs(bound), &from);
  return quern_random_normal(ctx, dtype, rank, dims, mean, fabs(deviation), &from);
}
