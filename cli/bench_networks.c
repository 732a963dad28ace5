/* cli/bench_networks.c -- networks of quern/models.h that are trained and asked, by name, and memory for what they read */
#include "bench.h"

#include <stdlib.h>
#include <string.h>

#include "quern/models.h"

#define VALUE(key) bench_value(params, key, 1)

/* ---- what they compute -------------------------------------------------------------------------------------- */

static quern_tensor *integers(struct bench_net *net, const char *name, int64_t below, int rank, const int64_t *dims) {
  net->below[net->n_inputs] = below;
  return net->inputs[net->n_inputs++] = quern_input(net->ctx, name, QUERN_DTYPE_I32, rank, dims);
}

static quern_tensor *floats(struct bench_net *net, int rank, const int64_t *dims) {
  net->below[net->n_inputs] = 0;
  return net->inputs[net->n_inputs++] = quern_input(net->ctx, "x", QUERN_DTYPE_F32, rank, dims);
}

/* The mean cross-entropy of labels, one for each row of logits (.., classes). */
static quern_tensor *cross_entropy(struct bench_net *net, quern_tensor *logits) {
  if (quern_tensor_is_poison(logits)) return logits;
  int rank = quern_tensor_rank(logits);
  int64_t classes = quern_tensor_dim(logits, rank - 1);
  quern_tensor *labels = integers(net, "labels", classes, rank - 1, quern_tensor_dims(logits));
  return quern_cross_entropy(logits, labels, NULL);
}

static quern_tensor *build_lm(struct bench_net *net, const char *params, bool loss) {
  quern_lm_options o = QUERN_INIT(quern_lm_options);
  const int64_t dims[] = {VALUE("B"), VALUE("T")};
  if (quern_lm_named(&o, "gpt2:124M") != QUERN_STATUS_OK) return NULL;
  o.layers = VALUE("layers");
  o.width = VALUE("C");
  o.heads = VALUE("H");
  o.vocabulary = VALUE("V");
  o.positions = dims[1];
  quern_scope *scope = quern_model_scope(net->model);
  quern_tensor *tokens = integers(net, "tokens", o.vocabulary, 2, dims);
  net->samples = dims[0];
  net->tokens = dims[0] * dims[1];
  if (!loss) return quern_lm_logits(scope, quern_lm_hidden(scope, tokens, &o, NULL), &o);
  return quern_lm_loss(scope, tokens, integers(net, "labels", o.vocabulary, 2, dims), &o);
}

static quern_tensor *build_lstm(struct bench_net *net, const char *params, bool loss) {
  const int64_t dims[] = {VALUE("B"), VALUE("T")};
  quern_tensor *tokens = integers(net, "tokens", VALUE("V"), 2, dims);
  net->samples = dims[0];
  net->tokens = dims[0] * dims[1];
  quern_tensor *y = quern_lstm_lm(quern_model_scope(net->model), tokens, VALUE("V"), VALUE("C"), VALUE("C"),
                                  (int)VALUE("layers"), 0, NULL);
  return loss ? cross_entropy(net, y) : y;
}

static quern_tensor *build_resnet(struct bench_net *net, const char *params, bool loss) {
  int64_t side = VALUE("size");
  quern_tensor *x = floats(net, 4, (const int64_t[]){VALUE("B"), 3, side, side});
  net->samples = VALUE("B");
  quern_tensor *y = quern_resnet(quern_model_scope(net->model), x, (int)VALUE("depth"), VALUE("classes"), side <= 64);
  return loss ? cross_entropy(net, y) : y;
}

static quern_tensor *build_mlp(struct bench_net *net, const char *params, bool loss) {
  enum { MOST = 16 };
  int64_t widths[MOST], n = VALUE("layers") < MOST ? VALUE("layers") : MOST;
  for (int64_t i = 0; i < n; i++) widths[i] = VALUE("C");
  quern_tensor *x = floats(net, 2, (const int64_t[]){VALUE("B"), VALUE("in")});
  net->samples = VALUE("B");
  quern_tensor *y = quern_mlp(quern_model_scope(net->model), x, (int)n, widths, VALUE("out"), "relu");
  return loss ? cross_entropy(net, y) : y;
}

static const struct {
  const char *name;
  quern_tensor *(*build)(struct bench_net *net, const char *params, bool loss);
} networks[] = {{"lm", build_lm}, {"lstm", build_lstm}, {"resnet", build_resnet}, {"mlp", build_mlp}};

/* ---- a network and its memory ------------------------------------------------------------------------------- */

quern_status bench_net_begin(struct bench_net *net, const char *name, const char *params, bool train) {
  *net = (struct bench_net){0};
  quern_status status = quern_context_new(&net->ctx, NULL);
  return status == QUERN_STATUS_OK ? bench_net_build(net, name, params, train) : status;
}

quern_status bench_net_build(struct bench_net *net, const char *name, const char *params, bool train) {
  quern_model_options options = QUERN_INIT(quern_model_options);
  options.inference = !(train);
  quern_status status = quern_model_new(&net->model, net->ctx, &options);
  if (status != QUERN_STATUS_OK) return status;
  for (size_t i = 0; i < sizeof networks / sizeof *networks; i++)
    if (strcmp(networks[i].name, name) == 0) net->y = networks[i].build(net, params, train);
  return quern_context_check(net->ctx);
}

void bench_net_end(struct bench_net *net) {
  quern_model_free(net->model);
  quern_context_free(net->ctx);
}

/* Whole numbers from 0 on, below what is given. */
static void fill_integers(int32_t *at, size_t n, int64_t below) {
  uint32_t x = 1;
  for (size_t i = 0; i < n; i++) {
    x = x * 1664525u + 1013904223u;
    at[i] = (int32_t)((x >> 8) % (uint32_t)below);
  }
}

/* Inputs that are not floats get numbers that are in range, the learning rate a small one. */
static quern_status fill_inputs(const struct bench_net *net, struct bench_side *side) {
  for (size_t i = 0; i < side->n_inputs; i++) {
    quern_slot slot = QUERN_INIT(quern_slot);
    quern_status status = quern_program_input(side->program, i, &slot);
    if (status != QUERN_STATUS_OK) return status;
    if (strcmp(slot.name, "lr") == 0) *(float *)side->inputs[i] = 1e-4f;
    for (size_t k = 0; k < net->n_inputs; k++)
      if (net->below[k] > 0 && strcmp(slot.name, quern_tensor_name(net->inputs[k])) == 0)
        fill_integers(side->inputs[i], slot.bytes / sizeof(int32_t), net->below[k]);
  }
  return QUERN_STATUS_OK;
}

/* A parameter begins as a constant that it is to begin as, else as small numbers; other states as zeros. */
static quern_status fill_state(struct bench_side *side, size_t i, const quern_parameter *p) {
  quern_slot slot = QUERN_INIT(quern_slot);
  quern_status status = quern_program_state(side->program, i, &slot);
  bool constant = p->init.kind == QUERN_INIT_CONSTANT;
  if (status != QUERN_STATUS_OK || slot.dtype != QUERN_DTYPE_F32 || (constant && p->init.a == 0)) return status;
  size_t n = slot.bytes / sizeof(float);
  float *data = malloc(slot.bytes + 1);
  if (data == NULL) return QUERN_STATUS_MEMORY;
  bench_fill(data, n);
  for (size_t k = 0; k < n; k++) data[k] = constant ? (float)p->init.a : data[k] * 0.04f;
  status = quern_instance_set_state(side->instance, i, data);
  free(data);
  return status;
}

quern_status bench_net_fill(const struct bench_net *net, struct bench_side *side) {
  quern_status status = fill_inputs(net, side);
  for (size_t i = 0; i < quern_program_state_count(side->program) && status == QUERN_STATUS_OK; i++) {
    quern_slot slot = QUERN_INIT(quern_slot);
    status = quern_program_state(side->program, i, &slot);
    const quern_parameter *p = status == QUERN_STATUS_OK ? quern_model_find(net->model, slot.name) : NULL;
    if (p != NULL) status = fill_state(side, i, p);
  }
  return status;
}
