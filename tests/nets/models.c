/* nets/models.c -- the networks that come with Quern, in the sizes that the sweep compiles, and in those that are run
 */
#include <stdio.h>
#include <string.h>

#include "nets/nets.h"

enum kind { LM, LSTM, RESNET, MLP };

/* name: of LM as quern_lm_named has it; size: tokens in a row, depth of RESNET, hidden layers of MLP; image: of RESNET. */
struct row {
  enum kind kind;
  const char *name;
  int64_t batch, size, image;
  bool is_short;
};

static const struct row rows[] = {
    {LM, "gpt2:124M", 2, 64, 0, false},
    {LM, "gpt2:124M", 2, 256, 0, true},
    {LM, "gpt2:124M", 4, 1024, 0, false},
    {LM, "gpt2:355M", 2, 512, 0, false},
    {LM, "gpt2:355M", 2, 1024, 0, false},
    {LM, "gpt2:774M", 1, 128, 0, false},
    {LM, "gpt2:774M", 1, 1024, 0, false},
    {LM, "gpt2:1558M", 1, 96, 0, false},
    {LM, "gpt2:1558M", 1, 1024, 0, false},
    {LM, "modern:128x4", 16, 128, 0, false},
    {LM, "modern:256x4", 8, 100, 0, true},
    {LM, "modern:512x8", 4, 1024, 0, false},
    {LM, "modern:1024x24", 2, 512, 0, false},
    {LSTM, "lstm", 16, 35, 0, true},
    {LSTM, "lstm", 4, 128, 0, false},
    {LSTM, "lstm", 4, 1024, 0, false},
    {MLP, "mlp", 64, 2, 0, true},
    {MLP, "mlp", 100, 5, 0, false},
    {RESNET, "resnet", 16, 18, 32, false},
    {RESNET, "resnet", 8, 18, 48, true},
    {RESNET, "resnet", 8, 18, 64, false},
    {RESNET, "resnet", 4, 18, 96, false},
    {RESNET, "resnet", 8, 18, 112, true},
    {RESNET, "resnet", 8, 18, 224, false},
    {RESNET, "resnet", 16, 34, 32, false},
    {RESNET, "resnet", 8, 34, 48, false},
    {RESNET, "resnet", 8, 34, 64, false},
    {RESNET, "resnet", 4, 34, 96, false},
    {RESNET, "resnet", 8, 34, 112, false},
    {RESNET, "resnet", 4, 34, 224, false},
    {RESNET, "resnet", 16, 50, 32, false},
    {RESNET, "resnet", 8, 50, 48, false},
    {RESNET, "resnet", 8, 50, 64, true},
    {RESNET, "resnet", 4, 50, 96, false},
    {RESNET, "resnet", 8, 50, 112, false},
    {RESNET, "resnet", 4, 50, 224, false},
};

/* For the evaluator and the interpreter: language models are narrow here, networks of pictures as wide as they are. */
static const struct row small_rows[] = {
    {LM, "gpt2:124M", 2, 9, 0, true},    {LM, "modern:128x2", 3, 8, 0, true}, {LSTM, "lstm", 2, 5, 0, true},
    {MLP, "mlp", 7, 3, 0, true},         {RESNET, "resnet", 4, 18, 8, false}, {RESNET, "resnet", 4, 34, 8, false},
    {RESNET, "resnet", 4, 50, 8, false},
};

int nets_models(bool small) {
  return small ? (int)(sizeof small_rows / sizeof *small_rows) : (int)(sizeof rows / sizeof *rows);
}

static const struct row *row_of(int i, bool small) { return small ? &small_rows[i] : &rows[i]; }
bool nets_model_is_short(int i, bool small) { return row_of(i, small)->is_short; }

void nets_model_name(int i, bool small, char name[NET_NAME]) {
  const struct row *r = row_of(i, small);
  switch (r->kind) {
  case LM:
  case LSTM: snprintf(name, NET_NAME, "%s B=%d T=%d", r->name, (int)r->batch, (int)r->size); break;
  case RESNET:
    snprintf(name, NET_NAME, "resnet:%d B=%d %dx%d", (int)r->size, (int)r->batch, (int)r->image, (int)r->image);
    break;
  case MLP: snprintf(name, NET_NAME, "mlp of %d layers B=%d", (int)r->size, (int)r->batch); break;
  }
}

static quern_tensor *input(struct net *net, quern_model *model, int i, quern_dtype dtype, int rank, const int64_t *dims,
                           int64_t below) {
  static const char *const names[NET_INPUTS] = {"inputs", "labels"};
  net->inputs[i] = quern_input(quern_model_context(model), names[i], dtype, rank, dims);
  net->below[i] = below;
  return net->inputs[i];
}

static void make_lm(struct net *net, quern_model *model, const struct row *r, bool small) {
  quern_scope *scope = quern_model_scope(model);
  quern_lm_options o = {.size = sizeof o};
  if (quern_lm_named(&o, r->name) != QUERN_STATUS_OK) return;
  if (small)
    o.layers = o.heads = 2, o.kv_heads = 0, o.width = 16, o.hidden = 32, o.vocabulary = 60, o.positions = r->size;
  if (o.vocabulary == 0) o.vocabulary = 256;
  if (o.positions == 0) o.positions = r->size;
  quern_tensor *tokens = input(net, model, 0, QUERN_DTYPE_I32, QUERN_LIST(r->batch, r->size), o.vocabulary);
  quern_tensor *labels = input(net, model, 1, QUERN_DTYPE_I32, QUERN_LIST(r->batch, r->size), o.vocabulary);
  net->loss = quern_lm_loss(scope, tokens, labels, &o);
  net->out = net->loss;
}

static void make_classifier(struct net *net, quern_model *model, const struct row *r, bool small) {
  enum { CLASSES = 10, VOCABULARY = 300 };
  quern_scope *scope = quern_model_scope(model);
  const int64_t widths[][5] = {{500, 256, 256, 128, 64}, {30, 20, 10, 10, 10}};
  quern_tensor *x;
  if (r->kind == LSTM) {
    x = input(net, model, 0, QUERN_DTYPE_I32, QUERN_LIST(r->batch, r->size), VOCABULARY);
    net->out = quern_lstm_lm(scope, x, VOCABULARY, small ? 6 : 128, small ? 8 : 256, 2, 0.1, NULL);
    input(net, model, 1, QUERN_DTYPE_I32, QUERN_LIST(r->batch, r->size), VOCABULARY);
  } else if (r->kind == RESNET) {
    x = input(net, model, 0, QUERN_DTYPE_U8, QUERN_LIST(r->batch, 3, r->image, r->image), 256);
    x = quern_mul_scalar(quern_cast(x, QUERN_DTYPE_F32), 1.0 / 255);
    net->out = quern_resnet(scope, x, (int)r->size, CLASSES, r->image <= 64);
    input(net, model, 1, QUERN_DTYPE_I32, QUERN_LIST(r->batch), CLASSES);
  } else {
    x = input(net, model, 0, QUERN_DTYPE_F32, QUERN_LIST(r->batch, 1, 28, 28), 0);
    net->out = quern_mlp(scope, x, (int)r->size, widths[small], CLASSES, "gelu");
    input(net, model, 1, QUERN_DTYPE_I32, QUERN_LIST(r->batch), CLASSES);
  }
  net->loss = quern_cross_entropy(net->out, net->inputs[1], NULL);
}

void nets_model(struct net *net, quern_model *model, int i, bool small) {
  const struct row *r = row_of(i, small);
  *net = (struct net){0};
  nets_model_name(i, small, net->text);
  if (r->kind == LM)
    make_lm(net, model, r, small);
  else
    make_classifier(net, model, r, small);
}
