/* examples/classify_images.c -- a small convolutional network with BatchNorm that learns to name patterns in noise
** Training normalizes by the statistics of the batch and moves the running ones; the evaluation uses those.
** Usage: classify_images [cpu | cuda | opencl]. Exits with 1 when less than 95 % of new images are named right.
*/
#include <stdio.h>
#include <stdlib.h>

#include "quern/quern.h"

enum { N = 32, SIZE = 16, PIXELS = SIZE * SIZE, CLASSES = 4, STEPS = 80, TESTS = 16 };
static const char *const names[CLASSES] = {"rows", "columns", "checks", "disc"};

#define TRY(call)                                                                                                      \
  do {                                                                                                                 \
    if ((call) != QUERN_STATUS_OK) return fprintf(stderr, "classify_images: %s\n", quern_last_error()), 1;             \
  } while (0)

/* x (N, in, S, S) -> (N, out, S / 2, S / 2): convolution, BatchNorm, ReLU, and the greatest of each 2 x 2 */
static quern_tensor *stage(quern_scope *scope, quern_tensor *x, int64_t out) {
  quern_nn_conv_options conv = {.size = sizeof conv, .same = true, .no_bias = true}; /* BatchNorm has a bias */
  quern_pool_options pool = {.size = sizeof pool, .window = {2, 2}};
  x = quern_nn_conv(quern_scope_in(scope, "conv"), x, out, QUERN_LIST(3, 3), &conv); /* (N, out, S, S) */
  x = quern_relu(quern_nn_batch_norm(quern_scope_in(scope, "norm"), x, NULL));       /* (N, out, S, S) */
  return quern_max_pool(x, &pool);                                                   /* (N, out, S / 2, S / 2) */
}

/* image (N, 1, 16, 16) -> logits (N, 4) */
static quern_tensor *network(quern_model *model, quern_tensor *image) {
  quern_scope *root = quern_model_scope(model);
  quern_tensor *x = stage(quern_scope_at(root, "stage", 0), image, 16); /* (N, 16, 8, 8) */
  x = stage(quern_scope_at(root, "stage", 1), x, 32);                   /* (N, 32, 4, 4) */
  x = quern_mean(x, QUERN_LIST(2, 3), false);                           /* (N, 32): the mean over the image */
  return quern_nn_linear(quern_scope_in(root, "head"), x, CLASSES, NULL);
}

static float uniform(void) { return (float)rand() / (float)RAND_MAX; }

/* N images of (1, 16, 16) of random classes, places and periods, under as much noise as there is contrast */
static void make_batch(float *image, int32_t *label) {
  for (int n = 0; n < N; n++) {
    int class = rand() % CLASSES, period = 2 + rand() % 3, dy = rand() % 8, dx = rand() % 8;
    for (int p = 0; p < PIXELS; p++) {
      int y = p / SIZE + dy, x = p % SIZE + dx, row = y / period % 2, column = x / period % 2;
      int disc = (y - 11) * (y - 11) + (x - 11) * (x - 11) < (3 + period) * (3 + period);
      int on = class == 0 ? row : class == 1 ? column : class == 2 ? row ^ column : disc;
      image[n * PIXELS + p] = (float)on - 0.5f + 2 * (uniform() - 0.5f);
    }
    label[n] = class;
  }
}

int main(int argc, char **argv) {
  static float image[N * PIXELS];
  static int32_t label[N];
  static int64_t guess[N];

  /* Two expressions over the same parameters: the loss of a training batch, and the guess of an evaluation */
  quern_context *ctx;
  quern_model *model;
  TRY(quern_context_new(&ctx, NULL));
  TRY(quern_model_new(&model, ctx, NULL));
  quern_tensor *images = quern_input(ctx, "image", QUERN_DTYPE_F32, QUERN_LIST(N, 1, SIZE, SIZE));
  quern_tensor *labels = quern_input(ctx, "label", QUERN_DTYPE_I32, QUERN_LIST(N));
  quern_tensor *loss = quern_cross_entropy(network(model, images), labels, NULL); /* () */
  quern_optim_options optim = QUERN_INIT(quern_optim_options);
  optim.kind = QUERN_OPTIM_SGD, optim.momentum = 0.9, optim.nesterov = true, optim.weight_decay = 1e-4;
  quern_step *step; /* made before the next expression begins: it updates the running statistics as well */
  TRY(quern_step_new(&step, model, loss, &optim));
  quern_model_begin(model, false);
  quern_tensor *best = quern_argmax(network(model, images), 1, false); /* (N,) of i64 */

  quern_program *train_program, *use_program;
  quern_program_options train_options = QUERN_INIT(quern_program_options),
                        use_options = QUERN_INIT(quern_program_options);
  train_options.device = use_options.device = argc > 1 ? argv[1] : "cpu";
  train_options.n_updates = quern_step_updates(step, &train_options.updates);
  use_options.inference = true;
  TRY(quern_program_compile(&train_program, ctx, 1, &loss, &train_options));
  TRY(quern_program_compile(&use_program, ctx, 1, &best, &use_options));

  quern_instance *training, *evaluation; /* the second works on the states of the first */
  TRY(quern_instance_new(&training, train_program));
  TRY(quern_instance_init_states(training, model));
  TRY(quern_instance_new_with(&evaluation, use_program, training));

  float lr = 0.05f, loss_now = 0;
  TRY(quern_instance_bind(training, "image", image, sizeof image));
  TRY(quern_instance_bind(training, "label", label, sizeof label));
  TRY(quern_instance_bind(training, "lr", &lr, sizeof lr));
  TRY(quern_instance_bind(evaluation, "image", image, sizeof image));
  srand(1);
  for (int i = 0; i < STEPS; i++) {
    make_batch(image, label); /* where the inputs are bound: the run reads it there */
    TRY(quern_instance_run_bound(training, (void *[]){&loss_now}));
    if (i == 0 || (i + 1) % 20 == 0) printf("step %2d/%d | loss %.4f\n", i + 1, STEPS, (double)loss_now);
  }

  int right[CLASSES] = {0}, count[CLASSES] = {0}, all_right = 0;
  for (int i = 0; i < TESTS; i++) {
    make_batch(image, label); /* images that were not trained on */
    TRY(quern_instance_run_bound(evaluation, (void *[]){guess}));
    for (int n = 0; n < N; n++)
      count[label[n]]++, right[label[n]] += guess[n] == label[n], all_right += guess[n] == label[n];
  }
  for (int k = 0; k < CLASSES; k++) printf("%-8s %3d of %3d right\n", names[k], right[k], count[k]);
  printf("accuracy %.1f %%\n", 100.0 * all_right / (N * TESTS));

  quern_instance_free(evaluation);
  quern_instance_free(training);
  quern_program_free(use_program);
  quern_program_free(train_program);
  quern_step_free(step);
  quern_model_free(model);
  quern_context_free(ctx);
  return all_right >= N * TESTS * 95 / 100 ? 0 : 1;
}
