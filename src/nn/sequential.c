/* nn/sequential.c -- layers one after another, by name
** tests: tests/nn/test_layers.c
*/
#include "nn/nn.h"

#include <stdio.h>

/* ---- kinds: each calls its layer with what it takes of a step ---------------------------------------------------- */

typedef quern_tensor *apply(quern_scope *scope, quern_tensor *x, const quern_nn_step *s);

#define KIND(name, ...)                                                                                                \
  static quern_tensor *apply_##name(quern_scope *scope, quern_tensor *x, const quern_nn_step *s) {                     \
    (void)scope;                                                                                                       \
    (void)s;                                                                                                           \
    return __VA_ARGS__;                                                                                                \
  }
KIND(linear, quern_nn_linear(scope, x, s->out, s->options))
KIND(conv, quern_nn_conv(scope, x, s->out, s->n, s->window, s->options))
KIND(conv_transpose, quern_nn_conv_transpose(scope, x, s->out, s->n, s->window, s->options))
KIND(mlp, quern_nn_mlp(scope, x, s->out, s->options))
KIND(layer_norm, quern_nn_layer_norm(scope, x, s->options))
KIND(rms_norm, quern_nn_rms_norm(scope, x, s->options))
KIND(batch_norm, quern_nn_batch_norm(scope, x, s->options))
KIND(group_norm, quern_nn_group_norm(scope, x, s->out, s->options))
KIND(instance_norm, quern_nn_instance_norm(scope, x, s->options))
KIND(dropout, quern_nn_dropout(scope, x, s->p))
KIND(dropout_spatial, quern_nn_dropout_spatial(scope, x, s->p))
KIND(flatten, quern_flatten(x, 1, -1))
KIND(max_pool, quern_max_pool(x, s->options))
KIND(avg_pool, quern_avg_pool(x, s->options))
KIND(adaptive_max_pool, quern_adaptive_max_pool(x, s->n, s->window))
KIND(adaptive_avg_pool, quern_adaptive_avg_pool(x, s->n, s->window))
KIND(encoder, quern_nn_transformer_encoder(scope, x, s->out, s->options))
#undef KIND

#define EACH(ROW)                                                                                                      \
  ROW(linear)                                                                                                          \
  ROW(conv)                                                                                                            \
  ROW(conv_transpose)                                                                                                  \
  ROW(mlp)                                                                                                             \
  ROW(layer_norm)                                                                                                      \
  ROW(rms_norm)                                                                                                        \
  ROW(batch_norm)                                                                                                      \
  ROW(group_norm)                                                                                                      \
  ROW(instance_norm)                                                                                                   \
  ROW(dropout)                                                                                                         \
  ROW(dropout_spatial)                                                                                                 \
  ROW(flatten)                                                                                                         \
  ROW(max_pool)                                                                                                        \
  ROW(avg_pool)                                                                                                        \
  ROW(adaptive_max_pool)                                                                                               \
  ROW(adaptive_avg_pool)                                                                                               \
  ROW(encoder)
#define NAME(name) #name,
#define APPLY(name) apply_##name,
static const char *const kinds[] = {EACH(NAME)};
static apply *const applies[] = {EACH(APPLY)};

/* ---- the sequence ------------------------------------------------------------------------------------------------ */

/* The error of a kind that there is not, with the nearest of layers and activations. */
static quern_tensor *no_kind(const struct nn_call *call, int i, const char *kind) {
  const char *near = base_nearest(kind, kinds, BASE_COUNT(kinds));
  if (near == NULL) near = base_nearest(kind, nn_activation_names, nn_activation_count);
  return nn_fail(call, QUERN_STATUS_INVALID, "step %d is \"%.60s\", which is no kind of layer%s%s", i, kind,
                 near != NULL ? " HINT: did you mean " : "", near != NULL ? near : "");
}

static quern_tensor *one(const struct nn_call *call, quern_scope *scope, quern_tensor *x, int i,
                         const quern_nn_step *s) {
  if (s->kind == NULL) {
    NN_CHECK(*call, s->layer != NULL, INVALID, "step %d has neither a kind nor a layer", i);
    quern_tensor *y = s->layer(scope, x, s->user);
    NN_CHECK(*call, y != NULL, INVALID, "step %d gave null", i);
    return y;
  }
  for (size_t k = 0; k < BASE_COUNT(kinds); k++) {
    if (strcmp(kinds[k], s->kind) == 0) return applies[k](scope, x, s);
  }
  nn_function *activation = nn_activation_find(s->kind);
  return activation != NULL ? activation(x) : no_kind(call, i, s->kind);
}

quern_tensor *quern_nn_sequential(quern_scope *scope, quern_tensor *x, int n, const quern_nn_step *steps) {
  NN_ENTER(call, "nn_sequential", scope, x);
  NN_CHECK(call, n >= 0 && (n == 0 || steps != NULL), INVALID, "a list of %d steps%s", n,
           steps == NULL ? " is null" : "");
  for (int i = 0; i < n && !ir_is_poison(x); i++) {
    char name[16];
    snprintf(name, sizeof name, "%d", i);
    quern_scope *inner = quern_scope_in(scope, name);
    if (inner == NULL) return &ir_poison;
    x = one(&call, inner, x, i, &steps[i]);
  }
  return nn_leave(&call, x);
}
