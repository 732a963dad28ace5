/* train/builtin.c -- the losses of models that come with Quern, built as a user's own are
** tests: tests/train/test_train.c
*/
#include "train/train.h"

static const quern_cross_entropy_options counted = {.size = sizeof counted, .ignore = true, .ignore_index = -1};

/* Numbers that a network computes with: bytes are pictures, from 0 to 1. */
static quern_tensor *as_numbers(quern_tensor *x, quern_dtype dtype) {
  bool bytes = quern_tensor_dtype(x) == QUERN_DTYPE_U8;
  x = quern_cast(x, dtype);
  return bytes ? quern_mul_scalar(x, 1.0 / 255) : x;
}

static quern_tensor *logits_of(const struct train_spec *spec, quern_scope *scope, quern_tensor *x) {
  const quern_lm_options *o = &spec->lm;
  int64_t widths[TRAIN_MLP_LAYERS];
  switch (spec->family) {
  case TRAIN_LM: return quern_lm_logits(scope, quern_lm_hidden(scope, x, o, NULL), o);
  case TRAIN_LSTM: return quern_lstm_lm(scope, x, o->vocabulary, o->width, o->hidden, (int)o->layers, o->dropout, NULL);
  case TRAIN_RESNET: {
    bool small = quern_tensor_rank(x) == 4 && quern_tensor_dim(x, 2) <= 64;
    return quern_resnet(scope, as_numbers(x, spec->dtype), spec->depth, spec->classes, small);
  }
  case TRAIN_MLP:
  case TRAIN_OWN: break;
  }
  for (int64_t i = 0; i < o->layers; i++) widths[i] = o->hidden;
  return quern_mlp(scope, as_numbers(x, spec->dtype), (int)o->layers, widths, spec->classes, o->activation);
}

/* Of each sample, whether it has labels and the most likely ones are all of them. */
static quern_tensor *find_exact(quern_tensor *logits, quern_tensor *labels) {
  labels = quern_cast(labels, QUERN_DTYPE_I64);
  quern_tensor *counts = quern_ge(labels, quern_zeros_like(labels));
  quern_tensor *likely = quern_argmax(logits, quern_tensor_rank(logits) - 1, false);
  quern_tensor *wrong = quern_and(counts, quern_ne(likely, labels));
  int64_t axis = 1;
  if (quern_tensor_rank(labels) > 1) {
    wrong = quern_any(wrong, 1, &axis, false);
    counts = quern_any(counts, 1, &axis, false);
  }
  return quern_and(counts, quern_not(wrong));
}

quern_tensor *train_builtin_loss(quern_train_graph *graph, void *user) {
  const struct train_spec *spec = user;
  quern_scope *scope = quern_train_graph_scope(graph);
  quern_tensor *x = graph->inputs[0], *labels = graph->inputs[1];
  bool exact = graph->eval && spec->task != TRAIN_TASK_TEXT;
  if (spec->family == TRAIN_LM && !exact) return quern_lm_loss(scope, x, labels, &spec->lm);
  quern_tensor *logits = logits_of(spec, scope, x);
  labels = quern_cast(labels, QUERN_DTYPE_I32);
  quern_tensor *loss = quern_cross_entropy(logits, labels, &counted);
  if (exact) quern_train_graph_report(graph, "accuracy", find_exact(logits, labels));
  return loss;
}
