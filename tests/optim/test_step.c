/* tests/optim/test_step.c -- optimizers against PyTorch's figures; groups, clipping, averages, the scaler, wrong calls
** oracle.txt is made by tests/oracle/make_optim.py.
*/
#include <math.h>

#include "optim/runner.h"

enum { IN = 4, OUT = 3, ROWS = 6, STEPS = 7, PARAMETERS = OUT * IN + OUT };

/* ---- the problem of make_optim.py ----------------------------------------------------------------------- */

struct problem {
  quern_model *model;
  quern_tensor *w, *b, *x, *y, *loss;
  quern_dtype dtype;
};

static void set_up(struct problem *p, quern_dtype dtype) {
  quern_model_options options = QUERN_INIT(quern_model_options);
  options.dtype = p->dtype = dtype;
  EXPECT_OK(quern_model_new(&p->model, ctx, &options));
  quern_scope *scope = quern_scope_in(quern_model_scope(p->model), "layer");
  quern_init init = {QUERN_INIT_CONSTANT, 0, 0};
  p->w = quern_scope_parameter(scope, "weight", QUERN_LIST(OUT, IN), init);
  p->b = quern_scope_parameter(scope, "bias", QUERN_LIST(OUT), init);
  p->x = quern_input(ctx, "x", dtype, QUERN_LIST(ROWS, IN));
  p->y = quern_input(ctx, "y", dtype, QUERN_LIST(ROWS, OUT));
  p->loss = quern_mse_loss(quern_linear(p->x, p->w, p->b), p->y, QUERN_REDUCTION_MEAN);
}

static void fill_start(double *w, double *b, double *x, double *y) {
  const double bias[OUT] = {0.3, -0.2, 0.1};
  memcpy(b, bias, sizeof bias);
  for (int i = 0; i < OUT; i++)
    for (int j = 0; j < IN; j++) w[i * IN + j] = 0.1 * (i - j) + 0.05 * i * j;
  for (int i = 0; i < ROWS; i++) {
    for (int j = 0; j < IN; j++) x[i * IN + j] = ((3 * i + 5 * j) % 7) / 4.0 - 0.75;
    for (int j = 0; j < OUT; j++) y[i * OUT + j] = ((2 * i + 3 * j) % 5) / 3.0 - 0.5;
  }
}

/* ---- against PyTorch ------------------------------------------------------------------------------------ */

static const quern_optim_group groups[] = {{"*bias", 0.5, 0}, {"layer.*", 1, 0.1}}; /* the first that matches */

#define OPTIM(...)                                                                                                     \
  { .size = sizeof(quern_optim_options), .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, __VA_ARGS__ }
static const struct {
  const char *name;
  double lr;
  quern_optim_options options;
} cases[] = {
    {"sgd", 0.1, OPTIM(.kind = QUERN_OPTIM_SGD)},
    {"sgd_decay", 0.1, OPTIM(.kind = QUERN_OPTIM_SGD, .weight_decay = 0.2)},
    {"sgd_momentum", 0.1, OPTIM(.kind = QUERN_OPTIM_SGD, .momentum = 0.9, .dampening = 0.3)},
    {"sgd_nesterov", 0.1, OPTIM(.kind = QUERN_OPTIM_SGD, .momentum = 0.8, .nesterov = true, .weight_decay = 0.1)},
    {"adam", 0.05, OPTIM(.kind = QUERN_OPTIM_ADAM)},
    {"adam_decay",
     0.05,
     {.size = sizeof(quern_optim_options),
      .kind = QUERN_OPTIM_ADAM,
      .beta1 = 0.8,
      .beta2 = 0.95,
      .eps = 1e-6,
      .weight_decay = 0.1}},
    {"adam_amsgrad",
     0.2,
     {.size = sizeof(quern_optim_options),
      .kind = QUERN_OPTIM_ADAM,
      .beta1 = 0.5,
      .beta2 = 0.6,
      .eps = 1e-8,
      .amsgrad = true}},
    {"adamw", 0.05, OPTIM(.kind = QUERN_OPTIM_ADAMW, .weight_decay = 0.1)},
    {"adamw_amsgrad",
     0.2,
     {.size = sizeof(quern_optim_options),
      .kind = QUERN_OPTIM_ADAMW,
      .beta1 = 0.5,
      .beta2 = 0.6,
      .eps = 1e-8,
      .weight_decay = 0.1,
      .amsgrad = true}},
    {"adamw_groups", 0.05, OPTIM(.kind = QUERN_OPTIM_ADAMW, .weight_decay = 0.1, .n_groups = 2, .groups = groups)},
    {"lion",
     0.02,
     {.size = sizeof(quern_optim_options), .kind = QUERN_OPTIM_LION, .beta1 = 0.9, .beta2 = 0.99, .weight_decay = 0.1}},
    {"clip_norm", 0.1, OPTIM(.kind = QUERN_OPTIM_SGD, .clip_norm = 0.2)},
    {"clip_value", 0.1, OPTIM(.kind = QUERN_OPTIM_SGD, .clip_value = 0.05)},
    {"clip_both", 0.05, OPTIM(.kind = QUERN_OPTIM_ADAMW, .weight_decay = 0.01, .clip_norm = 0.3, .clip_value = 0.05)},
    {"ema", 0.1, OPTIM(.kind = QUERN_OPTIM_SGD, .ema = 0.9)},
};

/* The figures of a case: parameters, norm. */
static void read_oracle(const char *name, double out[PARAMETERS + 1]) {
  FILE *file = fopen("tests/optim/oracle.txt", "r");
  char line[2048];
  bool found = false;
  if (file == NULL) fail_msg("oracle.txt cannot be read");
  while (!found && fgets(line, sizeof line, file) != NULL) {
    size_t n = strcspn(line, " ");
    if (strlen(name) != n || memcmp(line, name, n) != 0) continue;
    found = true;
    char *at = line + n;
    for (int i = 0; i <= PARAMETERS; i++) out[i] = strtod(at, &at);
  }
  (void)fclose(file);
  if (!found) fail_msg("oracle.txt has no %s", name);
}

static void run_case(size_t k, const struct problem *p) {
  double w[OUT * IN], b[OUT], x[ROWS * IN], y[ROWS * OUT], lr, loss, norm, first_loss = 0, got[PARAMETERS],
                                                                           want[PARAMETERS + 1];
  quern_step *step;
  struct runner r;
  EXPECT_OK(quern_step_new(&step, p->model, p->loss, &cases[k].options));
  compile(&r, step, 2, (quern_tensor *[]){p->loss, quern_step_norm(step)});
  fill_start(w, b, x, y);
  set(&r, "layer.weight", w);
  set(&r, "layer.bias", b);
  for (int t = 0; t < STEPS; t++) {
    lr = cases[k].lr * (1 - 0.1 * t);
    EXPECT_OK(quern_instance_run(r.instance, (const void *const[]){x, y, &lr}, (void *const[]){&loss, &norm}));
    if (t == 0) first_loss = loss;
  }
  bool average = cases[k].options.ema > 0;
  get(&r, average ? "ema.layer.weight" : "layer.weight", got);
  get(&r, average ? "ema.layer.bias" : "layer.bias", got + OUT * IN);
  read_oracle(cases[k].name, want);
  for (int i = 0; i < PARAMETERS; i++)
    if (fabs(got[i] - want[i]) > 1e-12)
      fail_msg("%s: parameter %d is %.17g, expected %.17g", cases[k].name, i, got[i], want[i]);
  assert_true(fabs(norm - want[PARAMETERS]) <= 1e-12);
  assert_true(loss < first_loss);
  uint64_t count;
  get(&r, "step", &count);
  assert_int_equal(count, STEPS);
  end(&r);
  quern_step_free(step);
}

static void as_pytorch(void **state) {
  (void)state;
  for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
    struct problem p;
    test_renew();
    set_up(&p, QUERN_DTYPE_F64);
    run_case(k, &p);
    quern_model_free(p.model);
  }
}

/* ---- the scaler ----------------------------------------------------------------------------------------- */

struct scaled {
  float scale, w[OUT * IN];
  int64_t good, skipped;
  uint64_t step;
};

static struct scaled look(const struct runner *r) {
  struct scaled s;
  get(r, "scaler.scale", &s.scale);
  get(r, "scaler.good", &s.good);
  get(r, "scaler.skipped", &s.skipped);
  get(r, "layer.weight", s.w);
  get(r, "step", &s.step);
  return s;
}

/* An overflow halves the scale, within its limits, and leaves everything else as it was; good steps let it grow. */
static void scaler(void **state) {
  (void)state;
  struct problem p;
  quern_step *step;
  struct runner r;
  quern_scaler_options scaling = {sizeof scaling, 4096, 2, 0.5, 2, 1024, 8192, false};
  quern_optim_options options = QUERN_INIT(quern_optim_options);
  options.scaler = &scaling;
  set_up(&p, QUERN_DTYPE_F32);
  EXPECT_OK(quern_step_new(&step, p.model, p.loss, &options));
  compile(&r, step, 1, (quern_tensor *[]){quern_step_finite(step)});
  float start = 4096, x[ROWS * IN], y[ROWS * OUT], lr = 0.1F;
  set(&r, "scaler.scale", &start);
  for (int i = 0; i < ROWS * IN; i++) x[i] = (float)(i % 5) - 2;
  for (int i = 0; i < ROWS * OUT; i++) y[i] = (float)(i % 3);
  const void *const inputs[] = {x, y, &lr};
  const struct {
    bool overflow;
    float scale;
    int64_t good, skipped;
  } turns[] = {{false, 4096, 1, 0}, {false, 8192, 0, 0}, {false, 8192, 1, 0}, {true, 4096, 0, 1},  {true, 2048, 0, 2},
               {true, 1024, 0, 3},  {true, 1024, 0, 4},  {false, 1024, 1, 4}, {false, 2048, 0, 4}, {false, 2048, 1, 4}};
  for (size_t t = 0; t < sizeof turns / sizeof *turns; t++) {
    struct scaled before = look(&r);
    bool finite;
    x[7] = turns[t].overflow ? 3e38F : 1;
    EXPECT_OK(quern_instance_run(r.instance, inputs, (void *const[]){&finite}));
    struct scaled after = look(&r);
    assert_int_equal(finite, !turns[t].overflow);
    assert_true(after.scale == turns[t].scale);
    assert_int_equal(after.good, turns[t].good);
    assert_int_equal(after.skipped, turns[t].skipped);
    assert_int_equal(after.step, before.step + (finite ? 1 : 0));
    assert_int_equal(memcmp(after.w, before.w, sizeof after.w) == 0, !finite);
    quern_scaler_stats stats = {.size = sizeof stats};
    EXPECT_OK(quern_scaler_get_stats(r.instance, &stats));
    assert_true(stats.scale == (double)after.scale && stats.interval == 0);
    assert_int_equal(stats.good, after.good);
    assert_int_equal(stats.skipped, after.skipped);
    assert_int_equal(stats.made, after.step);
    assert_true(stats.success_rate == (double)after.step / (double)(t + 1));
  }
  end(&r);
  quern_step_free(step);
  quern_model_free(p.model);
}

/* Overflows double the interval, growths that follow growths halve it, within a sixteenth and sixteen times. */
static void adaptive_scaler(void **state) {
  (void)state;
  struct problem p;
  quern_step *step;
  struct runner r;
  quern_scaler_options scaling = {sizeof scaling, 4096, 2, 0.5, 4, 1, 0x1p60, true};
  quern_optim_options options = QUERN_INIT(quern_optim_options);
  quern_scaler_stats stats = {.size = sizeof stats};
  options.scaler = &scaling;
  set_up(&p, QUERN_DTYPE_F32);
  EXPECT_OK(quern_step_new(&step, p.model, p.loss, &options));
  compile(&r, step, 1, (quern_tensor *[]){quern_step_finite(step)});
  EXPECT_ERROR(quern_scaler_get_stats(r.instance, &stats), STATE,
               "scaler_get_stats: the program has no scaler that has begun");
  EXPECT_OK(quern_instance_init_states(r.instance, p.model));
  float x[ROWS * IN], y[ROWS * OUT], lr = 0;
  for (int i = 0; i < ROWS * IN; i++) x[i] = (float)(i % 5) - 2;
  for (int i = 0; i < ROWS * OUT; i++) y[i] = (float)(i % 3);
  const void *const inputs[] = {x, y, &lr};
  const struct {
    bool overflow;
    int steps;
    int64_t interval, good;
    double scale;
  } turns[] = {{false, 3, 4, 3, 4096},  {false, 1, 4, 0, 8192},   {false, 4, 2, 0, 16384}, {false, 2, 1, 0, 32768},
               {false, 1, 1, 0, 65536}, {true, 1, 2, 0, 32768},   {false, 2, 2, 0, 65536}, {true, 1, 4, 0, 32768},
               {false, 4, 4, 0, 65536}, {false, 4, 2, 0, 131072}, {true, 5, 64, 0, 4096},  {true, 1, 64, 0, 2048}};
  for (size_t t = 0; t < sizeof turns / sizeof *turns; t++) {
    x[7] = turns[t].overflow ? 3e38F : 1;
    for (int i = 0; i < turns[t].steps; i++)
      EXPECT_OK(quern_instance_run(r.instance, inputs, (void *const[]){&(bool){false}}));
    EXPECT_OK(quern_scaler_get_stats(r.instance, &stats));
    if (stats.interval != turns[t].interval || stats.good != turns[t].good || stats.scale != turns[t].scale)
      fail_msg("turn %zu: interval %lld, good %lld, scale %g", t, (long long)stats.interval, (long long)stats.good,
               stats.scale);
  }
  assert_int_equal(stats.skipped, 8);
  assert_int_equal(stats.made, 21);
  end(&r);
  quern_step_free(step);
  quern_model_free(p.model);
}

/* The scale is a power of two: without an overflow it changes no bit. */
static void scaler_changes_nothing(void **state) {
  (void)state;
  float w[2][OUT * IN];
  for (int k = 0; k < 2; k++) {
    struct problem p;
    quern_step *step;
    struct runner r;
    quern_scaler_options scaling = QUERN_INIT(quern_scaler_options);
    quern_optim_options options = QUERN_INIT(quern_optim_options);
    options.scaler = k == 1 ? &scaling : NULL;
    test_renew();
    set_up(&p, QUERN_DTYPE_F32);
    EXPECT_OK(quern_step_new(&step, p.model, p.loss, &options));
    compile(&r, step, 1, &p.loss);
    float start = 65536, x[ROWS * IN], y[ROWS * OUT], lr = 0.1F, loss;
    if (k == 1) set(&r, "scaler.scale", &start);
    for (int i = 0; i < ROWS * IN; i++) x[i] = (float)(i % 5) - 2;
    for (int i = 0; i < ROWS * OUT; i++) y[i] = (float)(i % 3);
    for (int t = 0; t < 5; t++)
      EXPECT_OK(quern_instance_run(r.instance, (const void *const[]){x, y, &lr}, (void *const[]){&loss}));
    get(&r, "layer.weight", w[k]);
    end(&r);
    quern_step_free(step);
    quern_model_free(p.model);
  }
  assert_memory_equal(w[0], w[1], sizeof w[0]);
}

/* ---- wrong calls, memory -------------------------------------------------------------------------------- */

static void wrong(void **state) {
  (void)state;
  struct problem p;
  quern_step *step;
  set_up(&p, QUERN_DTYPE_F64);
  quern_optim_options o = QUERN_INIT(quern_optim_options);
  o.beta1 = 1;
  EXPECT_ERROR(quern_step_new(&step, p.model, p.loss, &o), INVALID,
               "step: beta1 is 1; must be at least 0 and less than 1");
  o = QUERN_INIT(quern_optim_options);
  o.nesterov = true;
  EXPECT_ERROR(quern_step_new(&step, p.model, p.loss, &o), INVALID, "nesterov needs momentum above 0");
  o = QUERN_INIT(quern_optim_options);
  o.n_groups = 2;
  EXPECT_ERROR(quern_step_new(&step, p.model, p.loss, &o), INVALID, "the list of 2 groups is null");
  o = QUERN_INIT(quern_optim_options);
  o.kind = (quern_optim_kind)9;
  EXPECT_ERROR(quern_step_new(&step, p.model, p.loss, &o), INVALID, "no optimizer number 9");
  o = QUERN_INIT(quern_optim_options);
  o.size = 3;
  EXPECT_ERROR(quern_step_new(&step, p.model, p.loss, &o), INVALID, "step: quern_optim_options has a size of 3 bytes");
  quern_scaler_options s = QUERN_INIT(quern_scaler_options);
  s.start = 1;
  o = QUERN_INIT(quern_optim_options);
  o.scaler = &s;
  EXPECT_ERROR(quern_step_new(&step, p.model, p.loss, &o), INVALID, "the scale starts at 1; must be within 1024");
  EXPECT_ERROR(quern_step_new(&step, p.model, p.x, NULL), SHAPE, "");
  assert_null(step);
  quern_model *empty;
  EXPECT_OK(quern_model_new(&empty, ctx, NULL));
  EXPECT_ERROR(quern_step_new(&step, empty, p.loss, NULL), INVALID, "no parameters that are trained");
  quern_model_free(empty);
  EXPECT_ERROR(quern_step_from(&step, p.model, (quern_tensor *[]){p.w, p.w}, NULL), SHAPE,
               "gradient 1 is not shaped like \"layer.bias\"");
  quern_model_free(p.model);
}

/* A parameter whose group has no rate stays, and needs no moments. */
static void frozen(void **state) {
  (void)state;
  struct problem p;
  quern_step *step;
  struct runner r;
  const quern_optim_group group = {"layer.w*", 0, 0};
  quern_optim_options o = QUERN_INIT(quern_optim_options);
  o.n_groups = 1;
  o.groups = &group;
  set_up(&p, QUERN_DTYPE_F64);
  EXPECT_OK(quern_step_new(&step, p.model, p.loss, &o));
  const quern_update *updates;
  assert_int_equal(quern_step_updates(step, &updates), 4); /* m, v and p of the bias, and the step */
  compile(&r, step, 1, &p.loss);
  double w[OUT * IN], b[OUT], x[ROWS * IN], y[ROWS * OUT], lr = 0.1, loss, after[OUT * IN];
  fill_start(w, b, x, y);
  set(&r, "layer.weight", w);
  EXPECT_OK(quern_instance_run(r.instance, (const void *const[]){x, y, &lr}, (void *const[]){&loss}));
  get(&r, "layer.weight", after);
  assert_memory_equal(w, after, sizeof w);
  end(&r);
  quern_step_free(step);
  quern_model_free(p.model);
}

/* A gate on the number of steps asked for: after one that was not finite none is made, though they could be. */
static void gate(void **state) {
  (void)state;
  struct problem p;
  quern_step *step;
  struct runner r;
  quern_optim_options o = QUERN_INIT(quern_optim_options);
  set_up(&p, QUERN_DTYPE_F64);
  quern_tensor *asked = quern_input(ctx, "asked", QUERN_DTYPE_U64, 0, NULL);
  o.guard = true;
  o.gate = quern_eq(quern_model_step(p.model), asked);
  EXPECT_OK(quern_step_new(&step, p.model, p.loss, &o));
  compile(&r, step, 1, (quern_tensor *[]){quern_step_finite(step)});
  double w[OUT * IN], b[OUT], x[ROWS * IN], y[ROWS * OUT], lr = 0.1, before[OUT * IN], after[OUT * IN];
  uint64_t made;
  fill_start(w, b, x, y);
  set(&r, "layer.weight", w);
  for (uint64_t t = 0; t < 5; t++) {
    unsigned char finite;
    x[3] = t == 2 ? (double)INFINITY : 0.5;
    get(&r, "layer.weight", before);
    EXPECT_OK(quern_instance_run(r.instance, (const void *const[]){x, y, &t, &lr}, (void *const[]){&finite}));
    get(&r, "layer.weight", after);
    assert_int_equal(finite, t < 2);
    assert_int_equal(memcmp(before, after, sizeof after) != 0, t < 2);
  }
  get(&r, "step", &made);
  assert_int_equal(made, 2);
  end(&r);
  quern_step_free(step);
  o.gate = p.loss;
  EXPECT_ERROR(quern_step_new(&step, p.model, p.loss, &o), INVALID, "the gate is f64(); must be a bool scalar");
  o.guard = false;
  EXPECT_ERROR(quern_step_new(&step, p.model, p.loss, &o), INVALID, "a gate needs a guard and no scaler");
  quern_model_free(p.model);
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
      quern_tensor *w =
          quern_scope_parameter(quern_model_scope(model), "w", QUERN_LIST(3), (quern_init){QUERN_INIT_CONSTANT, 1, 0});
      quern_tensor *loss = quern_sum(quern_square(w), QUERN_ALL, false);
      status = quern_step_new(&step, model, loss, NULL);
    }
    fault_end(&fault);
    quern_step_free(step);
    quern_model_free(model);
    EXPECT_FAULT(&fault, status);
  }
}

/* A pattern with a typing error does not train with the options of all. */
static void groups_that_match_nothing(void **state) {
  (void)state;
  struct problem p;
  quern_step *step;
  set_up(&p, QUERN_DTYPE_F64);
  quern_optim_group wrong[] = {{"*bias", 1, 0}, {"*.wieght", 1, 0}};
  quern_optim_options o = QUERN_INIT(quern_optim_options);
  o.n_groups = 2;
  o.groups = wrong;
  EXPECT_ERROR(quern_step_new(&step, p.model, p.loss, &o), INVALID,
               "step: group 1: no parameter matches \"*.wieght\" HINT: did you mean \"layer.weight\"?");
  wrong[1].match = "layer.wait";
  EXPECT_ERROR(quern_step_new(&step, p.model, p.loss, &o), INVALID, "matches \"layer.wait\" HINT: did you mean");
  wrong[1].match = "decoder.*";
  EXPECT_ERROR(quern_step_new(&step, p.model, p.loss, &o), INVALID, "HINT: the first parameter is \"layer.weight\"");
  assert_null(step);
  wrong[1].match = "*.bias"; /* the first group has it already */
  EXPECT_ERROR(quern_step_new(&step, p.model, p.loss, &o), INVALID,
               "step: group 1: all that \"*.bias\" matches is in groups before it, such as 0, \"*bias\"");
  wrong[1].match = "layer.*"; /* it has some of them */
  EXPECT_OK(quern_step_new(&step, p.model, p.loss, &o));
  quern_step_free(step);
  quern_model_free(p.model);
}

/* Without it a program would run, and learn nothing. */
static void losses_without_parameters(void **state) {
  (void)state;
  struct problem p;
  quern_step *step;
  set_up(&p, QUERN_DTYPE_F64);
  quern_tensor *still = quern_stop_gradient(p.loss);
  EXPECT_ERROR(quern_step_new(&step, p.model, still, NULL), INVALID,
               "step_new: the loss depends on no trained parameter of the model, of which \"layer.weight\"");
  assert_null(step);
  quern_tensor *part = quern_sum(p.b, QUERN_ALL, false); /* one is enough */
  EXPECT_OK(quern_step_new(&step, p.model, part, NULL));
  quern_step_free(step);
  quern_model_free(p.model);
}

static quern_tensor *normed(quern_model *model, quern_tensor *x) {
  return quern_mean(quern_square(quern_nn_batch_norm(quern_model_scope(model), x, NULL)), QUERN_ALL, false);
}

/* A step of a loss whose running statistics a later quern_model_begin has forgotten would train without them. */
static void forgotten_changes(void **state) {
  (void)state;
  quern_model *model;
  quern_step *step;
  quern_tensor *x = quern_input(ctx, "x", QUERN_DTYPE_F32, QUERN_LIST(4, 3)), *loss, *use, *low;
  const quern_update *updates;
  EXPECT_OK(quern_model_new(&model, ctx, NULL));
  loss = normed(model, x);
  quern_model_begin(model, false);
  EXPECT_ERROR(quern_step_new(&step, model, loss, NULL), STATE,
               "step_new: what a step makes of \"num_batches_tracked\" was forgotten by the quern_model_begin");
  EXPECT_ERROR(quern_autocast(model, 1, &loss, &low, NULL), STATE,
               "autocast: what a step makes of \"num_batches_tracked\"");
  use = normed(model, x);
  EXPECT_ERROR(quern_step_new(&step, model, loss, NULL), STATE, "HINT: call it before the next quern_model_begin");
  EXPECT_OK(quern_step_new(&step, model, use, NULL)); /* statistics stay as they are: what was asked for */
  quern_step_free(step);
  quern_model_begin(model, true);
  assert_ptr_equal(normed(model, x), loss); /* the changes are there again */
  EXPECT_OK(quern_step_new(&step, model, loss, NULL));
  bool moved = false;
  for (size_t i = 0; i < quern_step_updates(step, &updates); i++)
    moved = moved || strcmp(quern_tensor_name(updates[i].state), "running_mean") == 0;
  assert_true(moved);
  quern_step_free(step);
  quern_model_begin(model, false);
  assert_ptr_equal(normed(model, x), use);
  EXPECT_OK(quern_autocast(model, 1, &use, &low, NULL)); /* it was built before, but not with the changes */
  quern_model_free(model);
}

static quern_tensor *instances_normed(quern_model *model, quern_tensor *x) {
  const quern_nn_instance_norm_options options = {.size = sizeof options, .tracking = true};
  return quern_nn_instance_norm(quern_model_scope(model), quern_reshape(x, QUERN_LIST(2, 3, 2)), &options);
}

/* What is made of a layer's result after the next quern_model_begin needs the layer's changes as well. */
static void forgotten_changes_of_layers(void **state) {
  (void)state;
  quern_tensor *x = quern_input(ctx, "x", QUERN_DTYPE_F32, QUERN_LIST(4, 3));
  for (int k = 0; k < 2; k++) {
    quern_model *model;
    quern_step *step;
    EXPECT_OK(quern_model_new(&model, ctx, NULL));
    quern_scope *root = quern_model_scope(model), *end = quern_scope_in(root, "end");
    quern_tensor *y = k == 0 ? quern_nn_batch_norm(root, x, NULL) : instances_normed(model, x);
    quern_model_begin(model, false);
    quern_tensor *loss = quern_mean(quern_square(quern_nn_linear(end, y, 1, NULL)), QUERN_ALL, false);
    EXPECT_ERROR(quern_step_new(&step, model, loss, NULL), STATE, "was forgotten by the quern_model_begin");
    quern_tensor *p[4], *g[4];
    size_t n = 0;
    for (size_t i = 0; i < quern_model_parameter_count(model); i++) {
      quern_parameter parameter = QUERN_INIT(quern_parameter);
      EXPECT_OK(quern_model_parameter(model, i, &parameter));
      if (parameter.trained) p[n++] = parameter.tensor;
    }
    EXPECT_OK(quern_grad(loss, n, p, g));
    EXPECT_ERROR(quern_step_from(&step, model, g, NULL), STATE, "that came after the gradients");
    y = k == 0 ? quern_nn_batch_norm(root, x, NULL) : instances_normed(model, x); /* by the running statistics */
    loss = quern_mean(quern_square(quern_nn_linear(end, y, 1, NULL)), QUERN_ALL, false);
    EXPECT_OK(quern_step_new(&step, model, loss, NULL));
    quern_step_free(step);
    quern_model_free(model);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(as_pytorch),
                                     TEST(scaler),
                                     TEST(adaptive_scaler),
                                     TEST(scaler_changes_nothing),
                                     TEST(wrong),
                                     TEST(frozen),
                                     TEST(gate),
                                     TEST(no_memory),
                                     TEST(groups_that_match_nothing),
                                     TEST(losses_without_parameters),
                                     TEST(forgotten_changes),
                                     TEST(forgotten_changes_of_layers)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
