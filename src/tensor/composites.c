/* tensor/composites.c -- the table of every kind of composite that tensor/ defines
** tests: tests/tensor/test_composites.c
*/
#include "tensor/kinds.h"

const struct ir_composite *const tensor_composites[] = {
    &tensor_kind_logsumexp,
    &tensor_kind_topk,
    &tensor_kind_random_normal,
    &tensor_kind_sigmoid,
    &tensor_kind_softplus,
    &tensor_kind_silu,
    &tensor_kind_gelu,
    &tensor_kind_gelu_tanh,
    &tensor_kind_gelu_quick,
    &tensor_kind_mish,
    &tensor_kind_softmax,
    &tensor_kind_log_softmax,
    &tensor_kind_layer_norm,
    &tensor_kind_rms_norm,
    &tensor_kind_group_norm,
    &tensor_kind_batch_norm,
    &tensor_kind_conv,
    &tensor_kind_conv_transpose,
    &tensor_kind_attention,
    &tensor_kind_bce,
    &tensor_kind_cross_entropy,
    &tensor_kind_linear_cross_entropy,
    &tensor_kind_narrow_gradient,
    NULL,
};
