/* tests/models/test_train.c -- ten AdamW steps of small models: losses as PyTorch has them, in f64 and f32
** oracle.txt is made by tests/oracle/make_models.py, which has the same parameters and data.
*/
#include <math.h>

#include "quern/models.h"
#include "quern/quern.h"
#include "unit.h"

enum { STEPS = 10, SIDE = 16 };

/* ---- parameters and data -------------------------------------------------------------------------------- */

static int64_t seed_of(const char *name) {
  int64_t h = 0;
  for (; *name != 0; name++) h = (h * 31 + (unsigned char)*name) % 1000003;
  return h;
}

static double value(const char *name, size_t i, double scale) {
  return scale * sin(0.7 * (double)i + (double)seed_of(name));
}
static int32_t token(int64_t i, int64_t most) { return (int32_t)((i * i * 7 + i * 3 + 5) % most); }

static bool ends_with(const char *text, const char *end) {
  size_t n = strlen(text), m = strlen(end);
  return n >= m && strcmp(text + n - m, end) == 0;
}

/* A parameter's start: of rank 2 and more small, of norms near 1, of biases near 0. */
static double start_of(const quern_parameter *p, size_t i) {
  int64_t count = quern_tensor_count(p->tensor);
  if (quern_tensor_rank(p->tensor) > 1)
    return value(p->name, i, 1 / sqrt((double)(count / quern_tensor_dim(p->tensor, 0))));
  return value(p->name, i, 0.1) + (ends_with(p->name, "weight") ? 1 : 0);
}

static void put(quern_dtype dtype, void *at, size_t i, double x) {
  if (dtype == QUERN_DTYPE_F64)
    ((double *)at)[i] = x;
  else
    ((float *)at)[i] = (float)x;
}

/* ---- models --------------------------------------------------------------------------------------------- */

struct net {
  quern_tensor *x, *labels, *loss;
};

struct kind {
  const char *name;
  int64_t rows, length, most; /* of tokens; of images: how many, and classes */
  double lr;
  void (*build)(struct net *net, quern_model *model, const struct kind *kind, quern_dtype dtype);
};

static void build_tokens(struct net *net, const struct kind *k) {
  net->x = quern_input(ctx, "tokens", QUERN_DTYPE_I32, QUERN_LIST(k->rows, k->length));
  net->labels = quern_input(ctx, "labels", QUERN_DTYPE_I32, QUERN_LIST(k->rows, k->length));
}

static void build_gpt2(struct net *net, quern_model *model, const struct kind *k, quern_dtype dtype) {
  (void)dtype;
  quern_lm_options options = {
      .size = sizeof options, .vocabulary = k->most, .positions = 16, .layers = 2, .width = 32, .heads = 4};
  build_tokens(net, k);
  net->loss = quern_lm_loss(quern_model_scope(model), net->x, net->labels, &options);
}

static void build_lstm(struct net *net, quern_model *model, const struct kind *k, quern_dtype dtype) {
  (void)dtype;
  build_tokens(net, k);
  quern_tensor *logits = quern_lstm_lm(quern_model_scope(model), net->x, k->most, 12, 20, 2, 0, NULL);
  net->loss = quern_cross_entropy(logits, net->labels, NULL);
}

static void build_resnet(struct net *net, quern_model *model, const struct kind *k, quern_dtype dtype) {
  net->x = quern_input(ctx, "images", dtype, QUERN_LIST(k->rows, 3, SIDE, SIDE));
  net->labels = quern_input(ctx, "labels", QUERN_DTYPE_I32, QUERN_LIST(k->rows));
  net->loss = quern_cross_entropy(quern_resnet(quern_model_scope(model), net->x, 18, k->most, true), net->labels, NULL);
}

static const struct kind kinds[] = {{"gpt2", 2, 12, 61, 1e-3, build_gpt2},
                                    {"lstm", 3, 9, 37, 1e-3, build_lstm},
                                    {"resnet18", 8, 0, 10, 1e-4, build_resnet}};

/* The batch of a step. */
static void fill_batch(const struct kind *k, int step, quern_dtype dtype, void *x, int32_t *labels) {
  if (k->length == 0) {
    char name[16];
    snprintf(name, sizeof name, "x%d", step);
    for (size_t i = 0; i < (size_t)k->rows * 3 * SIDE * SIDE; i++) put(dtype, x, i, value(name, i, 1));
    for (int i = 0; i < k->rows; i++) labels[i] = token(step * k->rows + i, k->most);
    return;
  }
  for (int64_t b = 0; b < k->rows; b++)
    for (int64_t i = 0; i < k->length; i++) {
      int64_t at = step * 100 + b * (k->length + 1) + i;
      ((int32_t *)x)[b * k->length + i] = token(at, k->most);
      labels[b * k->length + i] = token(at + 1, k->most);
    }
}

/* ---- runs ----------------------------------------------------------------------------------------------- */

static void read_oracle(const char *name, int64_t *count, double losses[STEPS]) {
  FILE *file = fopen("tests/models/oracle.txt", "r");
  char line[1024];
  if (file == NULL) fail_msg("oracle.txt cannot be read");
  *count = -1;
  while (*count < 0 && fgets(line, sizeof line, file) != NULL) {
    size_t n = strcspn(line, " ");
    if (n != strlen(name) || memcmp(line, name, n) != 0) continue;
    char *at = line + n;
    *count = strtoll(at, &at, 10);
    for (int i = 0; i < STEPS; i++) losses[i] = strtod(at, &at);
  }
  (void)fclose(file);
  if (*count < 0) fail_msg("oracle.txt has no %s", name);
}

/* Every state as the model says it begins; trained ones as PyTorch's. */
static void set_states(const quern_model *model, const quern_program *program, quern_instance *instance) {
  for (size_t s = 0; s < quern_program_state_count(program); s++) {
    quern_slot slot = QUERN_INIT(quern_slot);
    EXPECT_OK(quern_program_state(program, s, &slot));
    const quern_parameter *p = quern_model_find(model, slot.name);
    assert_non_null(p);
    size_t n = (size_t)quern_tensor_count(p->tensor);
    void *data = calloc(n + 1, 8);
    bool real = slot.dtype == QUERN_DTYPE_F32 || slot.dtype == QUERN_DTYPE_F64;
    for (size_t i = 0; i < n && real; i++) put(slot.dtype, data, i, p->trained ? start_of(p, i) : p->init.a);
    EXPECT_OK(quern_instance_set_state(instance, s, data));
    free(data);
  }
}

static void train(const struct kind *k, quern_dtype dtype, double bound) {
  quern_model *model;
  quern_step *step;
  quern_program *program;
  quern_instance *instance;
  struct net net;
  int64_t count;
  double want[STEPS];
  read_oracle(k->name, &count, want);
  quern_model_options mo = QUERN_INIT(quern_model_options);
  mo.dtype = dtype;
  EXPECT_OK(quern_model_new(&model, ctx, &mo));
  k->build(&net, model, k, dtype);
  assert_int_equal(quern_model_element_count(model), count);
  quern_optim_options oo = QUERN_INIT(quern_optim_options);
  oo.weight_decay = 0.1;
  EXPECT_OK(quern_step_new(&step, model, net.loss, &oo));
  quern_program_options po = QUERN_INIT(quern_program_options);
  po.threads = 2;
  po.n_updates = quern_step_updates(step, &po.updates);
  EXPECT_OK(quern_program_compile(&program, ctx, 1, &net.loss, &po));
  EXPECT_OK(quern_instance_new(&instance, program));
  set_states(model, program, instance);
  static double x[8 * 3 * SIDE * SIDE];
  double lr[1];
  int32_t labels[64];
  put(dtype, lr, 0, k->lr);
  for (int t = 0; t < STEPS; t++) {
    union {
      double f64;
      float f32;
    } loss;
    fill_batch(k, t, dtype, x, labels);
    EXPECT_OK(quern_instance_run(instance, (const void *const[]){x, labels, lr}, (void *const[]){&loss}));
    double got = dtype == QUERN_DTYPE_F64 ? loss.f64 : (double)loss.f32;
    if (!(fabs(got - want[t]) <= bound * fabs(want[t])))
      fail_msg("%s, step %d: loss %.17g, PyTorch has %.17g", k->name, t, got, want[t]);
  }
  quern_instance_free(instance);
  quern_program_free(program);
  quern_step_free(step);
  quern_model_free(model);
}

static void in_f64(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
    test_renew();
    train(&kinds[i], QUERN_DTYPE_F64, 1e-9);
  }
}

static void in_f32(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
    test_renew();
    train(&kinds[i], QUERN_DTYPE_F32, 1e-3);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(in_f64), TEST(in_f32)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
