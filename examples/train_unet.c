/* examples/train_unet.c -- trains a small U-Net of its own to find discs among bars, with the loop of `quern train`
** The network, its loss and its samples are functions; checkpoints, evaluation and report.html are the trainer's.
** Killed at any moment and started again, it ends with the bits of a run that was not.
** Usage: train_unet [key=value ...], the keys of docs/train.md: train_unet steps=500 precision=bf16 memory=64MiB
** out=folder
*/
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "quern/train.h"

enum { SIDE = 32, PIXELS = SIDE * SIDE, SAMPLES = 512, LEVELS = 3, WIDTH = 8 };

/* ---- samples: a noisy picture and the mask of its discs, as functions of the sample's number ---- */

/* The next of a sequence of numbers from 0 to 1. */
static float chance(uint64_t *state) {
  *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return (float)(*state >> 40) / 16777216.0f;
}

static quern_status make_sample(void *self, int64_t index, void *const *fields) {
  float *image = fields[0], *mask = fields[1]; /* both (1, SIDE, SIDE) */
  uint64_t state = (uint64_t)index * UINT64_C(0x9e3779b97f4a7c15);
  (void)self;
  for (int p = 0; p < PIXELS; p++) image[p] = 0.4f * chance(&state), mask[p] = 0;
  for (int k = 0; k < 4; k++) { /* two bars that do not count, then two discs that do */
    float x = SIDE * chance(&state), y = SIDE * chance(&state), size = 3 + 4 * chance(&state);
    for (int p = 0; p < PIXELS; p++) {
      float row = (float)p / SIDE - y, column = (float)(p % SIDE) - x;
      bool disc = k >= 2 && row * row + column * column < size * size;
      if (disc || (k < 2 && fabsf(column) < 1.5f && fabsf(row) < 2 * size)) image[p] += 0.5f;
      if (disc) mask[p] = 1;
    }
  }
  return QUERN_STATUS_OK;
}

/* ---- the network ---- */

/* x (N, C, H, W) -> (N, width, H, W): twice a 3 x 3 convolution, a norm and an activation. */
static quern_tensor *block(quern_scope *scope, quern_tensor *x, int64_t width) {
  quern_nn_conv_options same = {.size = sizeof same, .same = true, .no_bias = true};
  for (int i = 0; i < 2; i++) {
    x = quern_nn_conv(quern_scope_at(scope, "conv", i), x, width, QUERN_LIST(3, 3), &same);
    x = quern_relu(quern_nn_batch_norm(quern_scope_at(scope, "norm", i), x, NULL));
  }
  return x;
}

/* x (N, 1, SIDE, SIDE) -> logits (N, 1, SIDE, SIDE). Each level halves the picture and doubles the channels; on the
** way up what the way down had at that size is laid beside it. */
static quern_tensor *unet(quern_scope *scope, quern_tensor *x) {
  quern_pool_options half = {.size = sizeof half, .window = {2, 2}};
  quern_nn_conv_options twice = {.size = sizeof twice, .stride = {2, 2}};
  quern_tensor *skips[LEVELS];
  for (int i = 0; i < LEVELS; i++) {
    skips[i] = block(quern_scope_at(scope, "down", i), x, WIDTH << i);
    x = i + 1 < LEVELS ? quern_max_pool(skips[i], &half) : skips[i];
  }
  for (int i = LEVELS - 2; i >= 0; i--) {
    x = quern_nn_conv_transpose(quern_scope_at(scope, "rise", i), x, WIDTH << i, QUERN_LIST(2, 2), &twice);
    quern_tensor *both[] = {skips[i], x}; /* (N, 2 width, H, W) */
    x = block(quern_scope_at(scope, "up", i), quern_concat(2, both, 1), WIDTH << i);
  }
  return quern_nn_conv(quern_scope_in(scope, "head"), x, 1, QUERN_LIST(1, 1), NULL);
}

/* Cross-entropy of the pixels minus the overlap of masks (Dice), which evaluations report as well. */
static quern_tensor *loss_of(quern_train_graph *graph, void *user) {
  (void)user;
  quern_tensor *mask = quern_train_graph_input(graph, "mask");
  quern_tensor *logits = unet(quern_train_graph_scope(graph), quern_train_graph_input(graph, "image"));
  quern_tensor *p = quern_sigmoid(logits);
  quern_tensor *both = quern_sum(quern_mul(p, mask), QUERN_LIST(1, 2, 3), false);         /* (N,) */
  quern_tensor *all = quern_sum(quern_add(p, mask), QUERN_LIST(1, 2, 3), false);          /* (N,) */
  quern_tensor *dice = quern_div(quern_mul_scalar(both, 2), quern_add_scalar(all, 1e-6)); /* (N,) */
  quern_train_graph_report(graph, "dice", dice);
  return quern_sub(quern_bce_loss(logits, mask, QUERN_REDUCTION_MEAN), quern_mean(dice, QUERN_ALL, false));
}

/* ---- the run ---- */

static bool on_step(void *user, const quern_train_record *r) {
  (void)user;
  if (r->step % 20 == 0) printf("step %3d | loss %7.4f | %.0f samples/s\n", (int)r->step, r->loss, r->per_second);
  return true;
}

static bool on_eval(void *user, const quern_eval_record *r) {
  (void)user;
  printf("eval %3d | loss %7.4f | dice %.3f\n", (int)r->step, r->loss, r->reports[0].value);
  return true;
}

/* Ends the program when a call failed. */
static void need(quern_status status) {
  if (status != QUERN_STATUS_OK) fprintf(stderr, "train_unet: %s\n", quern_last_error());
  if (status != QUERN_STATUS_OK) exit(1);
}

int main(int argc, char **argv) {
  static const char keys[] = "out=run-unet\nsteps=120\nlr=3e-3\neval_every=60\neval_part=0.125\n";
  const quern_field fields[] = {{"image", QUERN_DTYPE_F32, 3, {1, SIDE, SIDE}, 0},
                                {"mask", QUERN_DTYPE_F32, 3, {1, SIDE, SIDE}, 0}};
  const quern_train_callbacks callbacks = {.size = sizeof callbacks, .step = on_step, .eval = on_eval};
  quern_config *config;
  quern_source *data;
  need(quern_train_config(&config, NULL));
  need(quern_config_text(config, "train_unet", keys, sizeof keys - 1));
  for (int i = 1; i < argc; i++) need(quern_config_word(config, argv[i]));
  need(quern_source_call(&data, SAMPLES, 2, fields, make_sample, NULL, NULL));
  const quern_train_task task = {.size = sizeof task, .name = "unet", .loss = loss_of, .data = data};
  need(quern_train_with(&task, config, &callbacks, NULL));
  quern_source_free(data);
  quern_config_free(config);
  return 0;
}
