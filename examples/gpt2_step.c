/* examples/gpt2_step.c -- GPT-2 from top to bottom: the model, the loss, AdamW, clipping, the learning rate, the loop
** The model learns to predict the next byte of this file, or of another text. A step is one compiled program.
** Usage: gpt2_step [cpu | cuda | opencl [TEXT]]. Exits with 1 when the loss does not fall.
*/
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "quern/quern.h"

/* batch, context, width, heads, width of a head, layers, vocabulary (bytes); GPT-2 124M: T 1024, C 768, H 12, L 12, V 50257 */
enum { B = 8, T = 64, C = 96, H = 4, D = C / H, L = 2, V = 256, STEPS = 240, WARM_UP = 15, MAX_TEXT = 1 << 20 };

#define TRY(call)                                                                                                      \
  do {                                                                                                                 \
    if ((call) != QUERN_STATUS_OK) return fprintf(stderr, "gpt2_step: %s\n", quern_last_error()), 1;                   \
  } while (0)

static const quern_init normal = {QUERN_INIT_NORMAL, 0, 0.02}, zero = {QUERN_INIT_CONSTANT, 0, 0};

/* x (B, T, in) -> (B, T, out): x weight' + bias with weight (out, in), bias (out,) */
static quern_tensor *linear(quern_scope *scope, quern_tensor *x, int64_t out) {
  quern_nn_linear_options options = {.size = sizeof options, .weight_init = &normal, .bias_init = &zero};
  return quern_nn_linear(scope, x, out, &options);
}

/* x (B, T, C) -> (B, T, C): softmax(q k' / sqrt(D)) v of every head, where a position attends to those up to itself */
static quern_tensor *attention(quern_scope *scope, quern_tensor *x) {
  quern_attention_options options = {.size = sizeof options, .causal = true};
  quern_tensor *qkv = linear(quern_scope_in(scope, "c_attn"), x, 3 * C);   /* (B, T, 3 C) */
  qkv = quern_reshape(qkv, QUERN_LIST(B, T, 3, H, D));                     /* (B, T, 3, H, D) */
  qkv = quern_permute(qkv, QUERN_LIST(2, 0, 3, 1, 4));                     /* (3, B, H, T, D) */
  quern_tensor *q = quern_select(qkv, 0, 0);                               /* (B, H, T, D) */
  quern_tensor *k = quern_select(qkv, 0, 1), *v = quern_select(qkv, 0, 2); /* (B, H, T, D) */
  quern_tensor *y = quern_attention(q, k, v, NULL, &options, NULL);        /* (B, H, T, D) */
  y = quern_reshape(quern_transpose(y, 1, 2), QUERN_LIST(B, T, C));        /* (B, T, C) */
  return linear(quern_scope_in(scope, "c_proj"), y, C);
}

/* x (B, T, C) -> (B, T, C): two residual branches, each after a LayerNorm */
static quern_tensor *block(quern_scope *scope, quern_tensor *x) {
  quern_tensor *h = quern_nn_layer_norm(quern_scope_in(scope, "ln_1"), x, NULL); /* (B, T, C) */
  x = quern_add(x, attention(quern_scope_in(scope, "attn"), h));                 /* (B, T, C) */
  h = quern_nn_layer_norm(quern_scope_in(scope, "ln_2"), x, NULL);               /* (B, T, C) */
  h = quern_gelu_tanh(linear(quern_scope_in(scope, "mlp.c_fc"), h, 4 * C));      /* (B, T, 4 C) */
  return quern_add(x, linear(quern_scope_in(scope, "mlp.c_proj"), h, C));
}

/* tokens (B, T), next (B, T) -> the mean of -log p(next), a scalar. wte (V, C) both embeds and predicts. */
static quern_tensor *gpt2_loss(quern_scope *root, quern_tensor *tokens, quern_tensor *next) {
  quern_nn_embedding_options options = {.size = sizeof options, .init = &normal};
  quern_tensor *x = quern_nn_embedding(quern_scope_in(root, "wte"), tokens, V, C, &options); /* (B, T, C) */
  x = quern_nn_position(quern_scope_in(root, "wpe"), x, T, NULL, &options);                  /* (B, T, C) */
  for (int i = 0; i < L; i++) x = block(quern_scope_at(root, "h", i), x);                    /* (B, T, C) */
  x = quern_nn_layer_norm(quern_scope_in(root, "ln_f"), x, NULL);                            /* (B, T, C) */
  quern_tensor *logits = quern_nn_unembed(quern_scope_in(root, "wte"), x, V, &options);      /* (B, T, V) */
  return quern_cross_entropy(logits, next, NULL);
}

static double seconds(void) {
  struct timespec now;
  timespec_get(&now, TIME_UTC);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

int main(int argc, char **argv) {
  static unsigned char text[MAX_TEXT], tokens_now[B][T], next_now[B][T];
  const char *path = argc > 2 ? argv[2] : __FILE__;
  FILE *file = fopen(path, "rb");
  size_t bytes = file == NULL ? 0 : fread(text, 1, sizeof text, file);
  if (file != NULL) fclose(file);
  if (bytes <= T + 1)
    return fprintf(stderr, "gpt2_step: %s: no text of %d bytes (gpt2_step DEVICE TEXT)\n", path, T + 2), 1;

  quern_context *ctx;
  quern_model *model;
  TRY(quern_context_new(&ctx, NULL));
  TRY(quern_model_new(&model, ctx, NULL));
  quern_tensor *tokens = quern_input(ctx, "tokens", QUERN_DTYPE_U8, QUERN_LIST(B, T));
  quern_tensor *next = quern_input(ctx, "next", QUERN_DTYPE_U8, QUERN_LIST(B, T));
  quern_tensor *loss = gpt2_loss(quern_model_scope(model), tokens, next);

  /* Forward, backward, clipping and AdamW; biases and norms are not decayed. */
  const quern_optim_group no_decay[] = {{"*.bias", 1, 0}, {"*ln_*.weight", 1, 0}};
  quern_optim_options optim = QUERN_INIT(quern_optim_options);
  optim.beta2 = 0.95, optim.weight_decay = 0.1, optim.clip_norm = 1;
  optim.n_groups = 2, optim.groups = no_decay;
  quern_step *step;
  TRY(quern_step_new(&step, model, loss, &optim));

  quern_program_options options = QUERN_INIT(quern_program_options);
  options.device = argc > 1 ? argv[1] : "cpu";
  options.n_updates = quern_step_updates(step, &options.updates);
  quern_program *program;
  quern_instance *training;
  TRY(quern_program_compile(&program, ctx, 2, (quern_tensor *[]){loss, quern_step_norm(step)}, &options));
  TRY(quern_instance_new(&training, program));
  TRY(quern_instance_init_states(training, model));

  const quern_schedule_piece pieces[] = {
      {.kind = QUERN_SCHEDULE_LINEAR, .steps = WARM_UP, .start = 1.0 / WARM_UP, .end = 1},
      {.kind = QUERN_SCHEDULE_COSINE, .steps = STEPS - WARM_UP, .end = 0.1}};
  const quern_schedule schedule = {.lr = 3e-3, .n_pieces = 2, .pieces = pieces};
  float lr, loss_now = 0, norm_now = 0, loss_first = 0;
  double begin = 0;
  TRY(quern_instance_bind(training, "tokens", tokens_now, sizeof tokens_now));
  TRY(quern_instance_bind(training, "next", next_now, sizeof next_now));
  TRY(quern_instance_bind(training, "lr", &lr, sizeof lr));
  printf("%lld parameters, %zu bytes of text\n", (long long)quern_model_element_count(model), bytes);
  srand(1);
  for (int i = 0; i < STEPS; i++) {
    for (int b = 0; b < B; b++) { /* windows at random; what comes next is the window one byte later */
      size_t at = (size_t)rand() % (bytes - T);
      memcpy(tokens_now[b], text + at, T);
      memcpy(next_now[b], text + at + 1, T);
    }
    lr = (float)quern_schedule_at(&schedule, i);
    TRY(quern_instance_run_bound(training, (void *[]){&loss_now, &norm_now}));
    if (i == 0) loss_first = loss_now, begin = seconds();
    if (i == 0 || (i + 1) % 40 == 0)
      printf("step %3d/%d | loss %.4f | norm %.2f | lr %.2e\n", i + 1, STEPS, (double)loss_now, (double)norm_now,
             (double)lr);
  }
  printf("%.0f tokens per second on %s\n", (STEPS - 1) * B * T / (seconds() - begin), options.device);

  quern_instance_free(training);
  quern_program_free(program);
  quern_step_free(step);
  quern_model_free(model);
  quern_context_free(ctx);
  return loss_first > 5 && loss_now < 2.7f ? 0 : 1;
}
