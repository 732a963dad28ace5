/* tests/engine/test_dynamic_batch.c -- a dynamic batch that is given at each run
** A model is run with all rows, then with fewer: in memory of exactly so many rows, which ends where nothing may be touched. The
** rows have the bits of the run with all of them, and of a program that was compiled for so many.
*/
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include "engine/dynamic_batch_test.h"

enum { MOST = 7 };

/* ---- models: inputs with B rows, other inputs, outputs -------------------------------------------------------- */

struct model {
  size_t n_dynamic_batch, n_outs;
  quern_tensor *leading[MOST_LEADING_SLOTS], *outs[MOST_LEADING_SLOTS];
};

static float weights[1 << 16];

/* A constant. */
static quern_tensor *weight(int rank, const int64_t *dims) {
  return quern_tensor_wrap(ctx, QUERN_DTYPE_F32, rank, dims, weights);
}
#define WEIGHT(...) weight(QUERN_LIST(__VA_ARGS__))

static quern_tensor *lead(struct model *m, quern_tensor *t) { return m->leading[m->n_dynamic_batch++] = t; }
static void give(struct model *m, quern_tensor *t) { m->outs[m->n_outs++] = t; }

static void mlp(struct model *m, int64_t B) {
  quern_tensor *x = lead(m, F32_INPUT("x", B, 24)), *scale = F32_INPUT("scale", 24);
  quern_tensor *h = quern_layer_norm(x, 1, scale, NULL, 1e-5);
  h = quern_gelu(quern_linear(h, WEIGHT(40, 24), WEIGHT(40)));
  h = quern_linear(h, F32_INPUT("w", 10, 40), NULL);
  give(m, quern_softmax(h, 1));
  give(m, quern_add(quern_sum(h, QUERN_LIST(1), false), quern_mean(x, QUERN_LIST(1), false)));
}

static void wide(struct model *m, int64_t B) { /* more terms than a block, and columns than a tile */
  quern_tensor *x = lead(m, F32_INPUT("x", B, 600));
  give(m, quern_relu(quern_linear(x, WEIGHT(70, 600), NULL)));
}

static void one_column(struct model *m, int64_t B) {
  quern_tensor *x = lead(m, F32_INPUT("x", B, 30));
  give(m, quern_matmul(x, F32_INPUT("w", 30, 1)));
}

static void convolution(struct model *m, int64_t B) {
  quern_conv_options padded = {.size = sizeof padded, .pad_lo = {1, 1}, .pad_hi = {1, 1}};
  quern_tensor *x = lead(m, F32_INPUT("x", B, 3, 6, 5));
  quern_tensor *y = quern_relu(quern_conv2d(x, WEIGHT(4, 3, 3, 3), WEIGHT(4), &padded));
  quern_pool_options pool = {.size = sizeof pool, .window = {2, 2}, .stride = {2, 2}};
  give(m, quern_max_pool(y, &pool));
  give(m, quern_linear(quern_flatten(y, 1, 3), WEIGHT(3, 120), NULL));
}

static void attention(struct model *m, int64_t B) {
  enum { T = 5, C = 16, H = 2 };
  quern_attention_options causal = {.size = sizeof causal, .causal = true};
  quern_tensor *x = lead(m, F32_INPUT("x", B, T, C)), *part[3];
  quern_tensor *qkv = quern_linear(quern_reshape(x, QUERN_LIST(B * T, C)), WEIGHT(3 * C, C), NULL);
  for (int i = 0; i < 3; i++) {
    quern_tensor *one = quern_slice(qkv, 1, i * C, (i + 1) * C, 1);
    part[i] = quern_transpose(quern_reshape(one, QUERN_LIST(B, T, H, C / H)), 1, 2);
  }
  quern_tensor *y = quern_attention(part[0], part[1], part[2], NULL, &causal, NULL);
  y = quern_reshape(quern_transpose(y, 1, 2), QUERN_LIST(B, T, C));
  give(m, quern_add(x, quern_linear(y, WEIGHT(C, C), NULL)));
}

static void scores(struct model *m, int64_t B) { /* attention by hand, and rows that are not outermost on the way */
  quern_tensor *q = lead(m, F32_INPUT("q", B, 3, 8)), *k = lead(m, F32_INPUT("k", B, 4, 8));
  quern_tensor *s = quern_softmax(quern_matmul(q, quern_transpose(k, 1, 2)), 2);
  quern_tensor *t = quern_sum(quern_permute(quern_matmul(s, k), QUERN_LIST(1, 0, 2)), QUERN_LIST(2), false);
  give(m, quern_transpose(t, 0, 1));
}

static void tokens(struct model *m, int64_t B) {
  quern_tensor *ids = lead(m, quern_input(ctx, "ids", QUERN_DTYPE_I32, QUERN_LIST(B, 4)));
  quern_tensor *x = quern_gather(WEIGHT(9, 6), ids, 0); /* (B, 4, 6) */
  quern_tensor *at = lead(m, I64_INPUT("at", B, 2)),
               *picked = quern_take_along(quern_mean(x, QUERN_LIST(2), false), at, 1);
  give(m, quern_argmax(quern_matmul(x, WEIGHT(6, 9)), 2, false));
  give(m, picked);
}

static void lines(struct model *m, int64_t B) { /* sort, scan, concat, pad, flip, window, slices */
  quern_tensor *x = lead(m, F32_INPUT("x", B, 12)), *indices;
  quern_tensor *s = quern_sort(x, 1, true, &indices), *both[] = {s, quern_flip(x, QUERN_LIST(1))};
  quern_tensor *c = quern_cumsum(quern_concat(2, both, 1), 1);
  give(m, quern_pad(quern_slice(c, 1, 3, 20, 2), QUERN_LIST(0, 1), (const int64_t[]){0, 2}, 0.5));
  give(m, indices);
  give(m, quern_max(quern_window(x, QUERN_LIST(1), (const int64_t[]){3}, NULL, NULL), QUERN_LIST(2), false));
  give(m, quern_topk(x, 3, 1, true, NULL));
}

static void fixed(struct model *m, int64_t B) { /* an output without rows, one that is an input, one a constant */
  quern_tensor *x = lead(m, F32_INPUT("x", B, 3)), *w = F32_INPUT("w", 3);
  give(m, quern_mul(x, w));
  give(m, quern_exp(w));
  give(m, x);
  give(m, quern_broadcast_to(quern_sum(w, QUERN_ALL, false), QUERN_LIST(2, 2)));
}

static void turn(void *user, quern_tensor *const *args, quern_tensor **results) {
  (void)user;
  results[0] = quern_tanh(quern_add(quern_matmul(args[1], args[2]), args[3]));
  results[1] = quern_max(results[0], QUERN_LIST(1), false);
}

static void layers(struct model *m, int64_t B) { /* a loop: carry and capture have rows, weights are scanned */
  quern_tensor *x = lead(m, F32_INPUT("x", B, 5)), *results[2];
  quern_tensor *operands[] = {quern_zeros(ctx, QUERN_DTYPE_F32, QUERN_LIST(B, 5)), WEIGHT(3, 5, 5), x};
  quern_loop_options options = {
      .size = sizeof options, .trip = 3, .n_carries = 1, .n_scanned = 1, .n_captures = 1, .n_stacked = 1};
  if (quern_loop(ctx, &options, operands, turn, NULL, results) != QUERN_STATUS_OK) fail();
  give(m, results[0]);
  give(m, quern_transpose(results[1], 0, 1));
}

typedef void build_model(struct model *m, int64_t B);

static const struct {
  const char *name;
  build_model *build;
} models[] = {{"mlp", mlp},
              {"wide", wide},
              {"one_column", one_column},
              {"convolution", convolution},
              {"attention", attention},
              {"scores", scores},
              {"tokens", tokens},
              {"lines", lines},
              {"fixed", fixed},
              {"layers", layers}};

/* ---- running ---------------------------------------------------------------------------------------------- */

/* The same by a program for just so many rows. */
static void expect_own(build_model *build, const quern_program *p, int64_t rows, const quern_program_options *options,
                       const char *name) {
  struct model m = {0};
  quern_program_options o = *options;
  quern_program *own;
  quern_instance *runs;
  build(&m, rows);
  o.n_dynamic_batch = 0;
  EXPECT_OK(quern_program_compile(&own, ctx, m.n_outs, m.outs, &o));
  EXPECT_OK(quern_instance_new(&runs, own));
  run_rows(runs, 0, rows, rows, got);
  expect_rows(p, 0, rows, name);
  quern_instance_free(runs);
  quern_program_free(own);
}

static void expect_model(build_model *build, const quern_program_options *options, bool own, const char *name) {
  struct model m = {0};
  quern_program_options o = *options;
  quern_program *p;
  quern_instance *runs;
  build(&m, MOST);
  o.n_dynamic_batch = m.n_dynamic_batch;
  o.dynamic_batch = m.leading;
  EXPECT_OK(quern_program_compile(&p, ctx, m.n_outs, m.outs, &o));
  EXPECT_OK(quern_instance_new(&runs, p));
  assert_int_equal(quern_program_dynamic_batch(p), MOST);
  expect_independent(runs, name);
  for (int64_t rows = 1; rows <= MOST && own; rows++) expect_own(build, p, rows, options, name);
  quern_instance_free(runs);
  quern_program_free(p);
}

static void expect_models(quern_program_options options, bool own) {
  double x[1 << 10];
  test_fill(BASE_COUNT(x), x, 3);
  for (size_t i = 0; i < BASE_COUNT(weights); i++) weights[i] = (float)x[i % 1021] / 4;
  for (size_t i = 0; i < BASE_COUNT(models); i++) {
    expect_model(models[i].build, &options, own, models[i].name);
    test_renew();
  }
}

static const quern_program_options interp = {sizeof interp, "interp", .threads = 1};

static void interpreted(void **state) {
  (void)state;
  quern_program_options options = interp;
  expect_models(options, true);
}

static void interpreted_plainly(void **state) {
  (void)state;
  quern_program_options options = interp;
  options.optimize = QUERN_OPTIMIZE_NONE;
  expect_models(options, false);
}

static void compiled(void **state) {
  (void)state;
  quern_program_options options = interp;
  options.device = "cpu";
  expect_models(options, false);
  options.threads = 2;
  expect_models(options, false);
}

/* ---- what is refused ------------------------------------------------------------------------------------------ */

static quern_status compile(quern_tensor *x, quern_tensor *y) {
  quern_program_options options = interp;
  options.n_dynamic_batch = 1;
  options.dynamic_batch = &x;
  quern_status status = quern_program_compile(&program, ctx, 1, &y, &options);
  quern_program_free(program);
  program = NULL;
  return status;
}

static void is_positive(void *user, quern_tensor *const *args, quern_tensor **results) {
  (void)user;
  results[0] = quern_gt(quern_sum(args[0], QUERN_ALL, false), quern_scalar(ctx, QUERN_DTYPE_F32, 0));
}

static void halve(void *user, quern_tensor *const *args, quern_tensor **results) {
  (void)user;
  results[0] = quern_mul_scalar(args[0], 0.5);
}

static void rows_that_mix_are_refused(void **state) {
  (void)state;
  quern_tensor *x = F32_INPUT("x", 6, 4), *w = F32_INPUT("w", 3, 6), *y;
#define REFUSED(y, words) EXPECT_ERROR(compile(x, (y)), UNSUPPORTED, (words))
  REFUSED(quern_sum(x, QUERN_LIST(0), false),
          "dynamic batch: reduce of f32(6, 4) mixes rows, or leaves some out: the dynamic batch of 6 lies in axis 0");
  REFUSED(quern_softmax(x, 0), "dynamic batch: reduce of f32(6, 4) mixes rows");
  REFUSED(quern_matmul(w, x), "dynamic batch: dot of f32(6, 4) mixes rows");
  REFUSED(quern_matmul(x, quern_transpose(x, 0, 1)),
          "dynamic batch: dot mixes rows: they lie differently in its sources");
  REFUSED(quern_cumsum(x, 0), "dynamic batch: scan of f32(6, 4) mixes rows");
  REFUSED(quern_sort(x, 0, false, NULL), "dynamic batch: sort of f32(6, 4) mixes rows");
  REFUSED(quern_argmax(x, 0, false), "dynamic batch: argreduce of f32(6, 4) mixes rows");
  REFUSED(quern_flip(x, QUERN_LIST(0)), "dynamic batch: flip of f32(6, 4) mixes rows");
  REFUSED(quern_slice(x, 0, 1, 3, 1), "dynamic batch: slice of f32(6, 4) mixes rows, or leaves some out");
  REFUSED(quern_pad(x, QUERN_LIST(1, 0), (const int64_t[]){0, 0}, 1), "dynamic batch: pad of f32(6, 4) mixes rows");
  REFUSED(quern_concat(2, (quern_tensor *[]){x, x}, 0), "dynamic batch: concat of f32(6, 4) mixes rows");
  REFUSED(quern_gather(x, I64_INPUT("i", 3), 0), "dynamic batch: gather of f32(6, 4) mixes rows");
  REFUSED(quern_window(x, QUERN_LIST(0), (const int64_t[]){2}, NULL, NULL),
          "dynamic batch: window of f32(6, 4) mixes rows");
  REFUSED(quern_add(quern_reshape(x, QUERN_LIST(4, 6)), quern_transpose(x, 0, 1)),
          "dynamic batch: add mixes rows: they lie differently in its sources 0, f32(4, 6), and 1, f32(4, 6)");
  REFUSED(quern_sum(quern_reshape(x, QUERN_LIST(3, 8)), QUERN_LIST(1), false),
          "dynamic batch: reduce of f32(3, 8): the dynamic batch of 6 lies across several axes of its source 0");
  REFUSED(quern_transpose(quern_exp(x), 0, 1), "dynamic batch: output 0 is f32(4, 6), in which the rows");
  quern_tensor *any =
      quern_gt(quern_reshape(quern_slice(x, 0, 0, 1, 1), QUERN_LIST(4)), quern_zeros_like(F32_INPUT("z", 4)));
  REFUSED(any, "dynamic batch: slice of f32(6, 4)");
  EXPECT_OK(quern_while(ctx, 1, 0, &x, is_positive, halve, NULL, &y));
  REFUSED(y, "dynamic batch: reduce of f32(6, 4) mixes rows");
#undef REFUSED
  quern_update update = {F32_STATE("s", 6, 4), x};
  quern_program_options options = interp;
  options.n_dynamic_batch = 1;
  options.dynamic_batch = &x;
  options.n_updates = 1;
  options.updates = &update;
  EXPECT_ERROR(quern_program_compile(&program, ctx, 0, NULL, &options), UNSUPPORTED,
               "dynamic batch: the new value of state \"s\" depends on rows of the dynamic batch of 6");
}

/* Loss and statistics of the batch mix rows however they are built. */
static void batches_are_refused(void **state) {
  (void)state;
  quern_tensor *x = F32_INPUT("x", 6, 4), *labels = I64_INPUT("labels", 6);
  EXPECT_ERROR(compile(x, quern_cross_entropy(x, labels, NULL)), UNSUPPORTED, "mixes rows");
  EXPECT_ERROR(compile(x, quern_var(x, QUERN_LIST(0), true, 0)), UNSUPPORTED, "mixes rows");
}

/* ---- how many rows ------------------------------------------------------------------------------------------ */

static void open_mlp(const char *device) {
  struct model m = {0};
  quern_program_options options = interp;
  options.device = device;
  mlp(&m, MOST);
  options.n_dynamic_batch = m.n_dynamic_batch;
  options.dynamic_batch = m.leading;
  EXPECT_OK(quern_program_compile(&program, ctx, m.n_outs, m.outs, &options));
  EXPECT_OK(quern_instance_new(&instance, program));
  fill_inputs(program);
}

static void rows_are_checked(void **state) {
  (void)state;
  open_mlp("interp");
  EXPECT_ERROR(quern_instance_set_dynamic_batch(instance, MOST + 1), INVALID,
               "instance_set_dynamic_batch: 8 rows; the program was compiled for 0 to 7");
  EXPECT_ERROR(quern_instance_set_dynamic_batch(instance, -1), INVALID, "instance_set_dynamic_batch: -1 rows");
  assert_int_equal(instance->rows, MOST);
  EXPECT_OK(quern_instance_set_dynamic_batch(instance, 0));
  const void *ins[] = {NULL, elements[1], elements[2]}; /* of no rows nothing is read or written */
  void *none[] = {NULL, NULL};
  assert_true(program->inputs[0].dynamic_batch && !program->inputs[1].dynamic_batch &&
              !program->inputs[2].dynamic_batch);
  EXPECT_OK(quern_instance_run(instance, ins, none));
  EXPECT_OK(quern_instance_set_dynamic_batch(instance, 1));
  EXPECT_ERROR(quern_instance_run(instance, ins, none), INVALID, "instance_run: input 0, \"x\", is null");
  close_program();
  quern_tensor *y = quern_exp(F32_INPUT("x", 2));
  EXPECT_OK(quern_program_compile(&program, ctx, 1, &y, &interp));
  EXPECT_OK(quern_instance_new(&instance, program));
  assert_int_equal(quern_program_dynamic_batch(program), 0);
  EXPECT_ERROR(quern_instance_set_dynamic_batch(instance, 1), INVALID, "compiled without a dynamic batch");
  close_program();
}

static void soften(void *user, quern_tensor *const *args, quern_tensor **results) {
  (void)user;
  results[0] = quern_softmax(quern_add(args[1], args[2]), 1);
}

/* Of one row, far fewer tasks run than of all: in all kernels of a program that has many. */
static void fewer_rows_are_fewer_tasks(void **state) {
  (void)state;
  enum { ROWS = 256 };
  quern_program_options options = interp;
  quern_tensor *x = F32_INPUT("x", ROWS, 512), *images = F32_INPUT("images", ROWS, 8, 14, 14);
  quern_conv_options padded = {.size = sizeof padded, .pad_lo = {1, 1}, .pad_hi = {1, 1}};
  quern_tensor *inputs_of[] = {x, images}, *scanned[] = {x, WEIGHT(3, 512)}, *softened;
  quern_loop_options thrice = {.size = sizeof thrice, .trip = 3, .n_carries = 1, .n_scanned = 1};
  EXPECT_OK(quern_loop(ctx, &thrice, scanned, soften, NULL, &softened));
  quern_tensor *outs[] = {softened,
                          quern_softmax(x, 1),
                          quern_layer_norm(quern_gelu(x), 1, NULL, NULL, 1e-5),
                          quern_cumsum(quern_sort(x, 1, false, NULL), 1),
                          quern_linear(x, F32_INPUT("w", 100, 512), NULL),
                          quern_relu(quern_conv2d(images, F32_INPUT("k", 8, 8, 3, 3), NULL, &padded))};
  options.n_dynamic_batch = BASE_COUNT(inputs_of);
  options.dynamic_batch = inputs_of;
  options.device = "null";
  for (int optimize = 0; optimize < 2; optimize++) {
    options.optimize = optimize > 0 ? QUERN_OPTIMIZE_DEFAULT : QUERN_OPTIMIZE_NONE;
    EXPECT_OK(quern_program_compile(&program, ctx, BASE_COUNT(outs), outs, &options));
    for (int k = 0; k < program->n_kernels; k++) {
      const struct kern *kern = program->kernels[k];
      for (int phase = 0; phase < kern->n_phases; phase++) {
        int64_t rows[] = {0, 1, ROWS}, count[3];
        for (int i = 0; i < 3; i++) count[i] = kern_task_count(&kern->phases[phase], &rows[i]);
        bool dot = strstr(kern->name, "_dot_") != NULL;
        if (count[2] <= 1 || (dot && optimize == 1)) continue; /* its tasks end early */
        assert_int_equal(count[0], 0);
        if (count[1] * 4 <= count[2]) continue;
        print_error("%s, phase %d: %lld tasks for a row, %lld for all\n", kern->name, phase, (long long)count[1],
                    (long long)count[2]);
        fail();
      }
    }
    quern_program_free(program);
  }
  program = NULL;
}

/* A body that one loop runs on rows and another on what has none: it knows of no rows. */
static void shared_bodies(void **state) {
  (void)state;
  quern_program_options options = interp;
  quern_tensor *x = F32_INPUT("x", MOST, 6), *z = F32_INPUT("z", MOST, 6), *outs[2];
  quern_loop_options thrice = {.size = sizeof thrice, .trip = 3, .n_carries = 1, .n_scanned = 1};
  for (int i = 0; i < 2; i++) {
    quern_tensor *operands[] = {i == 0 ? z : x, WEIGHT(3, 6)};
    EXPECT_OK(quern_loop(ctx, &thrice, operands, soften, NULL, &outs[i]));
  }
  options.n_dynamic_batch = 1;
  options.dynamic_batch = &x;
  EXPECT_OK(quern_program_compile(&program, ctx, 2, outs, &options));
  assert_int_equal(program->n_subprograms, 2);
  assert_true(!program->outputs[0].dynamic_batch && program->outputs[1].dynamic_batch);
  EXPECT_OK(quern_instance_new(&instance, program));
  expect_independent(instance, "shared bodies");
  close_program();
}

/* Of at most one row, anything may be computed; of none nothing is. */
static void one_row_at_most(void **state) {
  (void)state;
  quern_program_options options = interp;
  quern_tensor *x = F32_INPUT("x", 1, 8), *y = quern_sum(quern_exp(x), QUERN_ALL, false);
  float in[8] = {0}, out = -1;
  options.n_dynamic_batch = 1;
  options.dynamic_batch = &x;
  EXPECT_OK(quern_program_compile(&program, ctx, 1, &y, &options));
  EXPECT_OK(quern_instance_new(&instance, program));
  for (int64_t rows = 0; rows < 2; rows++) {
    EXPECT_OK(quern_instance_set_dynamic_batch(instance, rows));
    EXPECT_OK(quern_instance_run(instance, (const void *[]){in}, (void *[]){&out}));
    assert_true(out == (rows == 0 ? -1 : 8));
  }
  close_program();
}

static void staging_counts(void **state) {
  (void)state;
  open_mlp("interp");
  quern_memory_plan memory = QUERN_INIT(quern_memory_plan);
  EXPECT_OK(quern_program_get_memory(program, &memory));
  assert_int_equal(memory.staging, (MOST * 24 * 4 + 63) / 64 * 64 + (MOST * 10 * 4 + 63) / 64 * 64 + 64);
  close_program();
  struct model m = {0};
  quern_program_options options = interp;
  mlp(&m, MOST);
  options.n_dynamic_batch = m.n_dynamic_batch;
  options.dynamic_batch = m.leading;
  options.memory_limit = memory.arena + memory.scratch + memory.staging;
  EXPECT_OK(quern_program_compile(&program, ctx, m.n_outs, m.outs, &options));
  quern_program_free(program);
  options.memory_limit = memory.staging;
  EXPECT_ERROR(quern_program_compile(&program, ctx, m.n_outs, m.outs, &options), MEMORY, "cannot be met");
}

/* ---- files, faults, the evaluator ------------------------------------------------------------------------------ */

#define PATH "build-test-leading.qprg"

static void saved_programs_have_rows(void **state) {
  (void)state;
  open_mlp("cpu");
  run_rows(instance, 0, MOST, MOST, want);
  EXPECT_OK(quern_program_save(program, PATH));
  close_program();
  EXPECT_OK(quern_program_load(&program, PATH));
  EXPECT_OK(quern_instance_new(&instance, program));
  assert_int_equal(quern_program_dynamic_batch(program), MOST);
  for (int64_t rows = 0; rows <= MOST; rows += 3) {
    EXPECT_OK(quern_instance_set_dynamic_batch(instance, rows));
    run_rows(instance, 0, rows, MOST, got);
    expect_rows(program, 0, rows, "loaded");
  }
  close_program();
  assert_int_equal(unlink(PATH), 0);
}

static void compiling_without_memory(void **state) {
  (void)state;
  struct fault fault = {0};
  while (fault_next(&fault)) {
    test_renew();
    struct model m = {0};
    quern_program_options options = interp;
    layers(&m, 3);
    options.n_dynamic_batch = m.n_dynamic_batch;
    options.dynamic_batch = m.leading;
    fault_begin(&fault);
    quern_status status = quern_program_compile(&program, ctx, m.n_outs, m.outs, &options);
    if (status == QUERN_STATUS_OK) status = quern_instance_new(&instance, program);
    fault_end(&fault);
    EXPECT_FAULT(&fault, status);
    close_program();
  }
  assert_true(fault.n > 100);
}

static void evaluator_sees_rows_only(void **state) {
  (void)state;
  for (size_t i = 0; i < BASE_COUNT(models); i++) {
    struct model m = {0};
    quern_program_options options = interp;
    models[i].build(&m, MOST);
    options.n_dynamic_batch = m.n_dynamic_batch;
    options.dynamic_batch = m.leading;
    struct engine_request request = {.ctx = ctx,
                                     .n_outputs = m.n_outs,
                                     .outputs = m.outs,
                                     .options = options,
                                     .ref = true,
                                     .device = rt_device_at(&rt_interp, 0)};
    EXPECT_OK(engine_compile(&program, &request));
    EXPECT_OK(quern_instance_new(&instance, program));
    fill_inputs(program);
    for (int64_t rows = 0; rows <= MOST; rows += 2) {
      EXPECT_OK(quern_instance_set_dynamic_batch(instance, rows));
      run_rows(instance, 0, rows, MOST, got);
    }
    quern_run_stats counts = QUERN_INIT(quern_run_stats);
    EXPECT_OK(quern_instance_get_stats(instance, &counts));
    assert_true(counts.evaluated > 0);
    close_program();
  }
}

/* Leading inputs are part of what a program is kept under. */
static void cache_knows_rows(void **state) {
  (void)state;
  quern_tensor *x = F32_INPUT("x", 3, 2), *z = F32_INPUT("z", 3, 2), *y = quern_add(x, z);
  uint64_t key[2][2];
  for (int i = 0; i < 2; i++) {
    struct engine_request request = {
        .ctx = ctx, .n_outputs = 1, .outputs = &y, .options = interp, .device = rt_device_at(&rt_interp, 0)};
    request.options.n_dynamic_batch = (size_t)i;
    request.options.dynamic_batch = &x;
    EXPECT_OK(engine_cache_key(&request, key[i]));
  }
  assert_true(key[0][0] != key[1][0] && key[0][1] != key[1][1]);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(interpreted),
      TEST(interpreted_plainly),
      TEST(compiled),
      TEST(rows_that_mix_are_refused),
      TEST(batches_are_refused),
      TEST(rows_are_checked),
      TEST(fewer_rows_are_fewer_tasks),
      TEST(shared_bodies),
      TEST(one_row_at_most),
      TEST(staging_counts),
      TEST(saved_programs_have_rows),
      TEST(compiling_without_memory),
      TEST(evaluator_sees_rows_only),
      TEST(cache_knows_rows),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
