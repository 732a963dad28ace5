/* cli/bench_models.c -- whole graphs to compile: GPT-2's training step, flow transformer blocks, attention, chains */
#include "bench.h"

#include <stdlib.h>
#include <string.h>

#include "quern/optim.h"

#define VALUE(key) bench_value(params, key, 1)

void bench_model_end(struct bench_model *model) {
  quern_model_free(model->net.model);
  quern_context_free(model->ctx);
  free(model->outputs);
  free(model->updates);
}

static void add_output(struct bench_model *model, quern_tensor *y) {
  quern_tensor **more = realloc(model->outputs, (model->n_outputs + 1) * sizeof *more);
  if (more == NULL) return;
  model->outputs = more;
  model->outputs[model->n_outputs++] = y;
}

static void add_update(struct bench_model *model, quern_tensor *state, quern_tensor *value) {
  quern_update *more = realloc(model->updates, (model->n_updates + 1) * sizeof *more);
  if (more == NULL) return;
  model->updates = more;
  model->updates[model->n_updates++] = (quern_update){state, value};
}

/* ---- GPT-2: Radford et al., "Language models are unsupervised multitask learners" -------------------------- */

/* Loss, gradients, and AdamW for every parameter. */
static void build_gpt2(struct bench_model *model, const char *params) {
  quern_step *step = NULL;
  const quern_update *updates;
  model->net.ctx = model->ctx;
  if (bench_net_build(&model->net, "lm", params, true) != QUERN_STATUS_OK) return;
  add_output(model, model->net.y);
  if (quern_step_new(&step, model->net.model, model->net.y, NULL) != QUERN_STATUS_OK) return;
  size_t n = quern_step_updates(step, &updates);
  for (size_t i = 0; i < n; i++) add_update(model, updates[i].state, updates[i].value);
  quern_step_free(step);
}

/* ---- blocks of two streams that attend to each other: Esser et al., "Scaling rectified flow transformers" --- */

struct flow {
  quern_context *ctx;
  int64_t C, H; /* width, heads */
  size_t n;     /* of weights so far */
};

struct stream {
  int64_t T; /* tokens */
  quern_tensor *x, *modulation[6], *q, *k, *v;
};

static quern_tensor *weight(struct flow *f, int rank, const int64_t *dims) {
  char name[32];
  snprintf(name, sizeof name, "w%zu", f->n++);
  return quern_input(f->ctx, name, QUERN_DTYPE_F32, rank, dims);
}

static quern_tensor *flow_linear(struct flow *f, quern_tensor *x, int64_t in, int64_t out) {
  quern_tensor *w = weight(f, QUERN_LIST(out, in)), *b = weight(f, QUERN_LIST(out));
  return quern_linear(x, w, b);
}

/* norm(x) (1 + scale) + shift, by the modulations from `first` on. */
static quern_tensor *modulated(const struct stream *s, int first) {
  quern_tensor *y = quern_layer_norm(s->x, 1, NULL, NULL, 1e-6);
  y = quern_mul(y, quern_add_scalar(s->modulation[first + 1], 1));
  return quern_add(y, s->modulation[first]);
}

/* Third `part` of (1, T, 3C) as heads (1, H, T, C / H). */
static quern_tensor *flow_heads(const struct flow *f, const struct stream *s, quern_tensor *qkv, int64_t part) {
  quern_tensor *x = quern_slice(qkv, 2, part * f->C, (part + 1) * f->C, 1);
  return quern_transpose(quern_reshape(x, QUERN_LIST(1, s->T, f->H, f->C / f->H)), 1, 2);
}

/* Queries, keys and values of a stream, from the vector that determines the drawing. */
static void attend(struct flow *f, struct stream *s, quern_tensor *vector) {
  quern_tensor *all = flow_linear(f, quern_silu(vector), f->C, 6 * f->C); /* (1, 6C) */
  for (int i = 0; i < 6; i++)
    s->modulation[i] = quern_unsqueeze(quern_slice(all, 1, i * f->C, (i + 1) * f->C, 1), 1); /* (1, 1, C) */
  quern_tensor *qkv = flow_linear(f, modulated(s, 0), f->C, 3 * f->C);
  int64_t width = f->C / f->H;
  s->q = quern_rms_norm(flow_heads(f, s, qkv, 0), 1, weight(f, QUERN_LIST(width)), 1e-6);
  s->k = quern_rms_norm(flow_heads(f, s, qkv, 1), 1, weight(f, QUERN_LIST(width)), 1e-6);
  s->v = flow_heads(f, s, qkv, 2);
}

/* The stream after its part of the attention, and after its own two layers. */
static void absorb(struct flow *f, struct stream *s, quern_tensor *attended) {
  quern_tensor *y = flow_linear(f, attended, f->C, f->C);
  s->x = quern_add(s->x, quern_mul(y, s->modulation[2]));
  y = quern_gelu_tanh(flow_linear(f, modulated(s, 3), f->C, 4 * f->C));
  y = flow_linear(f, y, 4 * f->C, f->C);
  s->x = quern_add(s->x, quern_mul(y, s->modulation[5]));
}

static quern_tensor *joined(quern_tensor *a, quern_tensor *b) { return quern_concat(2, (quern_tensor *[]){a, b}, 2); }

static void block(struct flow *f, struct stream *text, struct stream *image, quern_tensor *vector) {
  attend(f, text, vector);
  attend(f, image, vector);
  quern_tensor *q = quern_rope(joined(text->q, image->q), NULL, 10000, true);
  quern_tensor *k = quern_rope(joined(text->k, image->k), NULL, 10000, true);
  quern_tensor *y = quern_attention(q, k, joined(text->v, image->v), NULL, NULL, NULL);
  y = quern_reshape(quern_transpose(y, 1, 2), QUERN_LIST(1, text->T + image->T, f->C));
  absorb(f, text, quern_slice(y, 1, 0, text->T, 1));
  absorb(f, image, quern_slice(y, 1, text->T, QUERN_END, 1));
}

static void build_flow(struct bench_model *model, const char *params) {
  struct flow f = {.ctx = model->ctx, .C = VALUE("C"), .H = VALUE("H")};
  struct stream text = {.T = VALUE("text")}, image = {.T = VALUE("image")};
  text.x = quern_input(f.ctx, "text", QUERN_DTYPE_F32, QUERN_LIST(1, text.T, f.C));
  image.x = quern_input(f.ctx, "image", QUERN_DTYPE_F32, QUERN_LIST(1, image.T, f.C));
  quern_tensor *vector = quern_input(f.ctx, "vector", QUERN_DTYPE_F32, QUERN_LIST(1, f.C));
  for (int64_t i = 0; i < VALUE("blocks"); i++) block(&f, &text, &image, vector);
  add_output(model, image.x);
}

/* ---- attention and its gradients: the bytes of the plan grow as the sequence ---------------------------------- */

static void build_attention(struct bench_model *model, const char *params) {
  const int64_t dims[] = {1, VALUE("h"), VALUE("s"), VALUE("d")};
  static const char *const names[] = {"q", "k", "v", "dy"};
  quern_tensor *in[4], *dx[3];
  for (int i = 0; i < 4; i++) in[i] = quern_input(model->ctx, names[i], QUERN_DTYPE_F32, 4, dims);
  quern_tensor *y = quern_attention(in[0], in[1], in[2], NULL, NULL, NULL);
  add_output(model, y);
  if (quern_vjp(1, &y, &in[3], 3, in, dx) != QUERN_STATUS_OK) return;
  for (int i = 0; i < 3; i++) add_output(model, dx[i]);
}

/* ---- chains --------------------------------------------------------------------------------------------------- */

static void build_chain(struct bench_model *model, const char *params) {
  quern_tensor *x = quern_input(model->ctx, "x", QUERN_DTYPE_F32, QUERN_LIST(16)), *y = x;
  for (int64_t i = 0; i < VALUE("nodes"); i++) y = i % 2 == 0 ? quern_sin(y) : quern_mul(y, x);
  add_output(model, y);
}

const struct bench_model_kind bench_models[] = {
    {"gpt2_step", "layers=12 B=8 T=256 C=768 H=12 V=50257", build_gpt2, true},
    {"flow_blocks", "blocks=28 text=512 image=1024 C=3072 H=24", build_flow, true},
    {"attention", "h=12 s=1024 d=64", build_attention, false},
    {"attention", "h=12 s=4096 d=64", build_attention, false},
    {"attention", "h=12 s=16384 d=64", build_attention, false},
    {"chain", "nodes=1000", build_chain, false},
    {"chain", "nodes=10000", build_chain, false},
    {"chain", "nodes=100000", build_chain, false},
    {0},
};
