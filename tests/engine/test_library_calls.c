/* tests/engine/test_library_calls.c -- programs whose kernels are calls of libraries: whose algorithms the device queries, refused, as bytes */
#include "engine/codec.h"
#include "engine/engine_test.h"

#define fake_free fake_blas_free /* both fakes have one */
#include "runtime/fake_blas.h"
#undef fake_free
#include "runtime/fake_cuda.h"

static struct rt_blas blas;

/* relu(x w' + b) of 16 x 8: one call. */
static quern_tensor *make_root(void) {
  quern_tensor *x = F32_INPUT("x", 16, 8), *w = F32_INPUT("w", 8, 8), *b = F32_INPUT("b", 8);
  return quern_relu(quern_linear(x, w, b));
}

static size_t calls_of(size_t n, struct kern *const *kernels) {
  size_t calls = 0;
  for (size_t i = 0; i < n; i++) calls += kernels[i]->library_call.kind != KERN_LIBRARY_NONE;
  return calls;
}

/* ---- querying algorithms --------------------------------------------------------------------------------- */

struct seen {
  size_t calls, kernels;
  int64_t work;
};

static quern_status look(struct engine_build *b, void *user) {
  struct seen *seen = user;
  *seen = (struct seen){calls_of(b->kernels.n, b->kernels.at), b->kernels.n, 0};
  for (size_t i = 0; i < b->kernels.n; i++) {
    const struct kern *kern = b->kernels.at[i];
    if (kern->library_call.kind != KERN_LIBRARY_NONE) seen->work = kern->mems[kern->library_call.work].count;
  }
  return QUERN_STATUS_OK;
}

static struct seen survey_on(const char *device, quern_tensor *root) {
  quern_program_options options = QUERN_INIT(quern_program_options);
  struct engine_request request;
  struct seen seen = {0};
  options.device = device;
  EXPECT_OK(engine_request_make(&request, ctx, 1, &root, &options));
  EXPECT_OK(engine_survey(&request, look, &seen));
  return seen;
}
static struct seen survey(quern_tensor *root) { return survey_on("cuda", root); }

/* The library reports what a call needs; where it refuses all of them, all code is generated. */
static void test_settle(void **state) {
  (void)state;
  quern_tensor *root = make_root();
  fake_cuda_open(1 << 24);
  fake_blas_open(&blas);
  fake.driver.blas = &blas;
  fake_blas.bytes[0] = 4096;
  struct seen seen = survey(root);
  assert_true(seen.calls == 1 && seen.kernels == 1 && seen.work == 4096);
  fake_blas.offers = 0;
  seen = survey(root);
  assert_true(seen.calls == 0 && seen.kernels == 1);
  fake_cuda_close();
}

/* Two products, of 8 and of 24 columns. What is refused when it is asked about becomes generated code, and the other stays a call. */
static void test_refused(void **state) {
  (void)state;
  quern_tensor *narrow = make_root(), *wide = quern_linear(narrow, F32_INPUT("w2", 24, 8), NULL);
  fake_cuda_open(1 << 24);
  fake_blas_open(&blas);
  fake.driver.blas = &blas;
  struct seen seen = survey(wide);
  assert_true(seen.calls == 2 && seen.kernels == 2);
  fake_blas.none = 24;
  seen = survey(wide);
  assert_true(seen.calls == 1 && seen.kernels == 2);
  fake_cuda_close();
}

/* The same when it refuses only what it is to build: the program is compiled again, with that kernel by generated code. */
static void test_refused_late(void **state) {
  (void)state;
  quern_tensor *wide = quern_linear(make_root(), F32_INPUT("w2", 24, 8), NULL);
  quern_program_options options = QUERN_INIT(quern_program_options);
  struct rt_nvrtc *nvrtc;
  quern_program *made;
  if (rt_nvrtc_open(&nvrtc) != QUERN_STATUS_OK) skip(); /* for the generated one */
  options.device = "cuda";
  fake_cuda_open(1 << 24);
  fake_blas_open(&blas);
  fake.driver.blas = &blas;
  for (uint64_t late = 0; late <= 24; late += 24) {
    fake_blas.late = late;
    EXPECT_OK(quern_program_compile(&made, ctx, 1, &wide, &options));
    assert_int_equal(made->n_kernels, 2);
    assert_int_equal(calls_of((size_t)made->n_kernels, made->kernels), late == 0 ? 2 : 1);
    quern_program_free(made);
  }
  fake_cuda_close();
}

/* ---- two cards --------------------------------------------------------------------------------------------- */

/* Whether a handle is the one of the card whose context is current. */
static struct rt_blas of_other;
static int questions[2], products[2];
static int card_of(void *handle) {
  int card = fake_card();
  assert_ptr_equal(handle, card == 0 ? blas.handle : of_other.handle);
  return card;
}
static int choices_of_card(void *handle, void *product, void *a, void *b, void *c, void *d, void *wish, int most,
                           struct rt_blas_choice *choices, int *n) {
  questions[card_of(handle)]++;
  return fake_choices(handle, product, a, b, c, d, wish, most, choices, n);
}
static int product_of_card(void *handle, void *product, const void *alpha, const void *a, void *a_layout, const void *b,
                           void *b_layout, const void *beta, const void *c, void *c_layout, void *d, void *d_layout,
                           const void *algorithm, void *work, size_t bytes, void *stream) {
  const void *const addresses[] = {a, b, c, d, work, stream};
  products[card_of(handle)]++;
  for (size_t i = 0; i < BASE_COUNT(addresses); i++) assert_true(fake_is_owned(addresses[i]));
  (void)fake_done(fake.n_ops); /* what was uploaded before it */
  return fake_run(handle, product, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout, algorithm, work,
                  bytes, stream);
}

/* Each asks the library by its own handle, and multiplies in its own memory and queue. */
static void test_two_cards(void **state) {
  (void)state;
  static char expected[1][MOST_BYTES];
  quern_tensor *root = make_root();
  struct open_card {
    quern_program *program;
    quern_instance *instance;
  } cards[2];
  quern_program_options options = QUERN_INIT(quern_program_options);
  fake_cuda_open_two(1 << 24);
  fake_blas_open(&blas);
  blas.choices = choices_of_card;
  blas.product = product_of_card;
  of_other = blas;
  of_other.handle = &of_other;
  fake.driver.blas = &blas;
  fake.other.blas = &of_other;
  for (int i = 0; i < 2; i++) {
    options.device = i == 0 ? "cuda:0" : "cuda:1";
    assert_int_equal(survey_on(options.device, root).calls, 1);
    assert_true(questions[i] > 0 && (i == 1 || questions[1] == 0));
    options.target = "sm_90+blas";
    open_program(1, &root, &options);
    assert_int_equal(calls_of((size_t)program->n_kernels, program->kernels), 1);
    cards[i] = (struct open_card){program, instance};
  }
  assert_true(fake.driver.blas != fake.other.blas);
  eval_roots(1, &root, expected);
  for (int i = 0; i < 2; i++) {
    int before[] = {products[0], products[1]};
    memset(outputs.at[0], 0, MOST_BYTES);
    EXPECT_OK(quern_instance_run(cards[i].instance, (const void *const *)inputs.at, outputs.at));
    expect_near(root, outputs.at[0], expected[0]);
    assert_true(products[i] > before[i] && products[1 - i] == before[1 - i]);
  }
  for (int i = 0; i < 2; i++) {
    instance = cards[i].instance;
    program = cards[i].program;
    close_program();
  }
  assert_int_equal(fake_cuda_left(), 0);
  fake_cuda_close();
}

/* ---- numerics -------------------------------------------------------------------------------------------- */

/* A product of f32, and the gradients of attention of bf16. */
static size_t make_numerics(quern_tensor **roots) {
  quern_tensor *q = quern_input(ctx, "q", QUERN_DTYPE_BF16, QUERN_LIST(1, 2, 16, 8));
  quern_tensor *y = quern_attention(q, q, q, NULL, NULL, NULL);
  quern_tensor *loss = quern_sum(quern_square(quern_cast(y, QUERN_DTYPE_F32)), QUERN_ALL, false);
  roots[0] = make_root();
  EXPECT_OK(quern_grad(loss, 1, &q, &roots[1]));
  return 2;
}

/* tf32 is for products alone: the gradients of attention keep the same bits every time. Either of them only fast lets vary. */
static void test_numerics(void **state) {
  (void)state;
  static const struct {
    quern_numerics numerics;
    bool tf32, exact;
  } cases[] = {
      {QUERN_NUMERICS_EXACT, false, true}, {QUERN_NUMERICS_TF32, true, true}, {QUERN_NUMERICS_FAST, true, false}};
  quern_tensor *roots[2];
  size_t n = make_numerics(roots);
  for (size_t i = 0; i < BASE_COUNT(cases); i++) {
    quern_program_options options = QUERN_INIT(quern_program_options);
    size_t n_products = 0, n_gradients = 0;
    options.device = "interp";
    options.target = "sm_90+blas+dnn";
    options.numerics = cases[i].numerics;
    EXPECT_OK(quern_program_compile(&program, ctx, n, roots, &options));
    for (size_t k = 0; k < (size_t)program->n_kernels; k++) {
      const struct kern_library_call *call = &program->kernels[k]->library_call;
      if (call->kind == KERN_LIBRARY_GEMM) {
        assert_int_equal(call->gemm.tf32, cases[i].tf32);
        n_products++;
      }
      if (call->kind == KERN_LIBRARY_ATTENTION_BACK) {
        assert_int_equal(call->attention.exact, cases[i].exact);
        n_gradients++;
      }
    }
    assert_int_equal(n_products, 1);
    assert_int_equal(n_gradients, 1);
    quern_program_free(program);
  }
}

/* ---- running, as bytes ----------------------------------------------------------------------------------- */

static void test_run(void **state) {
  (void)state;
  quern_program_options options = QUERN_INIT(quern_program_options);
  options.device = "interp";
  options.target = "sm_90+blas";
  expect_same(TENSORS(make_root()), &options);
}

static void write_program(struct base_str *str, quern_program *p) {
  struct codec c = {.out = str};
  codec_program(&c, p);
  EXPECT_OK(base_str_status(str));
}

static bool read_program(quern_program **p, const char *bytes, size_t n) {
  EXPECT_OK(engine_program_empty(p, &ctx->heap.user));
  engine_program_set_device(*p, rt_device_at(&rt_interp, 0));
  struct codec c = {.reading = true, .at = bytes, .end = bytes + n, .arena = &(*p)->arena, .heap = &(*p)->heap};
  codec_program(&c, *p);
  return !c.failed && codec_valid(*p);
}

/* What is read is what was written, and a call that does not hold together is found. */
static void test_bytes(void **state) {
  (void)state;
  quern_program_options options = QUERN_INIT(quern_program_options);
  options.device = "interp";
  options.target = "sm_90+blas";
  open_program(TENSORS(make_root()), &options);
  struct base_str first, again;
  base_str_init(&first, &ctx->heap);
  base_str_init(&again, &ctx->heap);
  assert_int_equal(calls_of((size_t)program->n_kernels, program->kernels), 1);
  program->kernels[0]->library_call.algorithm[15] = 77;
  write_program(&first, program);
  quern_program *read;
  assert_true(read_program(&read, first.at, first.n));
  assert_int_equal(read->kernels[0]->library_call.algorithm[15], 77);
  assert_int_equal(read->kernels[0]->library_call.gemm.act, KERN_ACT_RELU);
  assert_true(read->kernels[0]->phases[0].library_call);
  write_program(&again, read);
  assert_true(first.n == again.n && memcmp(first.at, again.at, first.n) == 0);
  read->kernels[0]->library_call.gemm.a.at = 1 << 20;
  base_str_fini(&again);
  base_str_init(&again, &ctx->heap);
  write_program(&again, read);
  quern_program_free(read);
  assert_false(read_program(&read, again.at, again.n));
  quern_program_free(read);
  base_str_fini(&first);
  base_str_fini(&again);
  close_program();
}

/* ---- a model --------------------------------------------------------------------------------------------- */

enum { VOCABULARY = 64, LENGTH = 16, WIDTH = 32, ROWS = 2, PARAMETERS = 40 };

struct model {
  size_t n;
  quern_tensor *parameters[PARAMETERS], *roots[PARAMETERS + 1];
};

/* The loss of GPT-2 in bf16, and its gradients. */
static void make_model(struct model *m, quern_model *model) {
  quern_lm_options options = {
      .size = sizeof options, .vocabulary = VOCABULARY, .positions = LENGTH, .layers = 2, .width = WIDTH, .heads = 2};
  quern_tensor *tokens = quern_input(ctx, "tokens", QUERN_DTYPE_I32, QUERN_LIST(ROWS, LENGTH));
  quern_tensor *labels = quern_input(ctx, "labels", QUERN_DTYPE_I32, QUERN_LIST(ROWS, LENGTH));
  quern_tensor *loss = quern_lm_loss(quern_model_scope(model), tokens, labels, &options);
  EXPECT_OK(quern_autocast(model, 1, &loss, &loss, NULL));
  m->n = quern_model_parameter_count(model);
  assert_true(m->n <= PARAMETERS);
  for (size_t i = 0; i < m->n; i++) {
    quern_parameter parameter = QUERN_INIT(quern_parameter);
    EXPECT_OK(quern_model_parameter(model, i, &parameter));
    m->parameters[i] = parameter.tensor;
  }
  EXPECT_OK(quern_grad(loss, m->n, m->parameters, m->roots + 1));
  m->roots[0] = loss;
}

/* Runs the model on its target, on the same numbers each time; how many of its kernels are calls. */
static size_t run_model(const struct model *m, const char *target, float **results) {
  quern_program_options options = QUERN_INIT(quern_program_options);
  quern_program *made;
  quern_instance *run;
  int32_t tokens[2][ROWS * LENGTH];
  options.device = "interp";
  options.target = target;
  EXPECT_OK(quern_program_compile(&made, ctx, m->n + 1, (quern_tensor *const *)m->roots, &options));
  EXPECT_OK(quern_instance_new(&run, made));
  for (size_t i = 0; i < made->n_states; i++) {
    size_t n = made->states[i].bytes / sizeof(float);
    double *x = malloc((n + 1) * sizeof *x);
    float *values = malloc((n + 1) * sizeof *values);
    test_fill(n, x, i + 1);
    for (size_t k = 0; k < n; k++) values[k] = (float)(0.3 * x[k]);
    EXPECT_OK(quern_instance_set_state(run, i, values));
    free(x);
    free(values);
  }
  for (int i = 0; i < ROWS * LENGTH; i++) {
    tokens[0][i] = i * 7 % VOCABULARY;
    tokens[1][i] = i * 11 % VOCABULARY;
  }
  EXPECT_OK(quern_instance_run(run, (const void *const[]){tokens[0], tokens[1]}, (void *const *)results));
  size_t calls = calls_of((size_t)made->n_kernels, made->kernels);
  quern_instance_free(run);
  quern_program_free(made);
  return calls;
}

/* Loss and gradients with products by a library are those without, as far as 16 bits go. */
static void test_model(void **state) {
  (void)state;
  quern_model *model;
  struct model m;
  float *plain[PARAMETERS + 1], *called[PARAMETERS + 1];
  EXPECT_OK(quern_model_new(&model, ctx, NULL));
  make_model(&m, model);
  for (size_t i = 0; i <= m.n; i++) {
    plain[i] = calloc((size_t)ir_count(m.roots[i]) + 1, sizeof(float));
    called[i] = calloc((size_t)ir_count(m.roots[i]) + 1, sizeof(float));
  }
  assert_int_equal(run_model(&m, "sm_90", plain), 0);
  assert_true(run_model(&m, "sm_90+blas", called) > 12);
  for (size_t i = 0; i <= m.n; i++) {
    double most = 0, off = 0;
    for (int64_t k = 0; k < ir_count(m.roots[i]); k++) {
      most = fmax(most, fabs((double)plain[i][k]));
      off = fmax(off, fabs((double)plain[i][k] - (double)called[i][k]));
    }
    if (!(off <= 0.03 * most)) print_error("result %zu: %g off of %g\n", i, off, most);
    assert_true(off <= 0.03 * most);
    free(plain[i]);
    free(called[i]);
  }
  quern_model_free(model);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(test_settle),    TEST(test_refused),  TEST(test_refused_late),
                                     TEST(test_two_cards), TEST(test_numerics), TEST(test_run),
                                     TEST(test_bytes),     TEST(test_model)};
  return cmocka_run_group_tests_name("engine/call", tests, NULL, NULL);
}
