/* examples/train_mlp.c -- a training loop of one's own: a network of layers, AdamW, an evaluation, saving and loading
** The network tells two spirals apart. A step (forward, backward, update) is one compiled program; the evaluation is another,
** which works on the parameters of the first.
** Usage: train_mlp [cpu | cuda | opencl]. Exits with 1 when the network does not learn.
*/
#include <math.h>
#include <stdio.h>

#include "quern/quern.h"

enum { BATCH = 64, BATCHES = 8, POINTS = BATCH * BATCHES, STEPS = 200 };

/* Leaves the function with 1 when a call fails: the message names the values and the line that was wrong. */
#define TRY(call)                                                                                                      \
  do {                                                                                                                 \
    if ((call) != QUERN_STATUS_OK) return fprintf(stderr, "train_mlp: %s\n", quern_last_error()), 1;                   \
  } while (0)

/* x (N, 2) -> logits (N, 2). The scopes name the parameters: "input.weight" (64, 2), "input.bias" (64,), ... */
static quern_tensor *network(quern_model *model, quern_tensor *x) {
  quern_scope *root = quern_model_scope(model);
  x = quern_gelu(quern_nn_linear(quern_scope_in(root, "input"), x, 64, NULL));  /* (N, 64) */
  x = quern_gelu(quern_nn_linear(quern_scope_in(root, "hidden"), x, 64, NULL)); /* (N, 64) */
  return quern_nn_linear(quern_scope_in(root, "output"), x, 2, NULL);           /* (N, 2) */
}

/* Points of two spirals in a shuffled order, x (POINTS, 2) and label (POINTS,): odd seeds and even ones share no point. */
static void make_points(float *x, int32_t *label, int seed) {
  for (int i = 0; i < POINTS; i++) {
    int place = (i * 187 + 5) % POINTS, arm = place % 2; /* 187 has no factor in common with POINTS */
    float t = 0.1f + 0.9f * ((float)(place - arm) + (float)(seed % 2)) / POINTS;
    float angle = 9 * t + 3.14159265f * (float)arm;
    x[2 * i] = t * cosf(angle);
    x[2 * i + 1] = t * sinf(angle);
    label[i] = arm;
  }
}

/* The share of the points that an instance of the evaluation program labels as they are; -1 after an error. */
static double accuracy(quern_instance *evaluation, const float *x, const int32_t *label) {
  static int64_t guess[POINTS];
  int right = 0;
  if (quern_instance_bind(evaluation, "x", x, 2 * POINTS * sizeof *x) != QUERN_STATUS_OK) return -1;
  if (quern_instance_run_bound(evaluation, (void *[]){guess}) != QUERN_STATUS_OK) return -1;
  for (int i = 0; i < POINTS; i++) right += guess[i] == label[i];
  return (double)right / POINTS;
}

int main(int argc, char **argv) {
  static float x[2 * POINTS], new_x[2 * POINTS];
  static int32_t label[POINTS], new_label[POINTS];
  make_points(x, label, 0);
  make_points(new_x, new_label, 1);

  /* Expressions: nothing is computed yet. in (64, 2), labels (64,), loss () */
  quern_context *ctx;
  quern_model *model;
  quern_model_options model_options = QUERN_INIT(quern_model_options);
  model_options.seed = 1;
  TRY(quern_context_new(&ctx, NULL));
  TRY(quern_model_new(&model, ctx, &model_options));
  quern_tensor *in = quern_input(ctx, "x", QUERN_DTYPE_F32, QUERN_LIST(BATCH, 2));
  quern_tensor *labels = quern_input(ctx, "label", QUERN_DTYPE_I32, QUERN_LIST(BATCH));
  quern_tensor *loss = quern_cross_entropy(network(model, in), labels, NULL);
  quern_step *step; /* AdamW: the gradients of the loss and the next value of every state */
  TRY(quern_step_new(&step, model, loss, NULL));
  quern_model_begin(model, false); /* another expression over the same parameters, here for all points: (512,) of i64 */
  quern_tensor *all = quern_input(ctx, "x", QUERN_DTYPE_F32, QUERN_LIST(POINTS, 2));
  quern_tensor *guess = quern_argmax(network(model, all), 1, false);

  /* Programs: two graphs compiled for the device. Only the first has updates. */
  quern_program *train_program, *use_program;
  quern_program_options train_options = QUERN_INIT(quern_program_options),
                        use_options = QUERN_INIT(quern_program_options);
  train_options.device = use_options.device = argc > 1 ? argv[1] : "cpu";
  train_options.n_updates = quern_step_updates(step, &train_options.updates);
  use_options.inference = true;
  TRY(quern_program_compile(&train_program, ctx, 1, &loss, &train_options));
  TRY(quern_program_compile(&use_program, ctx, 1, &guess, &use_options));

  /* Instances own the states. The evaluation shares those of the training. */
  quern_instance *training, *evaluation, *loaded;
  TRY(quern_instance_new(&training, train_program));
  TRY(quern_instance_init_states(training, model));
  TRY(quern_instance_new_with(&evaluation, use_program, training));

  /* The loop: inputs are bound by name and read where they lie; one step reads the next 64 of the shuffled points. */
  float lr = 0.01f, loss_now = 0;
  TRY(quern_instance_bind(training, "lr", &lr, sizeof lr));
  for (int i = 0; i < STEPS; i++) {
    int first = i % BATCHES * BATCH;
    if (i == STEPS * 3 / 4) lr = 0.002f;
    TRY(quern_instance_bind(training, "x", x + 2 * first, 2 * BATCH * sizeof *x));
    TRY(quern_instance_bind(training, "label", label + first, BATCH * sizeof *label));
    TRY(quern_instance_run_bound(training, (void *[]){&loss_now}));
    if (i == 0 || (i + 1) % 50 == 0) {
      double seen = accuracy(evaluation, x, label), unseen = accuracy(evaluation, new_x, new_label);
      printf("step %3d/%d | loss %.4f | right %5.1f %%, of new points %5.1f %%\n", i + 1, STEPS, (double)loss_now,
             100 * seen, 100 * unseen);
    }
  }

  /* All states to a file, and those of an evaluation out of it: the file has AdamW's moments as well, which are passed over. */
  TRY(quern_instance_save_states(training, "train_mlp.safetensors"));
  TRY(quern_instance_new(&loaded, use_program));
  TRY(quern_instance_load_states(loaded, "train_mlp.safetensors", QUERN_LOAD_UNEXPECTED));
  remove("train_mlp.safetensors");
  double before = accuracy(evaluation, new_x, new_label), after = accuracy(loaded, new_x, new_label);
  printf("from the file: right %.1f %% of new points\n", 100 * after);

  quern_instance_free(loaded);
  quern_instance_free(evaluation);
  quern_instance_free(training);
  quern_program_free(use_program);
  quern_program_free(train_program);
  quern_step_free(step);
  quern_model_free(model);
  quern_context_free(ctx);
  return loss_now < 0.1f && before > 0.97 && after == before ? 0 : 1;
}
