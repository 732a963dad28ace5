/* quern/nn_place.h -- makes the errors of models, scopes and layers carry the caller's file and line; see quern/place.h
** Written by tools/api.py: every builder has its line.
*/
#ifndef QUERN_NN_PLACE_H
#define QUERN_NN_PLACE_H
#include "quern/nn.h"

/* clang-format off */
#define quern_model_new(...) (quern_place_set(__FILE__, __LINE__), quern_model_new(__VA_ARGS__))
#define quern_model_free(...) (quern_place_set(__FILE__, __LINE__), quern_model_free(__VA_ARGS__))
#define quern_model_begin(...) (quern_place_set(__FILE__, __LINE__), quern_model_begin(__VA_ARGS__))
#define quern_model_scope(...) (quern_place_set(__FILE__, __LINE__), quern_model_scope(__VA_ARGS__))
#define quern_scope_in(...) (quern_place_set(__FILE__, __LINE__), quern_scope_in(__VA_ARGS__))
#define quern_scope_at(...) (quern_place_set(__FILE__, __LINE__), quern_scope_at(__VA_ARGS__))
#define quern_scope_parameter(...) (quern_place_set(__FILE__, __LINE__), quern_scope_parameter(__VA_ARGS__))
#define quern_scope_buffer(...) (quern_place_set(__FILE__, __LINE__), quern_scope_buffer(__VA_ARGS__))
#define quern_scope_change(...) (quern_place_set(__FILE__, __LINE__), quern_scope_change(__VA_ARGS__))
#define quern_scope_value(...) (quern_place_set(__FILE__, __LINE__), quern_scope_value(__VA_ARGS__))
#define quern_scope_random(...) (quern_place_set(__FILE__, __LINE__), quern_scope_random(__VA_ARGS__))
#define quern_model_step(...) (quern_place_set(__FILE__, __LINE__), quern_model_step(__VA_ARGS__))
#define quern_model_iteration(...) (quern_place_set(__FILE__, __LINE__), quern_model_iteration(__VA_ARGS__))
#define quern_model_parameter(...) (quern_place_set(__FILE__, __LINE__), quern_model_parameter(__VA_ARGS__))
#define quern_model_initial(...) (quern_place_set(__FILE__, __LINE__), quern_model_initial(__VA_ARGS__))
#define quern_nn_activation(...) (quern_place_set(__FILE__, __LINE__), quern_nn_activation(__VA_ARGS__))
#define quern_nn_linear(...) (quern_place_set(__FILE__, __LINE__), quern_nn_linear(__VA_ARGS__))
#define quern_nn_bilinear(...) (quern_place_set(__FILE__, __LINE__), quern_nn_bilinear(__VA_ARGS__))
#define quern_nn_mlp(...) (quern_place_set(__FILE__, __LINE__), quern_nn_mlp(__VA_ARGS__))
#define quern_nn_embedding(...) (quern_place_set(__FILE__, __LINE__), quern_nn_embedding(__VA_ARGS__))
#define quern_nn_unembed(...) (quern_place_set(__FILE__, __LINE__), quern_nn_unembed(__VA_ARGS__))
#define quern_nn_position(...) (quern_place_set(__FILE__, __LINE__), quern_nn_position(__VA_ARGS__))
#define quern_nn_position_sinusoidal(...) (quern_place_set(__FILE__, __LINE__), quern_nn_position_sinusoidal(__VA_ARGS__))
#define quern_nn_conv(...) (quern_place_set(__FILE__, __LINE__), quern_nn_conv(__VA_ARGS__))
#define quern_nn_conv_transpose(...) (quern_place_set(__FILE__, __LINE__), quern_nn_conv_transpose(__VA_ARGS__))
#define quern_nn_layer_norm(...) (quern_place_set(__FILE__, __LINE__), quern_nn_layer_norm(__VA_ARGS__))
#define quern_nn_rms_norm(...) (quern_place_set(__FILE__, __LINE__), quern_nn_rms_norm(__VA_ARGS__))
#define quern_nn_batch_norm(...) (quern_place_set(__FILE__, __LINE__), quern_nn_batch_norm(__VA_ARGS__))
#define quern_nn_group_norm(...) (quern_place_set(__FILE__, __LINE__), quern_nn_group_norm(__VA_ARGS__))
#define quern_nn_instance_norm(...) (quern_place_set(__FILE__, __LINE__), quern_nn_instance_norm(__VA_ARGS__))
#define quern_nn_dropout(...) (quern_place_set(__FILE__, __LINE__), quern_nn_dropout(__VA_ARGS__))
#define quern_nn_dropout_spatial(...) (quern_place_set(__FILE__, __LINE__), quern_nn_dropout_spatial(__VA_ARGS__))
#define quern_nn_rnn(...) (quern_place_set(__FILE__, __LINE__), quern_nn_rnn(__VA_ARGS__))
#define quern_nn_rnn_cell(...) (quern_place_set(__FILE__, __LINE__), quern_nn_rnn_cell(__VA_ARGS__))
#define quern_nn_attention(...) (quern_place_set(__FILE__, __LINE__), quern_nn_attention(__VA_ARGS__))
#define quern_nn_attend(...) (quern_place_set(__FILE__, __LINE__), quern_nn_attend(__VA_ARGS__))
#define quern_nn_transformer_encoder(...) (quern_place_set(__FILE__, __LINE__), quern_nn_transformer_encoder(__VA_ARGS__))
#define quern_nn_transformer_decoder(...) (quern_place_set(__FILE__, __LINE__), quern_nn_transformer_decoder(__VA_ARGS__))
#define quern_nn_sequential(...) (quern_place_set(__FILE__, __LINE__), quern_nn_sequential(__VA_ARGS__))
/* clang-format on */

#endif
