/* quern/tensor.h -- tensor expressions
** A quern_tensor is an immutable expression owned by a context; nothing is computed until it is evaluated (graph.h). Equal
** expressions are the same pointer. A wrong call returns a poison tensor and records the error, with the shapes and the
** caller's place; the next call that returns a status reports it (quern_context_check does nothing else).
** Operands of one operation have one dtype: use quern_cast. Shapes broadcast as in NumPy. Negative axes count from the end.
** Lists are (count, array); QUERN_LIST(2, 3) writes both: quern_reshape(x, QUERN_LIST(2, 3)).
*/
#ifndef QUERN_TENSOR_H
#define QUERN_TENSOR_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "quern/context.h"
#include "quern/dtype.h"
#include "quern/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { QUERN_MAX_RANK = 16 };

typedef struct quern_tensor quern_tensor;

#define QUERN_COUNT(...) ((int)(sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t)))
#define QUERN_LIST(...)                                                                                                \
  QUERN_COUNT(__VA_ARGS__), (const int64_t[]) { __VA_ARGS__ }
#define QUERN_SCALAR 0, (const int64_t *)0 /* the shape of rank 0 */
#define QUERN_ALL 0, (const int64_t *)0    /* all axes, in reductions */

/* ---- what a tensor is --------------------------------------------------------------------------------------------- */

QUERN_API bool quern_tensor_is_poison(const quern_tensor *x);         /* NULL counts */
QUERN_API quern_context *quern_tensor_context(const quern_tensor *x); /* NULL of the poison */
QUERN_API quern_dtype quern_tensor_dtype(const quern_tensor *x);      /* of the poison some dtype */
QUERN_API int quern_tensor_rank(const quern_tensor *x);               /* 0 of the poison */
QUERN_API int64_t quern_tensor_dim(const quern_tensor *x, int axis);  /* negative from the end; -1 when out of range */
QUERN_API const int64_t *quern_tensor_dims(const quern_tensor *x);
QUERN_API int64_t quern_tensor_count(const quern_tensor *x); /* elements; 0 of the poison */
QUERN_API size_t quern_tensor_bytes(const quern_tensor *x);
QUERN_API const char *quern_tensor_name(const quern_tensor *x); /* of an input or a state, else NULL */
/* The elements of a wrapped, copied or realized tensor; NULL of any other. Those in the memory of a device (eager.h) are
** copied to the host first, which is waited for; NULL with the error where that fails. */
QUERN_API const void *quern_tensor_data(const quern_tensor *x);

/* ---- creation (create.c) ------------------------------------------------------------------------------------------- */

/* Each call makes a new leaf. Names are neither NULL nor empty; two leaves may have the same. */
QUERN_API quern_tensor *quern_input(quern_context *ctx, const char *name, quern_dtype dtype, int rank,
                                    const int64_t *dims);
QUERN_API quern_tensor *quern_state(quern_context *ctx, const char *name, quern_dtype dtype, int rank,
                                    const int64_t *dims);
/* Uses the caller's memory without a copy: it must stay as long as the context. */
QUERN_API quern_tensor *quern_tensor_wrap(quern_context *ctx, quern_dtype dtype, int rank, const int64_t *dims,
                                          void *data);
/* A copy of data, freed with the context. */
QUERN_API quern_tensor *quern_tensor_copy(quern_context *ctx, quern_dtype dtype, int rank, const int64_t *dims,
                                          const void *data);
/* A constant that is part of the expression: equal ones are the same tensor. At most 64 KiB. */
QUERN_API quern_tensor *quern_constant(quern_context *ctx, quern_dtype dtype, int rank, const int64_t *dims,
                                       const void *data);
/* Of a float dtype the value is rounded; of an integer dtype it must be one the dtype holds, of bool 0 or 1. */
QUERN_API quern_tensor *quern_scalar(quern_context *ctx, quern_dtype dtype, double value);
/* The same, exact for 64-bit integers; of u64 the same 64 bits, so that -1 is the largest. */
QUERN_API quern_tensor *quern_scalar_int(quern_context *ctx, quern_dtype dtype, int64_t value);
QUERN_API quern_tensor *quern_full(quern_context *ctx, quern_dtype dtype, int rank, const int64_t *dims, double value);
QUERN_API quern_tensor *quern_zeros(quern_context *ctx, quern_dtype dtype, int rank, const int64_t *dims);
QUERN_API quern_tensor *quern_ones(quern_context *ctx, quern_dtype dtype, int rank, const int64_t *dims);
QUERN_API quern_tensor *quern_full_like(quern_tensor *x, double value);
QUERN_API quern_tensor *quern_zeros_like(quern_tensor *x);
QUERN_API quern_tensor *quern_ones_like(quern_tensor *x);
/* y[i] = i[axis] */
QUERN_API quern_tensor *quern_iota(quern_context *ctx, quern_dtype dtype, int rank, const int64_t *dims, int axis);
/* start, start + step, ...: n of them. Floats: start + i step in double, then rounded to the dtype; integers: exact, and
** all of them must fit. */
QUERN_API quern_tensor *quern_arange(quern_context *ctx, quern_dtype dtype, int64_t n, double start, double step);
/* n floats at equal distances, first and last exact; n = 1: first. */
QUERN_API quern_tensor *quern_linspace(quern_context *ctx, quern_dtype dtype, int64_t n, double first, double last);
QUERN_API quern_tensor *quern_eye(quern_context *ctx, quern_dtype dtype, int64_t rows, int64_t columns);

/* ---- elementwise (elementwise.c): what is not said to take integers or bools takes floats -------------------------- */

/* Numbers: neg, abs, sign, square. Any dtype: stop_gradient, checkpoint_activation, cast, bitcast (to a dtype of the same size, not to bool). */
QUERN_API quern_tensor *quern_neg(quern_tensor *x);
QUERN_API quern_tensor *quern_abs(quern_tensor *x);
QUERN_API quern_tensor *quern_sign(quern_tensor *x);
QUERN_API quern_tensor *quern_floor(quern_tensor *x);
QUERN_API quern_tensor *quern_ceil(quern_tensor *x);
QUERN_API quern_tensor *quern_round(quern_tensor *x); /* ties to even */
QUERN_API quern_tensor *quern_trunc(quern_tensor *x);
QUERN_API quern_tensor *quern_exp(quern_tensor *x);
QUERN_API quern_tensor *quern_expm1(quern_tensor *x);
QUERN_API quern_tensor *quern_log(quern_tensor *x);
QUERN_API quern_tensor *quern_log1p(quern_tensor *x);
QUERN_API quern_tensor *quern_sqrt(quern_tensor *x);
QUERN_API quern_tensor *quern_rsqrt(quern_tensor *x);
QUERN_API quern_tensor *quern_reciprocal(quern_tensor *x);
QUERN_API quern_tensor *quern_square(quern_tensor *x);
QUERN_API quern_tensor *quern_sin(quern_tensor *x);
QUERN_API quern_tensor *quern_cos(quern_tensor *x);
QUERN_API quern_tensor *quern_tan(quern_tensor *x);
QUERN_API quern_tensor *quern_tanh(quern_tensor *x);
QUERN_API quern_tensor *quern_erf(quern_tensor *x);
QUERN_API quern_tensor *quern_erfc(quern_tensor *x);  /* 1 - erf x, accurate where that is near 0 */
QUERN_API quern_tensor *quern_isnan(quern_tensor *x); /* these three give bools */
QUERN_API quern_tensor *quern_isinf(quern_tensor *x);
QUERN_API quern_tensor *quern_isfinite(quern_tensor *x);
QUERN_API quern_tensor *quern_stop_gradient(quern_tensor *x);
/* x itself, in memory: a program fuses nothing across it, and one that recomputes (quern_program_options.gradient_checkpointing) keeps it. The
** gradient passes through. */
QUERN_API quern_tensor *quern_checkpoint_activation(quern_tensor *x);
QUERN_API quern_tensor *quern_cast(quern_tensor *x, quern_dtype dtype);
QUERN_API quern_tensor *quern_bitcast(quern_tensor *x, quern_dtype dtype);

/* Numbers; pow and atan2: floats; maximum and minimum: any dtype, of bools or and and. */
QUERN_API quern_tensor *quern_add(quern_tensor *a, quern_tensor *b);
QUERN_API quern_tensor *quern_sub(quern_tensor *a, quern_tensor *b);
QUERN_API quern_tensor *quern_mul(quern_tensor *a, quern_tensor *b);
QUERN_API quern_tensor *quern_div(quern_tensor *a, quern_tensor *b); /* of integers: the floor */
QUERN_API quern_tensor *quern_mod(quern_tensor *a, quern_tensor *b); /* with the sign of b */
QUERN_API quern_tensor *quern_pow(quern_tensor *a, quern_tensor *b);
QUERN_API quern_tensor *quern_atan2(quern_tensor *y, quern_tensor *x);
QUERN_API quern_tensor *quern_maximum(quern_tensor *a, quern_tensor *b);
QUERN_API quern_tensor *quern_minimum(quern_tensor *a, quern_tensor *b);
/* The value becomes a constant of x's dtype, as in quern_scalar: an error when x is of integers and it is none. */
QUERN_API quern_tensor *quern_add_scalar(quern_tensor *x, double value);
QUERN_API quern_tensor *quern_mul_scalar(quern_tensor *x, double value);
QUERN_API quern_tensor *quern_div_scalar(quern_tensor *x, double value);
QUERN_API quern_tensor *quern_pow_scalar(quern_tensor *x, double value);
QUERN_API quern_tensor *quern_clip(quern_tensor *x, double lo, double hi); /* lo <= hi; NaN stays NaN */

/* Any dtype; the result is of bools. */
QUERN_API quern_tensor *quern_eq(quern_tensor *a, quern_tensor *b);
QUERN_API quern_tensor *quern_ne(quern_tensor *a, quern_tensor *b);
QUERN_API quern_tensor *quern_lt(quern_tensor *a, quern_tensor *b);
QUERN_API quern_tensor *quern_le(quern_tensor *a, quern_tensor *b);
QUERN_API quern_tensor *quern_gt(quern_tensor *a, quern_tensor *b);
QUERN_API quern_tensor *quern_ge(quern_tensor *a, quern_tensor *b);
/* Logic on bools, bit by bit on integers. */
QUERN_API quern_tensor *quern_and(quern_tensor *a, quern_tensor *b);
QUERN_API quern_tensor *quern_or(quern_tensor *a, quern_tensor *b);
QUERN_API quern_tensor *quern_xor(quern_tensor *a, quern_tensor *b);
QUERN_API quern_tensor *quern_not(quern_tensor *x);
QUERN_API quern_tensor *quern_shl(quern_tensor *a, quern_tensor *b);
QUERN_API quern_tensor *quern_shr(quern_tensor *a, quern_tensor *b);
QUERN_API quern_tensor *quern_where(quern_tensor *cond, quern_tensor *a, quern_tensor *b);

/* ---- views (view.c) ---------------------------------------------------------------------------------------------------- */

QUERN_API quern_tensor *quern_reshape(quern_tensor *x, int rank, const int64_t *dims); /* one dim may be -1 */
QUERN_API quern_tensor *quern_flatten(quern_tensor *x, int first_axis, int last_axis); /* both included */
QUERN_API quern_tensor *quern_squeeze(quern_tensor *x, int axis); /* an axis of size 1 disappears */
QUERN_API quern_tensor *quern_unsqueeze(quern_tensor *x,
                                        int axis); /* a new axis of size 1, at that place of the result */
QUERN_API quern_tensor *quern_permute(quern_tensor *x, int rank, const int64_t *axes);
QUERN_API quern_tensor *quern_transpose(quern_tensor *x, int axis_a, int axis_b);
QUERN_API quern_tensor *quern_broadcast_to(quern_tensor *x, int rank, const int64_t *dims);
/* Python's x[start:stop:step] on one axis: negative positions count from the end, out of range ones are clamped, steps
** may be negative. QUERN_END as stop: to the end (with a negative step, to the beginning). */
#define QUERN_END INT64_MAX
QUERN_API quern_tensor *quern_slice(quern_tensor *x, int axis, int64_t start, int64_t stop, int64_t step);
QUERN_API quern_tensor *quern_select(quern_tensor *x, int axis,
                                     int64_t index); /* x[.., index, ..]; the axis disappears */
/* lo before and hi after, one number an axis. */
QUERN_API quern_tensor *quern_pad(quern_tensor *x, int rank, const int64_t *lo, const int64_t *hi, double value);
QUERN_API quern_tensor *quern_flip(quern_tensor *x, int n_axes, const int64_t *axes); /* QUERN_ALL: all axes */
/* Element i goes to (i + shift) mod n; any shift. */
QUERN_API quern_tensor *quern_roll(quern_tensor *x, int axis, int64_t shift);
/* As in NumPy: when the lists differ in length, the shorter one is extended by 1s in front. */
QUERN_API quern_tensor *quern_tile(quern_tensor *x, int rank, const int64_t *times);
QUERN_API quern_tensor *quern_concat(int n, quern_tensor *const *xs, int axis);
QUERN_API quern_tensor *quern_stack(int n, quern_tensor *const *xs, int axis);
/* parts[i] = the i-th part of sizes[i] along axis; the sizes add up to the axis. */
QUERN_API quern_status quern_split(quern_tensor *x, int axis, int n, const int64_t *sizes,
                                   quern_tensor **parts) QUERN_NODISCARD;
/* A block at a run-time place (integer scalars, one an axis), clamped to lie inside x. */
QUERN_API quern_tensor *quern_slice_at(quern_tensor *x, int rank, quern_tensor *const *start, const int64_t *sizes);
QUERN_API quern_tensor *quern_update_at(quern_tensor *x, quern_tensor *u, int rank, quern_tensor *const *start);
/* Sliding windows of the given axes; the windows' axes come last, in the order given. NULL stride or dilation: 1s. */
QUERN_API quern_tensor *quern_window(quern_tensor *x, int n_axes, const int64_t *axes, const int64_t *size,
                                     const int64_t *stride, const int64_t *dilation);
/* Of the last two axes: 0 where column - row < diagonal (triu), > diagonal (tril). */
QUERN_API quern_tensor *quern_triu(quern_tensor *x, int64_t diagonal);
QUERN_API quern_tensor *quern_tril(quern_tensor *x, int64_t diagonal);

/* ---- indexing (index.c) ------------------------------------------------------------------------------------------------ */

typedef enum quern_scatter_mode {
  QUERN_SCATTER_SET,
  QUERN_SCATTER_ADD,
  QUERN_SCATTER_MAX,
  QUERN_SCATTER_MIN
} quern_scatter_mode;

/* y[p, i.., q] = x[p, indices[i..], q]: the axis is replaced by the axes of indices. Outside: 0. */
QUERN_API quern_tensor *quern_gather(quern_tensor *x, quern_tensor *indices, int axis);
/* x with rows of u written to (or added to, ...) x[p, indices[i..], q]. Outside: dropped; SET: the last one
** stays. u broadcasts to the shape of quern_gather(x, indices, axis). */
QUERN_API quern_tensor *quern_scatter(quern_tensor *x, quern_tensor *indices, quern_tensor *u, int axis,
                                      quern_scatter_mode mode);
/* y[p, i, q] = x[p, indices[p, i, q], q]: indices has x's rank and, but for axis, its shape; u has that of indices. */
QUERN_API quern_tensor *quern_take_along(quern_tensor *x, quern_tensor *indices, int axis);
QUERN_API quern_tensor *quern_scatter_along(quern_tensor *x, quern_tensor *indices, quern_tensor *u, int axis,
                                            quern_scatter_mode mode);
QUERN_API quern_tensor *quern_one_hot(quern_tensor *indices, int64_t classes,
                                      quern_dtype dtype); /* a new last axis; outside: all 0 */

/* ---- reductions, scans, order (reduce.c) ---------------------------------------------------------------------------- */

/* Over the listed axes (QUERN_ALL: all); keep leaves them with size 1. Of nothing: sum 0, prod 1, max the least number (-inf),
** min the greatest. sum, prod: numbers; max, min: any dtype; mean, var, std, logsumexp: floats, those narrower than f32 computed
** in f32. */
QUERN_API quern_tensor *quern_sum(quern_tensor *x, int n_axes, const int64_t *axes, bool keep);
QUERN_API quern_tensor *quern_mean(quern_tensor *x, int n_axes, const int64_t *axes, bool keep);
QUERN_API quern_tensor *quern_prod(quern_tensor *x, int n_axes, const int64_t *axes, bool keep);
QUERN_API quern_tensor *quern_max(quern_tensor *x, int n_axes, const int64_t *axes, bool keep);
QUERN_API quern_tensor *quern_min(quern_tensor *x, int n_axes, const int64_t *axes, bool keep);
QUERN_API quern_tensor *quern_any(quern_tensor *x, int n_axes, const int64_t *axes, bool keep); /* of bools */
QUERN_API quern_tensor *quern_all(quern_tensor *x, int n_axes, const int64_t *axes, bool keep); /* of bools */
/* The sum of squared deviations over max(count - correction, 0). */
QUERN_API quern_tensor *quern_var(quern_tensor *x, int n_axes, const int64_t *axes, bool keep, int64_t correction);
QUERN_API quern_tensor *quern_std(quern_tensor *x, int n_axes, const int64_t *axes, bool keep, int64_t correction);
QUERN_API quern_tensor *quern_logsumexp(quern_tensor *x, int n_axes, const int64_t *axes, bool keep);
QUERN_API quern_tensor *quern_argmax(quern_tensor *x, int axis, bool keep); /* i64; the first of equals */
QUERN_API quern_tensor *quern_argmin(quern_tensor *x, int axis, bool keep);
QUERN_API quern_tensor *quern_cumsum(quern_tensor *x, int axis);
QUERN_API quern_tensor *quern_cumprod(quern_tensor *x, int axis);
QUERN_API quern_tensor *quern_cummax(quern_tensor *x, int axis);
QUERN_API quern_tensor *quern_cummin(quern_tensor *x, int axis);
/* Stable; NaN is greatest. indices (i64) may be NULL. topk: the first k of the sorted axis, largest first or smallest first. */
QUERN_API quern_tensor *quern_sort(quern_tensor *x, int axis, bool descending, quern_tensor **indices);
QUERN_API quern_tensor *quern_argsort(quern_tensor *x, int axis, bool descending);
QUERN_API quern_tensor *quern_topk(quern_tensor *x, int64_t k, int axis, bool largest, quern_tensor **indices);

/* ---- contraction (matmul.c, einsum.c) ---------------------------------------------------------------------------------- */

typedef enum quern_reduce { QUERN_REDUCE_SUM, QUERN_REDUCE_PROD, QUERN_REDUCE_MAX, QUERN_REDUCE_MIN } quern_reduce;
typedef enum quern_combine { QUERN_COMBINE_MUL, QUERN_COMBINE_ADD, QUERN_COMBINE_MAX, QUERN_COMBINE_MIN } quern_combine;

/* Matrix product of the last two axes, the others broadcast; vectors as in NumPy. */
QUERN_API quern_tensor *quern_matmul(quern_tensor *a, quern_tensor *b);
/* x weight' + bias with weight (out, in); bias may be NULL. */
QUERN_API quern_tensor *quern_linear(quern_tensor *x, quern_tensor *weight, quern_tensor *bias);
/* Any number of operands. Indices are letters, "ij,jk->ik", or names of letters, digits and _, "[batch][in],[out][in]->[batch][out]";
** i and [i] are the same; blanks between them mean nothing. "..." stands for the axes not named,
** which broadcast; then the result has "..." too. An index twice in one operand takes its diagonal. Axes of size 1 broadcast.
** Without "->" the result has the axes of "...", then the indices that occur once, in alphabetical order, capitals first. */
QUERN_API quern_tensor *quern_einsum(const char *spec, int n, quern_tensor *const *xs);
/* The same over another semiring: reduce instead of sum, combine instead of product. Bools: max and min only. Three and more
** operands are contracted two by two in the order with the fewest operations where combine distributes over reduce: (sum, mul),
** (max, add), (min, add), (max, min), (min, max); of integers (max, add) and (min, add) must not overflow on the way. Otherwise
** all operands are combined from left to right, then reduced. */
QUERN_API quern_tensor *quern_einsum_over(const char *spec, int n, quern_tensor *const *xs, quern_reduce reduce,
                                          quern_combine combine);

/* ---- random (random.c) --------------------------------------------------------------------------------------------------- */

/* Where numbers come from: the same seed, step and stream give the same numbers. Zero fields: the context's seed, step 0,
** and the next stream number of the context: 1, 2, ... (so that two calls differ). Seed and step are u64 scalars. Element i is
** made of word i of the stream, or words 2i and 2i + 1 (normal, and uniform f64). */
typedef struct quern_random {
  quern_tensor *seed, *step;
  uint32_t stream; /* 0: the next one */
} quern_random;

QUERN_API quern_tensor *quern_random_bits(quern_context *ctx, int rank, const int64_t *dims,
                                          const quern_random *from); /* u32 */
/* lo + u (hi - lo) with u in [0, 1): 24 bits in f32, then rounded to a narrower dtype (which may give hi); 53 bits in f64. */
QUERN_API quern_tensor *quern_random_uniform(quern_context *ctx, quern_dtype dtype, int rank, const int64_t *dims,
                                             double lo, double hi, const quern_random *from);
/* mean + z std with z of f32 precision, computed in f32, or in f64 for f64. */
QUERN_API quern_tensor *quern_random_normal(quern_context *ctx, quern_dtype dtype, int rank, const int64_t *dims,
                                            double mean, double std, const quern_random *from);
QUERN_API quern_tensor *quern_random_bernoulli(quern_context *ctx, int rank, const int64_t *dims, double p,
                                               const quern_random *from); /* bool, true with probability p */
/* x / (1 - p) where a mask drawn with probability 1 - p is set, else 0. 0 <= p < 1; p = 0 is x, and still takes a stream. */
QUERN_API quern_tensor *quern_dropout(quern_tensor *x, double p, const quern_random *from);

/* ---- activations (activation.c) -------------------------------------------------------------------------------------------- */

QUERN_API quern_tensor *quern_relu(quern_tensor *x);
QUERN_API quern_tensor *quern_leaky_relu(quern_tensor *x, double slope);
QUERN_API quern_tensor *quern_elu(quern_tensor *x, double alpha);
QUERN_API quern_tensor *quern_sigmoid(quern_tensor *x);
QUERN_API quern_tensor *quern_gelu(quern_tensor *x);       /* exact: x Phi(x) */
QUERN_API quern_tensor *quern_gelu_tanh(quern_tensor *x);  /* the tanh approximation */
QUERN_API quern_tensor *quern_gelu_quick(quern_tensor *x); /* x sigmoid(1.702 x) */
QUERN_API quern_tensor *quern_silu(quern_tensor *x);       /* x sigmoid(x), also called swish */
QUERN_API quern_tensor *quern_mish(quern_tensor *x);       /* x tanh(softplus(x)) */
QUERN_API quern_tensor *quern_softplus(quern_tensor *x);   /* ln(1 + e^x) */
/* The axis is split in halves a, b; the result is a times f(b) (glu), f(a) times b (swiglu, geglu, reglu). */
QUERN_API quern_tensor *quern_glu(quern_tensor *x, int axis);     /* a sigmoid(b) */
QUERN_API quern_tensor *quern_swiglu(quern_tensor *x, int axis);  /* silu(a) b */
QUERN_API quern_tensor *quern_geglu(quern_tensor *x, int axis);   /* gelu(a) b */
QUERN_API quern_tensor *quern_reglu(quern_tensor *x, int axis);   /* relu(a) b */
QUERN_API quern_tensor *quern_softmax(quern_tensor *x, int axis); /* NaN where all of a row is -inf */
QUERN_API quern_tensor *quern_log_softmax(quern_tensor *x, int axis);

/* ---- norms (norm.c): weight and bias may be NULL ---------------------------------------------------------------------------- */

/* Over the last n_axes axes; weight and bias have their shape. */
QUERN_API quern_tensor *quern_layer_norm(quern_tensor *x, int n_axes, quern_tensor *weight, quern_tensor *bias,
                                         double eps);
QUERN_API quern_tensor *quern_rms_norm(quern_tensor *x, int n_axes, quern_tensor *weight, double eps);
/* Statistics over all axes but 1. Training: of this batch, and *new_mean, *new_var (may be NULL) are the running ones moved
** by momentum (variance with count - 1). Otherwise: running_mean and running_var are used. */
typedef struct quern_batch_norm_options {
  size_t size;
  bool train;
  double momentum, eps;
} quern_batch_norm_options;
QUERN_API quern_tensor *quern_batch_norm(quern_tensor *x, quern_tensor *weight, quern_tensor *bias,
                                         quern_tensor *running_mean, quern_tensor *running_var,
                                         const quern_batch_norm_options *options, quern_tensor **new_mean,
                                         quern_tensor **new_var);
QUERN_API quern_tensor *quern_group_norm(quern_tensor *x, int64_t groups, quern_tensor *weight, quern_tensor *bias,
                                         double eps);
QUERN_API quern_tensor *quern_instance_norm(quern_tensor *x, quern_tensor *weight, quern_tensor *bias, double eps);

/* ---- convolution, pooling, interpolation (conv.c, pool.c, interpolate.c): 1 to 3 spatial axes, (N, C, ...) -------- */

/* Numbers of spatial axes beyond those of the input are ignored; zero stride and dilation mean 1, zero groups 1. */
typedef struct quern_conv_options {
  size_t size;
  int64_t stride[3], dilation[3];
  int64_t pad_lo[3], pad_hi[3];
  int64_t output_pad[3]; /* of transposed convolution: more at the end */
  int64_t groups;
} quern_conv_options;

/* x (N, C, ..), weight (O, C / groups, ..), bias (O,) or NULL. options may be NULL. */
QUERN_API quern_tensor *quern_conv1d(quern_tensor *x, quern_tensor *weight, quern_tensor *bias,
                                     const quern_conv_options *options);
QUERN_API quern_tensor *quern_conv2d(quern_tensor *x, quern_tensor *weight, quern_tensor *bias,
                                     const quern_conv_options *options);
QUERN_API quern_tensor *quern_conv3d(quern_tensor *x, quern_tensor *weight, quern_tensor *bias,
                                     const quern_conv_options *options);
/* x (N, C, ..), weight (C, O / groups, ..). */
QUERN_API quern_tensor *quern_conv_transpose1d(quern_tensor *x, quern_tensor *weight, quern_tensor *bias,
                                               const quern_conv_options *options);
QUERN_API quern_tensor *quern_conv_transpose2d(quern_tensor *x, quern_tensor *weight, quern_tensor *bias,
                                               const quern_conv_options *options);
QUERN_API quern_tensor *quern_conv_transpose3d(quern_tensor *x, quern_tensor *weight, quern_tensor *bias,
                                               const quern_conv_options *options);

/* Zero stride means the window's size. Padding counts in averages when count_pad is set. */
typedef struct quern_pool_options {
  size_t size;
  int64_t window[3], stride[3], dilation[3];
  int64_t pad_lo[3], pad_hi[3];
  bool count_pad;
} quern_pool_options;
/* Where several elements of a window are the greatest, the gradient is shared equally among them (PyTorch: the first has all). */
QUERN_API quern_tensor *quern_max_pool(quern_tensor *x, const quern_pool_options *options);
QUERN_API quern_tensor *quern_avg_pool(quern_tensor *x, const quern_pool_options *options);
/* Windows chosen so that the spatial axes become sizes: from floor(i n / m) to ceil((i + 1) n / m). */
QUERN_API quern_tensor *quern_adaptive_avg_pool(quern_tensor *x, int n, const int64_t *sizes);
QUERN_API quern_tensor *quern_adaptive_max_pool(quern_tensor *x, int n, const int64_t *sizes);

typedef enum quern_interpolate_mode {
  QUERN_INTERPOLATE_NEAREST,       /* the element at floor(i n / m) */
  QUERN_INTERPOLATE_NEAREST_EXACT, /* the element at floor((i + 1/2) n / m) */
  QUERN_INTERPOLATE_LINEAR,        /* between two elements along each axis: linear, bilinear, trilinear */
  QUERN_INTERPOLATE_CUBIC          /* of four elements along each axis, by Keys' convolution with a = -0.75 */
} quern_interpolate_mode;
typedef struct quern_interpolate_options {
  size_t size;
  quern_interpolate_mode mode;
  bool align_corners; /* linear, cubic: the middles of the first and last elements stay where they are, not the edges */
  int64_t sizes[3];   /* of each spatial axis its new size m .. */
  double
      scales[3]; /* .. or what its size n is multiplied by: m = floor(n scale). Positions are then (i + 1/2) / scale */
} quern_interpolate_options;
/* x (N, C, ..) with 1 to 3 spatial axes of other sizes. Beyond the edge lies the element at the edge. linear, cubic: floats, those
** narrower than f32 computed in f32. */
QUERN_API quern_tensor *quern_interpolate(quern_tensor *x, const quern_interpolate_options *options);
/* x (N, C r r, H, W) -> (N, C, H r, W r) with y[n, c, h r + a, w r + b] = x[n, c r r + a r + b, h, w]; and the way back. */
QUERN_API quern_tensor *quern_pixel_shuffle(quern_tensor *x, int64_t factor);
QUERN_API quern_tensor *quern_pixel_unshuffle(quern_tensor *x, int64_t factor);

/* ---- attention and positions (attention.c, position.c) ----------------------------------------------------------------- */

typedef struct quern_attention_options {
  size_t size;
  double scale; /* 0: 1 / sqrt(D) */
  bool causal;  /* query i sees keys up to i + (keys - queries) */
} quern_attention_options;
/* q (B, H, S, D), k (B, G, T, D), v (B, G, T, E) with H a multiple of G. mask: bool (true: seen) or a float added to the
** scores, broadcast to (B, H, S, T); or i64, a scalar or (B, 1, 1, 1): query i sees keys up to i + mask, and what is behind them is
** not read; or NULL. *lse (may be NULL): the log-sum-exp of each row of scores, (B, H, S), f32 of
** narrower operands. A row that sees nothing gives zeros and -inf. options may be NULL. */
QUERN_API quern_tensor *quern_attention(quern_tensor *q, quern_tensor *k, quern_tensor *v, quern_tensor *mask,
                                        const quern_attention_options *options, quern_tensor **lse);
/* Rotary positions of x (.., S, D), D even; pairs (i, i + D/2), or (2i, 2i + 1) when interleaved. start: i64 scalar or NULL. */
QUERN_API quern_tensor *quern_rope(quern_tensor *x, quern_tensor *start, double base, bool interleaved);
/* (S, D): sin in even columns, cos in odd ones. */
QUERN_API quern_tensor *quern_sinusoidal(quern_context *ctx, quern_dtype dtype, int64_t positions, int64_t width,
                                         double base);

/* ---- losses (loss.c) ---------------------------------------------------------------------------------------------------------- */

typedef enum quern_reduction { QUERN_REDUCTION_MEAN, QUERN_REDUCTION_SUM, QUERN_REDUCTION_NONE } quern_reduction;
typedef struct quern_cross_entropy_options {
  size_t size;
  quern_reduction reduction; /* mean: over the labels that count */
  double label_smoothing;
  bool ignore; /* labels equal to ignore_index do not count; false: that must be 0 */
  int64_t ignore_index;
} quern_cross_entropy_options;
/* logits (.., C), labels (..) of an integer dtype. options may be NULL. A label that counts but is no class gives NaN, and so
** does the mean over no label that counts. */
QUERN_API quern_tensor *quern_cross_entropy(quern_tensor *logits, quern_tensor *labels,
                                            const quern_cross_entropy_options *options);
/* cross_entropy(linear(x, weight), labels) as one composite, so that a device need not hold the logits. */
QUERN_API quern_tensor *quern_linear_cross_entropy(quern_tensor *x, quern_tensor *weight, quern_tensor *labels,
                                                   const quern_cross_entropy_options *options);
QUERN_API quern_tensor *quern_nll_loss(quern_tensor *log_p, quern_tensor *labels,
                                       const quern_cross_entropy_options *options);
QUERN_API quern_tensor *quern_mse_loss(quern_tensor *x, quern_tensor *target, quern_reduction reduction);
QUERN_API quern_tensor *quern_l1_loss(quern_tensor *x, quern_tensor *target, quern_reduction reduction);
QUERN_API quern_tensor *quern_huber_loss(quern_tensor *x, quern_tensor *target, double delta,
                                         quern_reduction reduction);
QUERN_API quern_tensor *quern_bce_loss(quern_tensor *logits, quern_tensor *target,
                                       quern_reduction reduction); /* with logits */
/* target (log target - log_p), targets are probabilities; 0 where the target is 0. */
QUERN_API quern_tensor *quern_kl_loss(quern_tensor *log_p, quern_tensor *target, quern_reduction reduction);
/* Binary focal loss on logits; alpha < 0: no class weight. */
QUERN_API quern_tensor *quern_focal_loss(quern_tensor *logits, quern_tensor *target, double alpha, double gamma,
                                         quern_reduction reduction);
/* Cosine of the angle between a and b along axis; norms below eps count as eps. */
QUERN_API quern_tensor *quern_cosine_similarity(quern_tensor *a, quern_tensor *b, int axis, double eps);
/* sign 1: 1 - cos; sign -1: max(0, cos - margin); a, b (N, D), sign (N,). */
QUERN_API quern_tensor *quern_cosine_loss(quern_tensor *a, quern_tensor *b, quern_tensor *sign, double margin,
                                          quern_reduction reduction);
/* max(0, |anchor - positive| - |anchor - negative| + margin), Euclidean along the last axis. */
QUERN_API quern_tensor *quern_triplet_loss(quern_tensor *anchor, quern_tensor *positive, quern_tensor *negative,
                                           double margin, quern_reduction reduction);

/* ---- control and composites (control.c): bodies are closed, what they need comes as operands ------------------------ */

/* Fills results from args; a body builds expressions and must not touch other inputs than its args. It is called once, or
** more often: nothing but what it builds counts. */
typedef void quern_body(void *user, quern_tensor *const *args, quern_tensor **results);

typedef struct quern_loop_options {
  size_t size;
  int64_t trip;
  bool reverse;                                    /* i from trip - 1 down to 0 */
  int n_carries, n_scanned, n_captures, n_stacked; /* how many of each */
} quern_loop_options;
/* for i: (carries, y[i]) = body(i, carries, x[i], captures); i is an i64 scalar, a carry keeps its type. operands: carries, scanned (first axis: trip), captures. results:
** final carries, then stacked y (first axis: trip). */
QUERN_API quern_status quern_loop(quern_context *ctx, const quern_loop_options *options, quern_tensor *const *operands,
                                  quern_body *body, void *user, quern_tensor **results) QUERN_NODISCARD;
/* while cond(carries, captures): carries = body(carries, captures); cond gives a bool scalar. Has jvp, but no vjp. */
QUERN_API quern_status quern_while(quern_context *ctx, int n_carries, int n_captures, quern_tensor *const *operands,
                                   quern_body *cond, quern_body *body, void *user,
                                   quern_tensor **results) QUERN_NODISCARD;
/* cond is a bool scalar; both branches give results of the same types. */
QUERN_API quern_status quern_if(quern_tensor *cond, int n, quern_tensor *const *operands, int n_results,
                                quern_body *then_body, quern_body *else_body, void *user,
                                quern_tensor **results) QUERN_NODISCARD;
/* A node whose meaning is body(operands), known by name, which is not one of Quern's own composites (softmax, ...). */
QUERN_API quern_status quern_composite(quern_context *ctx, const char *name, int n, quern_tensor *const *operands,
                                       int n_results, quern_body *body, void *user,
                                       quern_tensor **results) QUERN_NODISCARD;
/* The gradient of every composite of that name, made before or after: dx[i] of operand x[i], which comes as NULL, for zero, from
** the results y and their gradients dy (NULL of a result that is no float). Once a name and context. */
typedef void quern_vjp_rule(void *user, int n, quern_tensor *const *x, int n_results, quern_tensor *const *y,
                            quern_tensor *const *dy, quern_tensor **dx);
QUERN_API quern_status quern_composite_rule(quern_context *ctx, const char *name, quern_vjp_rule *vjp,
                                            void *user) QUERN_NODISCARD;

#ifdef __cplusplus
}
#endif

#ifndef QUERN_NO_PLACE
#include "quern/place.h"
#endif
#endif
