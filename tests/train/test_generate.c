/* tests/train/test_generate.c -- generation with a cache: bits, pieces, files of parameters, wrong use, faults */
#include "generate_test.h"

enum { VOCABULARY = 61, LONG = 150 };

static const quern_lm_options models[] = {
    {.size = sizeof(quern_lm_options),
     .names = QUERN_LM_GPT2,
     .vocabulary = VOCABULARY,
     .positions = 256,
     .layers = 2,
     .width = 144,
     .heads = 3},
    {.size = sizeof(quern_lm_options),
     .names = QUERN_LM_LLAMA,
     .vocabulary = VOCABULARY,
     .positions = 256,
     .layers = 2,
     .width = 64,
     .heads = 4,
     .kv_heads = 2,
     .hidden = 172,
     .rms = true,
     .no_bias = true,
     .untied = true,
     .activation = "swiglu",
     .position = "rope"},
    {.size = sizeof(quern_lm_options),
     .names = QUERN_LM_GPT2,
     .vocabulary = VOCABULARY,
     .positions = 256,
     .layers = 1,
     .width = 40,
     .heads = 2,
     .kv_heads = 1,
     .activation = "relu",
     .position = "sinusoidal",
     .post_norm = true},
    {.size = sizeof(quern_lm_options),
     .names = QUERN_LM_LLAMA,
     .vocabulary = VOCABULARY,
     .positions = 256,
     .layers = 2,
     .width = 60,
     .heads = 6,
     .activation = "geglu",
     .position = "none"},
};

static int32_t text[LONG];
static uint32_t ids[LONG];
static float want[LONG][VOCABULARY], got[VOCABULARY];

static void make_text(void) {
  for (int i = 0; i < LONG; i++) text[i] = (i * i * 7 + i * 5 + 3) % VOCABULARY;
  for (int i = 0; i < LONG; i++) ids[i] = (uint32_t)text[i];
}

static quern_generator *open_at(const char *path, const quern_lm_options *o, const char *device, int threads,
                                int64_t most, bool no_cache) {
  quern_generator *g;
  quern_generate_options options = QUERN_INIT(quern_generate_options);
  options.most = most;
  options.device = device;
  options.threads = threads;
  options.no_cache = no_cache;
  options.allocator = memory_allocator;
  EXPECT_OK(quern_generator_open(&g, path, o, &options));
  return g;
}

/* Feeds n tokens in pieces of these sizes, again and again, and compares the logits at the end of each. */
static void expect_pieces(quern_generator *g, int64_t n, const int *pieces) {
  quern_generator_reset(g);
  for (int64_t at = 0, k = 0; at < n; k++) {
    if (pieces[k] == 0) k = 0;
    int64_t some = at + pieces[k] < n ? pieces[k] : n - at;
    EXPECT_OK(quern_generator_feed(g, (size_t)some, ids + at, got));
    at += some;
    if (memcmp(got, want[at - 1], sizeof got) == 0) continue;
    for (int i = 0; i < VOCABULARY; i++)
      if (memcmp(&got[i], &want[at - 1][i], sizeof got[i]) != 0)
        fail_msg("after %lld of %lld tokens, pieces of %d ..: logit %d is %.9g, without a cache %.9g", (long long)at,
                 (long long)n, pieces[0], i, (double)got[i], (double)want[at - 1][i]);
  }
}

/* The first models with caches of several sizes, all with a large one. */
static void expect_bits(const char *device, int64_t n, int threads, size_t first, size_t several, size_t n_models) {
  static const int one[] = {1, 0}, all[] = {LONG, 0}, mixed[] = {5, 1, 17, 3, 40, 2, 0}, some[] = {16, 64, 7, 0};
  make_text();
  for (size_t m = first; m < n_models; m++) {
    struct weights w;
    weights_make(&w, &models[m]);
    const char *path = weights_write(&w, "bits");
    whole(&models[m], &w, device, threads, n, text, want[0]);
    const int64_t sizes[] = {n, n + 13, 256};
    for (size_t s = m < several ? 0 : 2; s < 3; s++) {
      quern_generator *g = open_at(path, &models[m], device, threads, sizes[s], false);
      assert_int_equal(quern_generator_most(g), sizes[s]);
      expect_pieces(g, n, all);
      expect_pieces(g, n, mixed);
      if (threads == 1) expect_pieces(g, n, one);
      if (s == 0) expect_pieces(g, n, some);
      quern_generator_free(g);
    }
    unlink(path);
    weights_free(&w);
  }
}

/* Logits of a token do not depend on what comes after it, and are those of a program of any length. */
static void expect_lengths(const quern_lm_options *model, const char *device, int64_t n, const int64_t *shorter) {
  struct weights w;
  float(*other)[VOCABULARY] = malloc(sizeof want);
  weights_make(&w, model);
  whole(model, &w, device, 2, n, text, want[0]);
  for (; *shorter > 0; shorter++) {
    whole(model, &w, device, 1, *shorter, text, other[0]);
    assert_memory_equal(other, want, (size_t)*shorter * sizeof *want);
  }
  weights_free(&w);
  free(other);
}

static void lengths(void **state) {
  (void)state;
  make_text();
  expect_lengths(&models[0], "cpu", LONG, (int64_t[]){1, 129, 0});
  for (size_t m = 0; m < sizeof models / sizeof *models; m++)
    expect_lengths(&models[m], "interp", 20, (int64_t[]){1, 2, 6, 17, 0});
}

static void bits_cpu(void **state) {
  (void)state;
  expect_bits("cpu", LONG, 1, 0, 1, 4);
  expect_bits("cpu", 36, 2, 0, 0, 2);
  expect_bits("cpu", 36, 3, 1, 0, 2);
}

static void bits_interp(void **state) {
  (void)state;
  for (int threads = 1; threads <= 3; threads++) expect_bits("interp", 21 - threads, threads, 0, 4, 4);
}

/* Without a cache: lengths of a few programs, filled up. */
static void no_cache(void **state) {
  (void)state;
  make_text();
  for (size_t m = 0; m < 2; m++) {
    struct weights w;
    static const int some[] = {1, 7, 8, 20, 4, 0};
    weights_make(&w, &models[m]);
    const char *path = weights_write(&w, "no-cache");
    whole(&models[m], &w, "interp", 1, 40, text, want[0]);
    quern_generator *g = open_at(path, &models[m], "interp", 1, 45, true);
    expect_pieces(g, 40, some);
    quern_generator_free(g);
    unlink(path);
    weights_free(&w);
  }
}

/* The same seed gives the same text, with a cache and without it, for any number of threads. */
static void texts(void **state) {
  (void)state;
  enum { N = 24 };
  struct weights w;
  uint32_t first[N], id;
  weights_make(&w, &models[1]);
  const char *path = weights_write(&w, "texts");
  make_text();
  for (int way = 0; way < 5; way++) {
    quern_sampling s = QUERN_INIT(quern_sampling);
    s.seed = way < 4 ? 7 : 8;
    s.top_k = 40, s.top_p = 0.95, s.temperature = 1;
    quern_generator *g = open_at(path, &models[1], way == 3 ? "interp" : "cpu", way == 1 ? 3 : 1, 64, way == 2);
    size_t same = 0;
    EXPECT_OK(quern_generator_feed(g, 5, ids, NULL));
    for (int i = 0; i < N; i++) {
      EXPECT_OK(quern_generator_next(g, &s, &id));
      if (way == 0) first[i] = id;
      same += id == first[i];
    }
    assert_int_equal(way < 4, same == N);
    quern_generator_free(g);
  }
  unlink(path);
  weights_free(&w);
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

static const quern_lm_options small = {.size = sizeof small,
                                       .names = QUERN_LM_GPT2,
                                       .vocabulary = VOCABULARY,
                                       .positions = 8,
                                       .layers = 1,
                                       .width = 16,
                                       .heads = 2};

static void logits_of(const char *path, float *logits) {
  quern_generator *g = open_at(path, &small, "interp", 1, 0, false);
  EXPECT_OK(quern_generator_feed(g, 6, ids, logits));
  quern_generator_free(g);
}

static float *turn(const quern_safetensor *t) {
  int64_t rows = t->dims[0], columns = t->dims[1];
  float *data = malloc((size_t)(rows * columns) * sizeof *data);
  for (int64_t r = 0; r < rows; r++)
    for (int64_t c = 0; c < columns; c++) data[c * rows + r] = ((const float *)t->data)[r * columns + c];
  return data;
}

/* GPT-2 as HuggingFace has it: names without "transformer.", Conv1D's weights (in, out), masks beside. */
static void huggingface(void **state) {
  (void)state;
  struct weights w, h = {0};
  float plain[VOCABULARY], other[VOCABULARY];
  make_text();
  weights_make(&w, &small);
  const char *path = weights_write(&w, "plain");
  logits_of(path, plain);
  unlink(path);
  for (int bare = 0; bare < 2; bare++) {
    for (size_t i = 0; i < w.n; i++) {
      const quern_safetensor *t = &w.at[i];
      const char *name = t->name + (bare ? strlen("transformer.") : 0);
      bool turned = t->rank == 2 && strstr(t->name, ".c_") != NULL;
      size_t bytes = weights_count(t) * sizeof(float);
      float *data = turned ? turn(t) : memcpy(malloc(bytes), t->data, bytes);
      weights_add(&h, name, t->rank, turned ? (int64_t[]){t->dims[1], t->dims[0]} : t->dims, data);
    }
    weights_add(&h, bare ? "h.0.attn.bias" : "transformer.h.0.attn.bias", 4, (int64_t[]){1, 1, 2, 2},
                calloc(4, sizeof(float)));
    path = weights_write(&h, "hf");
    logits_of(path, other);
    assert_memory_equal(plain, other, sizeof plain);
    unlink(path);
    weights_free(&h);
  }
  weights_free(&w);
}

/* Parameters of 16 bits are converted. */
static void halves(void **state) {
  (void)state;
  struct weights w;
  float plain[VOCABULARY], other[VOCABULARY];
  make_text();
  weights_make(&w, &small);
  for (size_t i = 0; i < w.n; i++) { /* what bf16 has */
    uint32_t *bits = (uint32_t *)w.at[i].data;
    for (size_t k = 0; k < weights_count(&w.at[i]); k++) bits[k] &= UINT32_C(0xffff0000);
  }
  const char *path = weights_write(&w, "wide");
  logits_of(path, plain);
  unlink(path);
  for (size_t i = 0; i < w.n; i++) {
    const uint32_t *bits = w.at[i].data;
    size_t n = weights_count(&w.at[i]);
    uint16_t *half = malloc(n * sizeof *half);
    for (size_t k = 0; k < n; k++) half[k] = (uint16_t)(bits[k] >> 16);
    free((void *)w.at[i].data);
    w.at[i].data = half;
    w.at[i].dtype = QUERN_DTYPE_BF16;
  }
  path = weights_write(&w, "half");
  logits_of(path, other);
  assert_memory_equal(plain, other, sizeof plain);
  unlink(path);
  weights_free(&w);
}

/* With 16-bit activations logits are near those of f32, and the same however tokens are cut into pieces. */
static void precisions(void **state) {
  (void)state;
  static const char *const words[] = {"bf16", "f16"};
  static const double bounds[] = {0.1, 0.02};
  enum { N = 8 };
  float plain[VOCABULARY], whole_text[VOCABULARY], piece[VOCABULARY];
  struct weights w;
  make_text();
  weights_make(&w, &small);
  const char *path = weights_write(&w, "precisions");
  for (int k = -1; k < 2; k++) {
    quern_generate_options options = QUERN_INIT(quern_generate_options);
    quern_generator *g;
    options.device = "interp";
    options.most = N;
    options.allocator = memory_allocator;
    options.precision = k < 0 ? "f32" : words[k];
    EXPECT_OK(quern_generator_open(&g, path, &small, &options));
    EXPECT_OK(quern_generator_feed(g, N, ids, k < 0 ? plain : whole_text));
    quern_generator_reset(g);
    for (int i = 0; i < N && k >= 0; i += 2) EXPECT_OK(quern_generator_feed(g, 2, ids + i, piece));
    double worst = 0;
    for (int i = 0; i < VOCABULARY && k >= 0; i++) worst = fmax(worst, fabs((double)whole_text[i] - (double)plain[i]));
    if (k >= 0) assert_memory_equal(whole_text, piece, sizeof piece);
    if (k >= 0) assert_true(worst > 0 && worst < bounds[k]);
    quern_generator_free(g);
  }
  quern_generate_options options = QUERN_INIT(quern_generate_options);
  quern_generator *none;
  options.precision = "int8";
  EXPECT_ERROR(quern_generator_open(&none, path, &small, &options), INVALID,
               "generator_open: precision is 'int8'; must be f32, bf16 or f16");
  unlink(path);
  weights_free(&w);
}

static quern_status try_open(const char *path, const quern_lm_options *o) {
  quern_generator *g;
  quern_generate_options options = QUERN_INIT(quern_generate_options);
  options.device = "interp";
  options.allocator = memory_allocator;
  quern_status status = quern_generator_open(&g, path, o, &options);
  assert_true((g == NULL) == (status != QUERN_STATUS_OK));
  quern_generator_free(g);
  return status;
}

/* Files that are not of the model. */
static void others(void **state) {
  (void)state;
  struct weights w;
  weights_make(&w, &small);
  const char *path = weights_write(&w, "others");
  quern_lm_options o = small;
  EXPECT_OK(try_open(path, &o));
  o.layers = 2;
  EXPECT_ERROR(try_open(path, &o), INVALID,
               "has no tensor 'transformer.h.1.ln_1.weight' of shape (16), which the model needs");
  o = small, o.width = 32;
  EXPECT_ERROR(try_open(path, &o), SHAPE, "tensor 'transformer.wte.weight' is (61, 16), the model's is (61, 32)");
  o = small, o.no_bias = true;
  EXPECT_ERROR(try_open(path, &o), INVALID, "has a tensor 'transformer.h.0.ln_1.bias', which the model has not");
  o = small, o.heads = 3;
  EXPECT_ERROR(try_open(path, &o), INVALID, "lm_hidden: width 16, 3 heads");
  o = small, o.untied = true;
  EXPECT_ERROR(try_open(path, &o), INVALID, "has no tensor 'lm_head.weight'");
  o = small, o.activation = "a word that is longer than any activation";
  EXPECT_ERROR(try_open(path, &o), INVALID, "there is no activation 'a word that is longer than any");
  EXPECT_ERROR(try_open("/nowhere/at.all", &small), IO, "/nowhere/at.all");
  unlink(path);
  for (int same = 0; same < 2; same++) { /* an output weight beside the embedding */
    float *head = malloc((size_t)VOCABULARY * 16 * sizeof *head);
    memcpy(head, w.at[0].data, (size_t)VOCABULARY * 16 * sizeof *head);
    assert_string_equal(w.at[0].name, "transformer.wte.weight");
    head[5] += same ? 0 : 1;
    weights_add(&w, "lm_head.weight", 2, (int64_t[]){VOCABULARY, 16}, head);
    path = weights_write(&w, "head");
    if (same)
      EXPECT_OK(try_open(path, &small));
    else
      EXPECT_ERROR(try_open(path, &small), INVALID, "'lm_head.weight' is not the embedding, as the model has it");
    unlink(path);
    w.n--;
    free((void *)w.at[w.n].name), free((void *)w.at[w.n].dims), free(head);
  }
  weights_free(&w);
}

/* Checkpoints: the newest whole one of a folder, or one by its own folder; moments do not matter. */
static void checkpoints(void **state) {
  (void)state;
  struct weights w;
  char dir[128], command[300];
  float first[VOCABULARY], second[VOCABULARY], other[VOCABULARY];
  make_text();
  snprintf(dir, sizeof dir, "/tmp/quern-generate-%ld", (long)getpid());
  weights_make(&w, &small);
  weights_add(&w, "optim.transformer.wte.weight.m", 1, (int64_t[]){3}, calloc(3, sizeof(float)));
  quern_checkpoint_contents contents = QUERN_INIT(quern_checkpoint_contents);
  contents.n_tensors = w.n, contents.tensors = w.at, contents.step = 5;
  EXPECT_OK(quern_checkpoint_save(dir, &contents));
  logits_of(dir, first);
  ((float *)w.at[0].data)[ids[5] * 16] += 1;
  contents.step = 6;
  EXPECT_OK(quern_checkpoint_save(dir, &contents));
  logits_of(dir, second);
  assert_memory_not_equal(first, second, sizeof first);
  snprintf(command, sizeof command, "%s/step-00000005", dir);
  logits_of(command, other);
  assert_memory_equal(first, other, sizeof first);
  EXPECT_ERROR(quern_generator_open_run(&(quern_generator *){NULL}, "/nowhere", NULL, NULL), IO, "no checkpoint in it");
  snprintf(command, sizeof command, "rm -r '%s'", dir);
  assert_int_equal(system(command), 0);
  weights_free(&w);
}

/* ---- use ---------------------------------------------------------------------------------------------------------- */

static void use(void **state) {
  (void)state;
  struct weights w;
  quern_sampling s = QUERN_INIT(quern_sampling);
  uint32_t id, bad[] = {3, VOCABULARY};
  make_text();
  weights_make(&w, &small);
  const char *path = weights_write(&w, "use");
  quern_generate_options options = QUERN_INIT(quern_generate_options);
  quern_generator *g;
  options.most = 9;
  EXPECT_ERROR(quern_generator_open(&g, path, &small, &options), INVALID, "most is 9; the model has 8 positions");
  options.most = -1;
  EXPECT_ERROR(quern_generator_open(&g, path, &small, &options), INVALID, "most is -1");
  g = open_at(path, &small, "interp", 1, 0, false);
  assert_int_equal(quern_generator_most(g), 8);
  assert_int_equal(quern_generator_vocab(g), VOCABULARY);
  EXPECT_ERROR(quern_generator_next(g, &s, &id), STATE, "nothing has been fed");
  EXPECT_ERROR(quern_generator_feed(g, 0, NULL, got), STATE, "no logits before the first token");
  EXPECT_OK(quern_generator_feed(g, 0, NULL, NULL));
  EXPECT_ERROR(quern_generator_feed(g, 2, bad, NULL), INVALID, "id 1 is 61; the model has 61");
  EXPECT_ERROR(quern_generator_feed(g, 9, ids, NULL), STATE, "9 more tokens after 0; the generator has room for 8");
  EXPECT_OK(quern_generator_feed(g, 7, ids, want[0]));
  EXPECT_OK(quern_generator_feed(g, 0, NULL, got));
  assert_memory_equal(got, want[0], sizeof got);
  EXPECT_ERROR(quern_generator_feed(g, 2, ids, NULL), STATE, "2 more tokens after 7");
  EXPECT_OK(quern_generator_next(g, &s, &id));
  EXPECT_ERROR(quern_generator_next(g, &s, &id), STATE, "all 8 places are taken");
  quern_generator_reset(g);
  EXPECT_ERROR(quern_generator_next(g, &s, &id), STATE, "nothing has been fed");
  EXPECT_OK(quern_generator_feed(g, 7, ids, got));
  assert_memory_equal(got, want[0], sizeof got);
  quern_generator_free(g);
  quern_generator_free(NULL);
  quern_generator_reset(NULL);
  assert_int_equal(quern_generator_most(NULL) + quern_generator_vocab(NULL), 0);
  unlink(path);

  /* a place that gives NaN: told when a token is to be chosen, and forgotten with the tokens */
  size_t places = 0;
  while (strcmp(w.at[places].name, "transformer.wpe.weight") != 0) places++;
  ((float *)w.at[places].data)[(size_t)5 * 16] = NAN;
  path = weights_write(&w, "nan");
  g = open_at(path, &small, "interp", 1, 0, false);
  EXPECT_OK(quern_generator_feed(g, 5, ids, want[0]));
  EXPECT_OK(quern_generator_feed(g, 1, ids, NULL));
  EXPECT_ERROR(quern_generator_next(g, &s, &id), INVALID, "sample: logit 0 of 61 is");
  quern_generator_reset(g);
  EXPECT_OK(quern_generator_feed(g, 5, ids, got));
  assert_memory_equal(got, want[0], sizeof got);
  quern_generator_free(g);
  unlink(path);
  weights_free(&w);
}

static void faults(void **state) {
  (void)state;
  struct weights w;
  struct fault fault = {0};
  const quern_lm_options tiny = {.size = sizeof tiny,
                                 .names = QUERN_LM_GPT2,
                                 .vocabulary = 3,
                                 .positions = 20,
                                 .layers = 1,
                                 .width = 4,
                                 .heads = 1};
  weights_make(&w, &tiny);
  const char *path = weights_write(&w, "faults");
  quern_generate_options options = QUERN_INIT(quern_generate_options);
  options.device = "interp";
  options.threads = 1;
  options.allocator = memory_allocator;
  const uint32_t few[] = {0, 1, 2, 1, 0, 2};
  while (fault_next(&fault)) {
    quern_generator *g;
    size_t live = memory_live;
    fault_begin(&fault);
    quern_status status = quern_generator_open(&g, path, &tiny, &options);
    if (status == QUERN_STATUS_OK) status = quern_generator_feed(g, 6, few, NULL);
    fault_end(&fault);
    EXPECT_FAULT(&fault, status);
    if (g != NULL && fault.met) EXPECT_OK(quern_generator_feed(g, 6, few, got)); /* it goes on as if nothing had been */
    quern_generator_free(g);
    assert_int_equal(memory_live, live);
    if (fault.n > 40) fault.n += fault.n / 40; /* some of the many */
  }
  assert_true(fault.n > 500);
  unlink(path);
  weights_free(&w);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(lengths), TEST(bits_cpu),    TEST(bits_interp), TEST(no_cache),
                                     TEST(texts),   TEST(huggingface), TEST(halves),      TEST(precisions),
                                     TEST(others),  TEST(checkpoints), TEST(use),         TEST(faults)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
