/* tests/optim/test_accumulate.c -- batches in parts: against the whole batch, against figures by hand, buffers, masks, the scaler,
** memory, threads, wrong calls
*/
#include <math.h>

#include "optim/runner.h"
#include "quern/models.h"

enum { ROWS = 12, WIDTH = 5, HIDDEN = 7, OUT = 3, STEPS = 4 };

/* ---- programs of steps ---------------------------------------------------------------------------------- */

/* Trained parameters begin as numbers that depend on the name, the scale as 65536; everything else stays zero. */
static void start(const struct runner *r) {
  for (size_t i = 0; i < quern_program_state_count(r->program); i++) {
    quern_slot slot = QUERN_INIT(quern_slot);
    EXPECT_OK(quern_program_state(r->program, i, &slot));
    bool scale = strcmp(slot.name, "scaler.scale") == 0, f64 = slot.dtype == QUERN_DTYPE_F64;
    if (!scale && (strchr(slot.name, '.') == NULL || strncmp(slot.name, "optim.", 6) == 0)) continue;
    if (!f64 && slot.dtype != QUERN_DTYPE_F32) continue;
    size_t n = slot.bytes / (f64 ? 8 : 4);
    double *wide = malloc(n * sizeof *wide);
    float *narrow = malloc(n * sizeof *narrow);
    assert_true(wide != NULL && narrow != NULL);
    test_fill(n, wide, strlen(slot.name) * 7 + (unsigned char)slot.name[strlen(slot.name) - 1]);
    for (size_t k = 0; k < n; k++) narrow[k] = scale ? 65536 : (float)wide[k] / 4;
    EXPECT_OK(quern_instance_set_state(r->instance, i, f64 ? (const void *)wide : narrow));
    free(wide);
    free(narrow);
  }
}

/* ---- the whole batch ------------------------------------------------------------------------------------ */

static quern_tensor *mlp_loss(quern_model *model, size_t n, quern_tensor *const *inputs, void *user) {
  (void)user;
  assert_int_equal(n, 2);
  quern_tensor *y = quern_mlp(quern_model_scope(model), inputs[0], 1, (const int64_t[]){HIDDEN},
                              quern_tensor_dim(inputs[1], 1), "tanh");
  return quern_mse_loss(y, inputs[1], QUERN_REDUCTION_MEAN);
}

struct outcome {
  double loss[STEPS], norm[STEPS], w0[HIDDEN * WIDTH], b0[HIDDEN], w1[OUT * HIDDEN], v[HIDDEN * WIDTH];
  uint64_t step;
};

/* Steps of an MLP in f64; parts 0: quern_step_new. */
static struct outcome train_mlp(int64_t parts, const quern_optim_options *options) {
  struct outcome o;
  quern_model_options how = QUERN_INIT(quern_model_options);
  quern_model *model;
  quern_step *step;
  struct runner r;
  test_renew();
  how.dtype = QUERN_DTYPE_F64;
  EXPECT_OK(quern_model_new(&model, ctx, &how));
  quern_tensor *inputs[] = {quern_input(ctx, "x", QUERN_DTYPE_F64, QUERN_LIST(ROWS, WIDTH)),
                            quern_input(ctx, "y", QUERN_DTYPE_F64, QUERN_LIST(ROWS, OUT))};
  quern_tensor *loss;
  if (parts == 0) {
    loss = mlp_loss(model, 2, inputs, NULL);
    EXPECT_OK(quern_step_new(&step, model, loss, options));
  } else {
    EXPECT_OK(quern_step_accumulate(&step, model, parts, 2, inputs, mlp_loss, NULL, options, &loss));
  }
  compile(&r, step, 2, (quern_tensor *[]){loss, quern_step_norm(step)});
  start(&r);
  double x[ROWS * WIDTH], y[ROWS * OUT], lr = 0.05;
  for (int t = 0; t < STEPS; t++) {
    test_fill(ROWS * WIDTH, x, (uint64_t)t + 1);
    test_fill(ROWS * OUT, y, (uint64_t)t + 100);
    EXPECT_OK(
        quern_instance_run(r.instance, (const void *const[]){x, y, &lr}, (void *const[]){&o.loss[t], &o.norm[t]}));
  }
  get(&r, "layers.0.weight", o.w0);
  get(&r, "layers.0.bias", o.b0);
  get(&r, "layers.1.weight", o.w1);
  get(&r, "optim.layers.0.weight.v", o.v);
  get(&r, "step", &o.step);
  end(&r);
  quern_step_free(step);
  quern_model_free(model);
  return o;
}

static double furthest(size_t n, const double *a, const double *b) {
  double most = 0;
  for (size_t i = 0; i < n; i++) most = fmax(most, fabs(a[i] - b[i]));
  return most;
}

static void as_whole(void **state) {
  (void)state;
  quern_optim_options options = QUERN_INIT(quern_optim_options);
  options.clip_norm = 0.1;
  struct outcome whole = train_mlp(0, &options), one = train_mlp(1, &options);
  assert_memory_equal(&whole, &one, sizeof whole);
  assert_true(whole.norm[0] > 0.1); /* it is clipped */
  for (int64_t parts = 2; parts <= ROWS; parts++) {
    if (ROWS % parts != 0) continue;
    struct outcome o = train_mlp(parts, &options);
    assert_true(furthest(STEPS, o.loss, whole.loss) <= 1e-12);
    assert_true(furthest(STEPS, o.norm, whole.norm) <= 1e-12);
    assert_true(furthest(HIDDEN * WIDTH, o.w0, whole.w0) <= 1e-12);
    assert_true(furthest(HIDDEN, o.b0, whole.b0) <= 1e-12);
    assert_true(furthest(OUT * HIDDEN, o.w1, whole.w1) <= 1e-12);
    assert_true(furthest(HIDDEN * WIDTH, o.v, whole.v) <= 1e-12);
    assert_int_equal(o.step, STEPS);
  }
}

/* The scale is a power of two: it changes no bit. */
static void scaled_as_not(void **state) {
  (void)state;
  quern_scaler_options scaling = QUERN_INIT(quern_scaler_options);
  quern_optim_options options = QUERN_INIT(quern_optim_options);
  struct outcome plain = train_mlp(3, &options);
  options.scaler = &scaling;
  struct outcome scaled = train_mlp(3, &options);
  assert_memory_equal(&plain, &scaled, sizeof plain);
}

/* ---- by hand -------------------------------------------------------------------------------------------- */

/* mean over the rows that count of w x: with w of one element its gradient is the mean of x. */
static quern_tensor *masked_loss(quern_model *model, size_t n, quern_tensor *const *inputs, void *user) {
  (void)n;
  quern_scope *scope = quern_scope_in(quern_model_scope(model), "a");
  quern_tensor *w = quern_scope_parameter(scope, "w", QUERN_SCALAR, (quern_init){QUERN_INIT_CONSTANT, 1, 0});
  quern_tensor *x = quern_mul(inputs[0], w), *scale = user;
  quern_tensor *sum = quern_sum(quern_mul(x, inputs[1]), QUERN_ALL, false);
  quern_tensor *mean = quern_div(sum, quern_sum(inputs[1], QUERN_ALL, false));
  return scale != NULL ? quern_mul(mean, scale) : mean;
}

/* Parts count alike, however many of their rows do; what is no input is the same for all parts. */
static void means_of_means(void **state) {
  (void)state;
  quern_model *model;
  quern_step *step;
  struct runner r;
  quern_optim_options options = QUERN_INIT(quern_optim_options);
  options.kind = QUERN_OPTIM_SGD;
  options.weight_decay = 0;
  EXPECT_OK(quern_model_new(&model, ctx, NULL));
  quern_tensor *inputs[] = {quern_input(ctx, "x", QUERN_DTYPE_F32, QUERN_LIST(6)),
                            quern_input(ctx, "mask", QUERN_DTYPE_F32, QUERN_LIST(6))};
  quern_tensor *scale = quern_input(ctx, "scale", QUERN_DTYPE_F32, QUERN_SCALAR), *loss;
  EXPECT_OK(quern_step_accumulate(&step, model, 2, 2, inputs, masked_loss, scale, &options, &loss));
  compile(&r, step, 2, (quern_tensor *[]){loss, quern_step_norm(step)});
  const float x[] = {1, 2, 3, 10, 20, 30}, mask[] = {1, 1, 1, 0, 0, 1}, three = 3, lr = 0.5F;
  float w = 2, got, norm;
  set(&r, "a.w", &w);
  EXPECT_OK(quern_instance_run(r.instance, (const void *const[]){x, mask, &three, &lr}, (void *const[]){&got, &norm}));
  assert_true(got == 96);  /* 3 times 2 times the mean of 2 and 30 */
  assert_true(norm == 48); /* 3 times that mean */
  get(&r, "a.w", &w);
  assert_true(w == 2 - 24);
  end(&r);
  quern_step_free(step);
  quern_model_free(model);
}

/* ---- what layers keep and draw -------------------------------------------------------------------------- */

static quern_tensor *norm_loss(quern_model *model, size_t n, quern_tensor *const *inputs, void *user) {
  (void)n, (void)user;
  quern_scope *scope = quern_scope_in(quern_model_scope(model), "norm");
  return quern_mean(quern_square(quern_nn_batch_norm(scope, inputs[0], NULL)), QUERN_ALL, false);
}

/* Running statistics go from part to part. */
static void running_statistics(void **state) {
  (void)state;
  enum { PARTS = 3, EACH = 4 };
  quern_model_options how = QUERN_INIT(quern_model_options);
  quern_model *model;
  quern_step *step;
  struct runner r;
  how.dtype = QUERN_DTYPE_F64;
  EXPECT_OK(quern_model_new(&model, ctx, &how));
  quern_tensor *x = quern_input(ctx, "x", QUERN_DTYPE_F64, QUERN_LIST(PARTS * EACH, 1)), *loss;
  EXPECT_OK(quern_step_accumulate(&step, model, PARTS, 1, &x, norm_loss, NULL, NULL, &loss));
  compile(&r, step, 1, &loss);
  double in[PARTS * EACH], lr = 0, mean = 0.5, var = 2, out, got;
  int64_t batches = 5;
  test_fill(PARTS * EACH, in, 3);
  set(&r, "norm.running_mean", &mean);
  set(&r, "norm.running_var", &var);
  set(&r, "norm.num_batches_tracked", &batches);
  EXPECT_OK(quern_instance_run(r.instance, (const void *const[]){in, &lr}, (void *const[]){&out}));
  for (int p = 0; p < PARTS; p++) {
    double sum = 0, squares = 0;
    for (int i = 0; i < EACH; i++) sum += in[p * EACH + i];
    for (int i = 0; i < EACH; i++) squares += pow(in[p * EACH + i] - sum / EACH, 2);
    mean = 0.9 * mean + 0.1 * sum / EACH;
    var = 0.9 * var + 0.1 * squares / (EACH - 1);
  }
  get(&r, "norm.running_mean", &got);
  assert_true(fabs(got - mean) < 1e-14);
  get(&r, "norm.running_var", &got);
  assert_true(fabs(got - var) < 1e-14);
  get(&r, "norm.num_batches_tracked", &batches);
  assert_int_equal(batches, 5 + PARTS);
  end(&r);
  quern_step_free(step);
  quern_model_free(model);
}

/* The gradient of w is the mean of the masks, 0 or 2, over rows. */
static quern_tensor *drop_loss(quern_model *model, size_t n, quern_tensor *const *inputs, void *user) {
  (void)n, (void)user;
  quern_scope *scope = quern_scope_in(quern_model_scope(model), "drop");
  quern_tensor *w = quern_scope_parameter(scope, "w", QUERN_LIST(64), (quern_init){QUERN_INIT_CONSTANT, 1, 0});
  quern_tensor *x = quern_nn_dropout(scope, quern_mul(inputs[0], w), 0.5);
  return quern_sum(quern_mean(x, 1, (const int64_t[]){0}, false), QUERN_ALL, false);
}

/* The gradient of drop_loss of rows of ones in so many parts, at a step. */
static void masks_of(int64_t rows, int64_t parts, uint64_t at, float g[64]) {
  quern_model *model;
  quern_step *step;
  struct runner r;
  test_renew();
  EXPECT_OK(quern_model_new(&model, ctx, NULL));
  quern_tensor *x = quern_input(ctx, "x", QUERN_DTYPE_F32, QUERN_LIST(rows, 64));
  EXPECT_OK(quern_step_accumulate(&step, model, parts, 1, &x, drop_loss, NULL, NULL, NULL));
  compile(&r, step, 1, (quern_tensor *[]){quern_step_gradient(step, 0)});
  float in[4 * 64], lr = 0;
  for (int i = 0; i < 4 * 64; i++) in[i] = 1;
  set(&r, "step", &at);
  EXPECT_OK(quern_instance_run(r.instance, (const void *const[]){in, &lr}, (void *const[]){g}));
  end(&r);
  quern_step_free(step);
  quern_model_free(model);
}

/* Part p of step s draws what a step of number s parts + p draws: every part of every step has its own masks. */
static void masks(void **state) {
  (void)state;
  float both[64], first[64], second[64], next[64];
  int differ = 0;
  masks_of(2, 2, 7, both);
  masks_of(1, 1, 14, first);
  masks_of(1, 1, 15, second);
  masks_of(2, 2, 8, next);
  for (int i = 0; i < 64; i++) {
    assert_true(both[i] == (first[i] + second[i]) / 2);
    differ += first[i] != second[i];
  }
  assert_true(differ > 16 && differ < 48);
  assert_true(memcmp(both, next, sizeof both) != 0);
}

/* ---- narrow parameters and the scaler ------------------------------------------------------------------- */

static quern_tensor *product_loss(quern_model *model, size_t n, quern_tensor *const *inputs, void *user) {
  (void)n, (void)user;
  quern_scope *scope = quern_scope_in(quern_model_scope(model), "a");
  quern_tensor *w = quern_scope_parameter(scope, "w", QUERN_LIST(2), (quern_init){QUERN_INIT_CONSTANT, 1, 0});
  return quern_sum(quern_mul(inputs[0], w), QUERN_ALL, false);
}

/* Gradients of f16 are summed in f32: 2048 + 1 is not 2048. An overflow in any part skips the step. */
static void half(void **state) {
  (void)state;
  quern_model_options how = QUERN_INIT(quern_model_options);
  quern_scaler_options scaling = QUERN_INIT(quern_scaler_options);
  quern_optim_options options = QUERN_INIT(quern_optim_options);
  quern_model *model;
  quern_step *step;
  struct runner r;
  how.dtype = QUERN_DTYPE_F16;
  scaling.start = scaling.least = 1;
  options.scaler = &scaling;
  EXPECT_OK(quern_model_new(&model, ctx, &how));
  quern_tensor *x = quern_input(ctx, "x", QUERN_DTYPE_F16, QUERN_LIST(3, 2)), *loss;
  EXPECT_OK(quern_step_accumulate(&step, model, 3, 1, &x, product_loss, NULL, &options, &loss));
  quern_tensor *g = quern_step_gradient(step, 0);
  assert_int_equal(quern_tensor_dtype(g), QUERN_DTYPE_F32);
  assert_int_equal(quern_tensor_dtype(loss), QUERN_DTYPE_F16);
  compile(&r, step, 2, (quern_tensor *[]){g, quern_step_finite(step)});
  float lr = 0, sums[2], scale = 1;
  bool finite;
  const uint16_t whole[] = {0x6800, 0x3c00, 0x3c00, 0x3c00, 0x3c00, 0x4000}; /* 2048 1 | 1 1 | 1 2 */
  const uint16_t broken[] = {0x3c00, 0x3c00, 0x7c00, 0x3c00, 0x3c00, 0x3c00};
  set(&r, "scaler.scale", &scale);
  EXPECT_OK(quern_instance_run(r.instance, (const void *const[]){whole, &lr}, (void *const[]){sums, &finite}));
  assert_true(finite && sums[0] == 2050.0F / 3 && sums[1] == 4.0F / 3);
  EXPECT_OK(quern_instance_run(r.instance, (const void *const[]){broken, &lr}, (void *const[]){sums, &finite}));
  assert_false(finite);
  uint64_t count;
  get(&r, "step", &count);
  assert_int_equal(count, 1);
  end(&r);
  quern_step_free(step);
  quern_model_free(model);
}

/* ---- loops in the loop, low precision ------------------------------------------------------------------- */

static quern_tensor *lstm_loss(quern_model *model, size_t n, quern_tensor *const *inputs, void *user) {
  (void)n, (void)user;
  quern_tensor *logits = quern_lstm_lm(quern_model_scope(model), inputs[0], 20, 8, 8, 2, 0, NULL);
  return quern_cross_entropy(logits, inputs[1], NULL);
}

static quern_tensor *low_loss(quern_model *model, size_t n, quern_tensor *const *inputs, void *user) {
  static const quern_lm_options lm = {
      .size = sizeof lm, .vocabulary = 20, .positions = 8, .layers = 1, .width = 16, .heads = 2};
  (void)n, (void)user;
  quern_tensor *loss = quern_lm_loss(quern_model_scope(model), inputs[0], inputs[1], &lm), *low = NULL;
  return quern_autocast(model, 1, &loss, &low, NULL) == QUERN_STATUS_OK ? low : NULL;
}

enum { MOST_FIGURES = 8192 };

/* The parameters after two steps of SGD on tokens (6, 8); how many. */
static size_t train_tokens(quern_loss_of *loss_of, quern_dtype dtype, int64_t parts, double figures[MOST_FIGURES]) {
  quern_model_options how = QUERN_INIT(quern_model_options);
  quern_optim_options options = QUERN_INIT(quern_optim_options);
  quern_model *model;
  quern_step *step;
  quern_tensor *loss;
  struct runner r;
  size_t n = 0;
  test_renew();
  how.dtype = dtype;
  options.kind = QUERN_OPTIM_SGD;
  EXPECT_OK(quern_model_new(&model, ctx, &how));
  quern_tensor *inputs[] = {quern_input(ctx, "x", QUERN_DTYPE_I32, QUERN_LIST(6, 8)),
                            quern_input(ctx, "y", QUERN_DTYPE_I32, QUERN_LIST(6, 8))};
  EXPECT_OK(quern_step_accumulate(&step, model, parts, 2, inputs, loss_of, NULL, &options, &loss));
  compile(&r, step, 1, &loss);
  start(&r);
  int32_t x[48], y[48];
  for (int i = 0; i < 48; i++) x[i] = i * 7 % 20, y[i] = i * 3 % 20;
  double lr64 = 0.1, out[2];
  float lr32 = 0.1F;
  const void *lr = dtype == QUERN_DTYPE_F64 ? (const void *)&lr64 : &lr32;
  for (int t = 0; t < 2; t++)
    EXPECT_OK(quern_instance_run(r.instance, (const void *const[]){x, y, lr}, (void *const[]){out}));
  for (size_t i = 0; i < quern_model_parameter_count(model); i++) {
    quern_parameter p = QUERN_INIT(quern_parameter);
    EXPECT_OK(quern_model_parameter(model, i, &p));
    if (!p.trained) continue;
    size_t count = quern_tensor_bytes(p.tensor) / quern_dtype_size(dtype);
    assert_true(n + count <= MOST_FIGURES);
    if (dtype == QUERN_DTYPE_F64) get(&r, p.name, figures + n);
    float narrow[MOST_FIGURES];
    if (dtype == QUERN_DTYPE_F32) get(&r, p.name, narrow);
    for (size_t k = 0; k < count && dtype == QUERN_DTYPE_F32; k++) figures[n + k] = (double)narrow[k];
    n += count;
  }
  end(&r);
  quern_step_free(step);
  quern_model_free(model);
  return n;
}

static void loops_in_it(void **state) {
  (void)state;
  double whole[MOST_FIGURES], parts[MOST_FIGURES];
  size_t n = train_tokens(lstm_loss, QUERN_DTYPE_F64, 1, whole);
  assert_int_equal(train_tokens(lstm_loss, QUERN_DTYPE_F64, 3, parts), n);
  assert_true(n > 1000 && furthest(n, whole, parts) <= 1e-12);
}

/* Activations of bf16: a part rounds as the batch does, but for sums over its rows. */
static void autocast(void **state) {
  (void)state;
  double whole[MOST_FIGURES], parts[MOST_FIGURES];
  size_t n = train_tokens(low_loss, QUERN_DTYPE_F32, 1, whole);
  assert_int_equal(train_tokens(low_loss, QUERN_DTYPE_F32, 3, parts), n);
  assert_true(n > 1000 && furthest(n, whole, parts) <= 2e-3);
}

/* ---- memory and threads --------------------------------------------------------------------------------- */

static const quern_lm_options small = {
    .size = sizeof small, .vocabulary = 50, .positions = 16, .layers = 2, .width = 32, .heads = 4, .dropout = 0.1};

static quern_tensor *small_loss(quern_model *model, size_t n, quern_tensor *const *inputs, void *user) {
  (void)n, (void)user;
  return quern_lm_loss(quern_model_scope(model), inputs[0], inputs[1], &small);
}

enum { SMALL_T = 16, SMALL_BYTES = (50 + 16 + 2 * 32 * 12 + 4) * 32 * 4 };

struct small_step {
  quern_model *model;
  quern_step *step;
  quern_tensor *loss;
};

static void small_new(struct small_step *s, int64_t rows, int64_t parts) {
  EXPECT_OK(quern_model_new(&s->model, ctx, NULL));
  quern_tensor *inputs[] = {quern_input(ctx, "x", QUERN_DTYPE_I32, QUERN_LIST(rows, SMALL_T)),
                            quern_input(ctx, "y", QUERN_DTYPE_I32, QUERN_LIST(rows, SMALL_T))};
  EXPECT_OK(quern_step_accumulate(&s->step, s->model, parts, 2, inputs, small_loss, NULL, NULL, &s->loss));
}

static void small_free(struct small_step *s) {
  quern_step_free(s->step);
  quern_model_free(s->model);
}

/* The bytes of a step of so many rows in so many parts, without state. */
static int64_t small_bytes(int64_t rows, int64_t parts, int64_t limit) {
  struct small_step s;
  struct runner r;
  quern_memory_plan memory = QUERN_INIT(quern_memory_plan);
  test_renew();
  small_new(&s, rows, parts);
  compile_on(&r, s.step, 1, &s.loss, "interp", 1, limit);
  EXPECT_OK(quern_program_get_memory(r.program, &memory));
  quern_program_stats counts = QUERN_INIT(quern_program_stats);
  EXPECT_OK(quern_program_get_stats(r.program, &counts));
  assert_int_equal(counts.copies, 0);
  end(&r);
  small_free(&s);
  return memory.arena + memory.scratch;
}

/* A batch in parts needs what a part needs, and the sums of the gradients. */
static void arena(void **state) {
  (void)state;
  int64_t part = small_bytes(8, 1, 0), whole = small_bytes(32, 1, 0), parts = small_bytes(32, 4, 0);
  assert_true(parts <= part + SMALL_BYTES * 9 / 8);
  assert_true(parts < whole);
  assert_true(small_bytes(64, 8, 0) == parts);
  int64_t limit = parts - parts / 8; /* within which the part repeats what it needs twice */
  assert_true(small_bytes(32, 4, limit) <= limit);
}

static quern_status plan_small(void *user, int64_t parts, int64_t *bytes) {
  int *calls = user;
  ++*calls;
  *bytes = small_bytes(32, parts, 0);
  return QUERN_STATUS_OK;
}

static void choice(void **state) {
  (void)state;
  int64_t whole = small_bytes(32, 1, 0), four = small_bytes(32, 4, 0), parts, bytes;
  int calls = 0;
  EXPECT_OK(quern_step_parts(&parts, &bytes, 32, whole, plan_small, &calls));
  assert_true(parts == 1 && bytes == whole && calls == 1);
  EXPECT_OK(quern_step_parts(&parts, &bytes, 32, 0, plan_small, &calls));
  assert_true(parts == 1);
  EXPECT_OK(quern_step_parts(&parts, &bytes, 32, four, plan_small, &calls));
  assert_true(parts == 4 && bytes == four);
  EXPECT_OK(quern_step_parts(&parts, &bytes, 32, 1, plan_small, &calls));
  assert_true(parts == 32 && bytes > 1);
  EXPECT_ERROR(quern_step_parts(&parts, &bytes, 0, 1, plan_small, &calls), INVALID, "a batch of 0");
}

/* Three steps of a language model with dropout, in four parts, within a limit: embeddings, and the last loss. */
static void small_run(const char *device, int threads, int64_t limit, float embedding[50 * 32], float *loss) {
  struct small_step s;
  struct runner r;
  int32_t x[8 * SMALL_T], y[8 * SMALL_T];
  float lr = 0.01F;
  test_renew();
  small_new(&s, 8, 4);
  compile_on(&r, s.step, 1, &s.loss, device, threads, limit);
  start(&r);
  for (int i = 0; i < 8 * SMALL_T; i++) {
    x[i] = i * 7 % 50;
    y[i] = i % 11 == 0 ? -1 : i * 3 % 50;
  }
  for (int t = 0; t < 3; t++)
    EXPECT_OK(quern_instance_run(r.instance, (const void *const[]){x, y, &lr}, (void *const[]){loss}));
  get(&r, "transformer.wte.weight", embedding);
  end(&r);
  small_free(&s);
}

static void same_bits(void **state) {
  (void)state;
  float one[50 * 32], more[50 * 32], loss, again;
  int64_t need = small_bytes(8, 4, 0);
  small_run("interp", 1, 0, one, &loss);
  small_run("interp", 3, 0, more, &again);
  assert_memory_equal(one, more, sizeof one);
  small_run("interp", 1, need - need / 10, more, &again);
  assert_memory_equal(one, more, sizeof one);
  for (int threads = 1; threads <= 3; threads++) {
    small_run("cpu", threads, 0, more, &again);
    assert_memory_equal(one, more, sizeof one);
    assert_true(loss == again && loss > 0);
  }
}

/* ---- wrong calls, memory -------------------------------------------------------------------------------- */

static quern_tensor *no_loss(quern_model *model, size_t n, quern_tensor *const *inputs, void *user) {
  (void)model, (void)n, (void)inputs, (void)user;
  return NULL;
}

static quern_tensor *no_parameters(quern_model *model, size_t n, quern_tensor *const *inputs, void *user) {
  (void)model, (void)n, (void)user;
  return quern_sum(inputs[0], QUERN_ALL, false);
}

static void wrong(void **state) {
  (void)state;
  quern_model *model;
  quern_step *step;
  EXPECT_OK(quern_model_new(&model, ctx, NULL));
  quern_tensor *inputs[] = {quern_input(ctx, "x", QUERN_DTYPE_F32, QUERN_LIST(6, 4)),
                            quern_input(ctx, "y", QUERN_DTYPE_F32, QUERN_LIST(6, 4))};
  EXPECT_ERROR(quern_step_accumulate(&step, model, 4, 2, inputs, mlp_loss, NULL, NULL, NULL), SHAPE,
               "input 0 is f32(6, 4); its first axis must be a multiple of the 4 micro-batches");
  EXPECT_ERROR(quern_step_accumulate(&step, model, 2, 2, inputs, no_loss, NULL, NULL, NULL), INVALID,
               "the loss is the result of a call that failed");
  EXPECT_ERROR(quern_step_accumulate(&step, model, 2, 2, inputs, no_parameters, NULL, NULL, NULL), INVALID,
               "no parameters that are trained");
  assert_null(step);
  quern_scope *scope = quern_model_scope(model);
  quern_tensor *buffer = quern_scope_buffer(scope, "b", QUERN_DTYPE_F32, QUERN_SCALAR, 0);
  quern_scope_change(scope, buffer, quern_add_scalar(buffer, 1));
  EXPECT_ERROR(quern_step_accumulate(&step, model, 2, 2, inputs, mlp_loss, NULL, NULL, NULL), INVALID,
               "changes of an expression that was built before");
  quern_model_begin(model, true);
  EXPECT_OK(quern_step_accumulate(&step, model, 2, 2, inputs, mlp_loss, NULL, NULL, NULL));
  quern_step_free(step);
  EXPECT_ERROR(quern_step_accumulate(&step, model, 2, 2, inputs, no_parameters, NULL, NULL, NULL), INVALID,
               "step_accumulate: the loss depends on no trained parameter of the model, of which \"layers.0.weight\"");
  quern_model_free(model);
}

static void no_memory(void **state) {
  (void)state;
  for (struct fault fault = {0}; fault_next(&fault);) {
    quern_model *model = NULL;
    quern_step *step = NULL;
    test_renew();
    fault_begin(&fault);
    quern_status status = quern_model_new(&model, ctx, NULL);
    if (status == QUERN_STATUS_OK) {
      quern_tensor *x = quern_input(ctx, "x", QUERN_DTYPE_F32, QUERN_LIST(2, 64));
      status = quern_step_accumulate(&step, model, 2, 1, &x, drop_loss, NULL, NULL, NULL);
    }
    fault_end(&fault);
    quern_step_free(step);
    quern_model_free(model);
    EXPECT_FAULT(&fault, status);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(as_whole), TEST(scaled_as_not), TEST(means_of_means), TEST(running_statistics),
      TEST(masks),    TEST(half),          TEST(loops_in_it),    TEST(autocast),
      TEST(arena),    TEST(choice),        TEST(same_bits),      TEST(wrong),
      TEST(no_memory)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
