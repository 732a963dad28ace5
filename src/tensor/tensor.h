/* tensor/tensor.h -- what the builders share; the public side is quern/tensor.h
** A builder checks its operands with TENSOR_ENTER, then composes primitives with ir_make or other builders. A compound
** operation checks its own arguments first, so that messages carry the name the caller used.
*/
#ifndef TENSOR_TENSOR_H
#define TENSOR_TENSOR_H
#include "ir/ir.h"

/* The context of operands that are neither NULL nor poison and are of one context; else NULL with the error recorded
** ("matmul: operand 1 is null"). A poison operand adds no error: the first one stands. */
quern_context *tensor_enter(const char *what, int n, quern_tensor *const *xs);

#define TENSOR_ENTER(ctx, what, ...)                                                                                   \
  quern_context *ctx = tensor_enter((what), (int)(sizeof((quern_tensor *[]){__VA_ARGS__}) / sizeof(quern_tensor *)),   \
                                    (quern_tensor *[]){__VA_ARGS__});                                                  \
  if (ctx == NULL) return &ir_poison

/* Fails with the poison when a condition does not hold: TENSOR_CHECK(ctx, cond, SHAPE, "what: ...", ...). */
#define TENSOR_CHECK(ctx, cond, CODE, ...)                                                                             \
  do {                                                                                                                 \
    if (!(cond)) return ir_fail((ctx), QUERN_STATUS_##CODE, __VA_ARGS__);                                              \
  } while (0)

/* The same in a call that returns a status: reports the context's first error. ctx may be NULL. */
#define TENSOR_CHECK_STATUS(ctx, cond, CODE, ...)                                                                      \
  do {                                                                                                                 \
    if (!(cond)) {                                                                                                     \
      ir_fail((ctx), QUERN_STATUS_##CODE, __VA_ARGS__);                                                                \
      return tensor_status((ctx), QUERN_STATUS_##CODE);                                                                \
    }                                                                                                                  \
  } while (0)

/* The error that a context holds, reported; otherwise when it is NULL or holds none. */
quern_status tensor_status(quern_context *ctx, quern_status otherwise);

/* Attributes of a node, for the argument of IR_MAKE. */
#define TENSOR_ATTRS(...) (&(struct ir_attrs){__VA_ARGS__})

/* The axis counted from the front, or -1 with the error recorded. */
int tensor_axis(const char *what, const quern_tensor *x, int64_t axis);

/* Checked axes of a reduction as sorted distinct numbers (n_axes 0: all) in out[QUERN_MAX_RANK]; their count, or -1 with the
** error recorded. */
int tensor_axes(const char *what, const quern_tensor *x, int n_axes, const int64_t *axes, int64_t *out);

/* Broadcasts xs[0..n-1] in place to their common shape; false with the error recorded. Dtypes may differ. */
bool tensor_broadcast(const char *what, int n, quern_tensor **xs);

/* False with the error recorded unless all have the dtype of the first (HINT: quern_cast). */
bool tensor_same_dtype(const char *what, int n, quern_tensor *const *xs);

/* A constant of x's dtype (exactly: ints from double when integral), as a scalar and broadcast to x's shape. */
quern_tensor *tensor_scalar_of(const quern_tensor *x, double value);
quern_tensor *tensor_full_of(const quern_tensor *x, double value);

/* The same with the name the caller used: of an integer dtype the value must be one it holds, of bool 0 or 1. */
quern_tensor *tensor_scalar(const char *what, quern_context *ctx, quern_dtype dtype, double value);

/* False with the error recorded unless x's dtype is of these classes. */
bool tensor_admits(const char *what, const quern_tensor *x, enum base_dtype_class classes);

/* False with the error recorded unless ctx is one, dtype is one, and the shape is whole: dims not NULL, none negative, at
** most QUERN_MAX_RANK of them, bytes that fit. */
bool tensor_type_ok(const char *what, quern_context *ctx, quern_dtype dtype, int rank, const int64_t *dims);

/* x under another shape of as many elements, x stretched from 1s to a shape of its rank, x with its axes in another order:
** x itself when nothing changes. */
quern_tensor *tensor_reshape(quern_tensor *x, int rank, const int64_t *dims);
quern_tensor *tensor_stretch(quern_tensor *x, const int64_t *dims);
quern_tensor *tensor_permute(quern_tensor *x, const int64_t *axes);

/* x reduced over sorted axes (none: x itself), which disappear. */
quern_tensor *tensor_reduce(quern_tensor *x, enum ir_reduce reduce, int n_axes, const int64_t *axes);

/* x with an axis moved to another place; the others keep their order. */
quern_tensor *tensor_move_axis(quern_tensor *x, int from, int to);

/* The dtype that sums and products of a float dtype are computed in: at least f32. */
quern_dtype tensor_wide(quern_dtype dtype);

/* reduce over k of combine(a, b), where axes of one label go together: those not in out are reduced over, the result has
** out's order. A label has one size; one that is not in out is in both a and b; none is twice in a list. */
quern_tensor *tensor_contract(const char *what, quern_tensor *a, const int *a_labels, quern_tensor *b,
                              const int *b_labels, int n_out, const int *out, enum ir_reduce reduce,
                              enum ir_combine combine);

/* x with its axes in the order of out, of which its labels are a subset; the others get size 1. */
quern_tensor *tensor_align(quern_tensor *x, const int *labels, int n_out, const int *out);

/* combine(a, b), element by element, broadcast. */
quern_tensor *tensor_combine(enum ir_combine combine, quern_tensor *a, quern_tensor *b);

/* "(2, 3)" and "f32(2, 3)" for messages: a buffer of the enclosing block. */
#define TENSOR_DIMS(rank, dims) base_shape_text((char[IR_TYPE_TEXT]){0}, IR_TYPE_TEXT, (rank), (dims))
#define TENSOR_SHAPE(x) TENSOR_DIMS((x)->rank, (x)->dims)
#define TENSOR_TYPE(x) ir_type_text((char[IR_TYPE_TEXT]){0}, (x))

/* x with axes of size 1 put back where a reduction over axes (sorted) removed them from shape_of. */
quern_tensor *tensor_restore_axes(quern_tensor *x, const quern_tensor *shape_of, int n_axes, const int64_t *axes);

/* dy summed over the axes along which a source of that type was broadcast to dy's shape: the transpose of broadcasting. */
quern_tensor *tensor_unbroadcast(quern_tensor *dy, const quern_tensor *like);

/* What quern_eval and quern_eval_reference are given: reports pending errors, then what is wrong with it (graph.c). */
quern_status tensor_check_eval(const char *what, quern_context *ctx, size_t n, quern_tensor *const *outputs,
                               void *const *dst, size_t n_feeds, const quern_feed *feeds) QUERN_NODISCARD;

/* options, a caller's, become those that this version knows (base_take); else the poison, or false, with the error recorded. */
#define TENSOR_OPTIONS(ctx, what, T, options)                                                                          \
  T options##_taken;                                                                                                   \
  if (!tensor_options((ctx), (what), &options##_taken, sizeof(T), (options), #T)) return &ir_poison;                   \
  (options) = &options##_taken
bool tensor_options(quern_context *ctx, const char *what, void *dst, size_t known, const void *options,
                    const char *type);

/* Every kind of composite that tensor/ defines, ended by NULL (composites.c); quern_context_new registers them. */
extern const struct ir_composite *const tensor_composites[];

#endif
