/* tensor/kinds.h -- the kinds of composites that tensor/ defines; the table of them is in composites.c */
#ifndef TENSOR_KINDS_H
#define TENSOR_KINDS_H
#include "tensor/tensor.h"

extern const struct ir_composite tensor_kind_logsumexp;     /* reduce.c: x; ints: the axes */
extern const struct ir_composite tensor_kind_topk;          /* reduce.c: x; ints: k, axis, largest */
extern const struct ir_composite tensor_kind_random_normal; /* random.c: seed, step; ints: stream, dims */

/* activation.c: x */
extern const struct ir_composite tensor_kind_sigmoid, tensor_kind_softplus, tensor_kind_silu, tensor_kind_gelu,
    tensor_kind_gelu_tanh, tensor_kind_gelu_quick, tensor_kind_mish;
extern const struct ir_composite tensor_kind_softmax, tensor_kind_log_softmax; /* activation.c: x; ints: axis */
/* norm.c: x, weight, bias if there are; ints: axes or groups, weight?, bias?; reals: eps */
extern const struct ir_composite tensor_kind_layer_norm, tensor_kind_rms_norm, tensor_kind_group_norm,
    tensor_kind_batch_norm;
/* conv.c: x, weight, bias if there is; ints: groups, stride, dilation, pad lo, pad hi, output pad of 3 axes, bias? */
extern const struct ir_composite tensor_kind_conv, tensor_kind_conv_transpose;
extern const struct ir_composite
    tensor_kind_attention; /* attention.c: q, k, v, mask if there is; ints: causal, mask?; reals: scale */
extern const struct ir_composite tensor_kind_bce; /* loss.c: logits, target */
/* loss.c: logits, labels, or x, weight, labels; ints: reduction, ignore?, ignore index, and of linear_cross_entropy perhaps what the
** logits' gradient is rounded to; reals: label smoothing */
extern const struct ir_composite tensor_kind_cross_entropy, tensor_kind_linear_cross_entropy;
extern const struct ir_composite tensor_kind_narrow_gradient; /* loss.c: x; ints: what its gradient is rounded to */

/* Dtypes as numbers in attributes. */
enum { TENSOR_NARROW_BF16 = 1, TENSOR_NARROW_F16 };
static inline bool tensor_is_narrow(int64_t x) { return x == TENSOR_NARROW_BF16 || x == TENSOR_NARROW_F16; }

/* admit.c: the field admits of these kinds. */
typedef bool tensor_admits_node(const struct ir_attrs *attrs, int n, quern_tensor *const *src);
tensor_admits_node tensor_admits_smooth, tensor_admits_softmax, tensor_admits_norm, tensor_admits_conv,
    tensor_admits_attention, tensor_admits_bce, tensor_admits_cross_entropy;

#endif
