/* tests/engine/test_remat.c -- gradient checkpointing of training steps: the same bits in less memory; the curve */
#include "base/base.h"
#include "quern/quern.h"
#include "unit.h"

enum { B = 2, T = 20, STEPS = 2, MOST_STATES = 4 << 20 };

/* How a step is made and compiled. */
struct way {
  const char *checkpoint;
  int64_t parts, limit;
  const char *device;
  double dropout, clip;
  int64_t every; /* recompute_every */
};

struct made {
  quern_memory_plan memory;
  quern_program_stats counts;
  float losses[STEPS];
  size_t bytes; /* of states */
  char states[MOST_STATES];
};

static quern_lm_options sizes(const struct way *way) {
  quern_lm_options o = QUERN_INIT(quern_lm_options);
  EXPECT_OK(quern_lm_named(&o, "modern:64x6"));
  o.vocabulary = 61;
  o.positions = 32;
  o.hidden = 128;
  o.dropout = way->dropout;
  EXPECT_OK(quern_lm_set_checkpointing(&o, way->checkpoint));
  return o;
}

static quern_tensor *loss_of(quern_model *model, size_t n, quern_tensor *const *inputs, void *user) {
  (void)n;
  return quern_lm_loss(quern_model_scope(model), inputs[0], inputs[1], user);
}

/* The step of a way: its loss, the norm of the gradients, its updates. */
struct step {
  quern_model *model;
  quern_step *step;
  quern_lm_options lm;
  quern_tensor *outputs[2];
  quern_program_options options;
};

static void step_open(struct step *s, const struct way *way) {
  quern_model_options model = QUERN_INIT(quern_model_options);
  model.seed = 5;
  *s = (struct step){.lm = sizes(way), .options = QUERN_INIT(quern_program_options)};
  EXPECT_OK(quern_model_new(&s->model, ctx, &model));
  quern_model_begin(s->model, true);
  quern_tensor *in[2];
  for (int i = 0; i < 2; i++) in[i] = quern_input(ctx, i == 0 ? "tokens" : "labels", QUERN_DTYPE_I32, QUERN_LIST(B, T));
  quern_optim_options optim = QUERN_INIT(quern_optim_options);
  optim.clip_norm = way->clip;
  EXPECT_OK(quern_step_accumulate(&s->step, s->model, way->parts, 2, in, loss_of, &s->lm, &optim, &s->outputs[0]));
  s->outputs[1] = quern_step_norm(s->step);
  EXPECT_OK(quern_context_check(ctx));
  s->options.device = way->device;
  s->options.threads = 2;
  s->options.memory_limit = way->limit;
  s->options.gradient_checkpointing = s->lm.checkpoint_every > 0;
  s->options.recompute_every = way->every;
  s->options.n_updates = quern_step_updates(s->step, &s->options.updates);
}

static void step_close(struct step *s) {
  quern_step_free(s->step);
  quern_model_free(s->model);
}

static void train(const quern_program *program, struct made *made) {
  quern_instance *instance;
  static int32_t tokens[B * T], labels[B * T];
  float lr = 1e-3f, norm;
  EXPECT_OK(quern_instance_new(&instance, program));
  for (size_t i = 0; i < quern_program_state_count(program); i++) {
    quern_slot slot = QUERN_INIT(quern_slot);
    EXPECT_OK(quern_program_state(program, i, &slot));
    float *x = quern_instance_state(instance, i);
    bool moment = slot.name == NULL || strncmp(slot.name, "optim", 5) == 0;
    for (size_t k = 0; slot.dtype == QUERN_DTYPE_F32 && !moment && k < slot.bytes / sizeof *x; k++)
      x[k] = slot.rank == 1 ? 1 : (float)((int)(k * 7919 + i) % 201 - 100) * 1e-3f;
  }
  for (int i = 0; i < B * T; i++) {
    tokens[i] = i * 13 % 61;
    labels[i] = (i * 13 + 13) % 61;
  }
  const void *ins[3] = {0};
  for (size_t i = 0; i < quern_program_input_count(program); i++) {
    quern_slot slot = QUERN_INIT(quern_slot);
    EXPECT_OK(quern_program_input(program, i, &slot));
    ins[i] = slot.rank == 0 ? (void *)&lr : strcmp(slot.name, "tokens") == 0 ? (void *)tokens : (void *)labels;
  }
  for (int i = 0; i < STEPS; i++) EXPECT_OK(quern_instance_run(instance, ins, (void *[]){&made->losses[i], &norm}));
  made->bytes = 0;
  for (size_t i = 0; i < quern_program_state_count(program); i++) {
    quern_slot slot = QUERN_INIT(quern_slot);
    EXPECT_OK(quern_program_state(program, i, &slot));
    assert_true(made->bytes + slot.bytes <= sizeof made->states);
    memcpy(made->states + made->bytes, quern_instance_state(instance, i), slot.bytes);
    made->bytes += slot.bytes;
  }
  quern_instance_free(instance);
}

/* Compiles and trains for some steps. */
static void make(const struct way *way, struct made *made) {
  struct step s;
  quern_program *program;
  test_renew();
  step_open(&s, way);
  EXPECT_OK(quern_program_compile(&program, ctx, 2, s.outputs, &s.options));
  made->memory = QUERN_INIT(quern_memory_plan);
  made->counts = QUERN_INIT(quern_program_stats);
  EXPECT_OK(quern_program_get_memory(program, &made->memory));
  EXPECT_OK(quern_program_get_stats(program, &made->counts));
  train(program, made);
  quern_program_free(program);
  step_close(&s);
}

static struct made plain, other;

static void expect_same(void) {
  assert_int_equal(plain.bytes, other.bytes);
  assert_memory_equal(plain.losses, other.losses, sizeof plain.losses);
  assert_memory_equal(plain.states, other.states, plain.bytes);
}

/* The same bits with every word, on both devices, with dropout and clipping, in one part and in several. */
static void same_bits(void **state) {
  (void)state;
  static const char *const words[] = {"block", "every:2", "sqrt", "every:100"};
  static const struct way ways[] = {
      {"none", 1, 0, "interp", 0.1, 0, 0}, {"none", 1, 0, "cpu", 0, 1, 0}, {"none", 2, 0, "cpu", 0.1, 1, 0}};
  for (size_t i = 0; i < BASE_COUNT(ways); i++) {
    make(&ways[i], &plain);
    assert_true(plain.losses[STEPS - 1] < plain.losses[0] && plain.counts.recomputed == 0);
    for (size_t k = 0; k < (i == 0 ? BASE_COUNT(words) : 2); k++) {
      struct way way = ways[i];
      way.checkpoint = words[k];
      make(&way, &other);
      expect_same();
      if (k + 1 < BASE_COUNT(words)) {
        assert_true(other.counts.recomputed > 20);
        assert_true(other.memory.held < plain.memory.held * (k == 0 ? 5 : 7) / 10);
        assert_true(other.memory.arena < plain.memory.arena);
      } else { /* nothing is kept */
        assert_int_equal(other.counts.recomputed, 0);
        assert_int_equal(other.memory.held, plain.memory.held);
      }
    }
  }
}

/* A graph that keeps nothing is cut: the same bits, with less held. */
static void cut(void **state) {
  (void)state;
  static const int64_t every[] = {QUERN_RECOMPUTE_SQRT, 10};
  static const struct way ways[] = {{"none", 1, 0, "interp", 0.1, 0, 0}, {"none", 2, 0, "cpu", 0.1, 1, 0}};
  for (size_t i = 0; i < BASE_COUNT(ways); i++) {
    make(&ways[i], &plain);
    for (size_t k = 0; k < BASE_COUNT(every); k++) {
      struct way way = ways[i];
      way.every = every[k];
      make(&way, &other);
      expect_same();
      assert_true(other.counts.recomputed > 10);
      assert_true(other.memory.held < plain.memory.held * 7 / 10 && other.memory.arena < plain.memory.arena);
    }
  }
}

static int64_t counted(const struct made *made) { return made->memory.arena + made->memory.scratch; }

/* The smallest limit that a refusal reports. */
static int64_t told_least(const struct way *like) {
  struct way way = *like;
  struct step s;
  quern_program *program;
  way.limit = 1;
  test_renew();
  step_open(&s, &way);
  int64_t least;
  s.options.least_limit = &least;
  EXPECT_ERROR(quern_program_compile(&program, ctx, 2, s.outputs, &s.options), MEMORY, "cannot be met");
  assert_true(least > 0);
  step_close(&s);
  return least;
}

/* Under limits, with and without kept tensors, in one part and in several: the same bits, within the limit. */
static void limits(void **state) {
  (void)state;
  static const struct way ways[] = {
      {"auto", 1, 0, "cpu", 0, 0, 0}, {"block", 1, 0, "cpu", 0, 0, 0}, {"auto", 2, 0, "cpu", 0, 1, 0}};
  for (size_t i = 0; i < BASE_COUNT(ways); i++) {
    struct way way = ways[i];
    make(&way, &plain);
    int64_t whole = counted(&plain), least = told_least(&way), parts[] = {whole, (whole + least) / 2, least};
    assert_true(least < whole);
    for (size_t k = 0; k < BASE_COUNT(parts); k++) {
      way.limit = parts[k];
      make(&way, &other);
      expect_same();
      assert_true(counted(&other) <= parts[k]);
      assert_true(k == 0 || other.counts.recomputed > plain.counts.recomputed);
    }
  }
}

/* Points go down in memory and do not go down in time; each is what a program with that limit has. */
static void curve(void **state) {
  (void)state;
  static const struct way ways[] = {{"auto", 1, 0, "null", 0, 0, 0}, {"block", 1, 0, "null", 0, 0, 0}};
  for (size_t w = 0; w < BASE_COUNT(ways); w++) {
    struct step s;
    quern_curve_point points[6] = {QUERN_INIT(quern_curve_point)};
    size_t n;
    int64_t least = told_least(&ways[w]);
    test_renew();
    step_open(&s, &ways[w]);
    s.options.memory_limit = 17; /* does not count */
    EXPECT_OK(quern_program_curve(ctx, 2, s.outputs, &s.options, 6, points, &n));
    assert_true(n >= 2 && n <= 6);
    assert_int_equal(points[0].limit, 0);
    assert_int_equal(points[n - 1].limit, least);
    for (size_t i = 0; i < n; i++) {
      quern_program *program;
      quern_memory_plan memory = QUERN_INIT(quern_memory_plan);
      quern_program_stats counts = QUERN_INIT(quern_program_stats);
      s.options.memory_limit = points[i].limit;
      EXPECT_OK(quern_program_compile(&program, ctx, 2, s.outputs, &s.options));
      EXPECT_OK(quern_program_get_memory(program, &memory));
      EXPECT_OK(quern_program_get_stats(program, &counts));
      assert_int_equal(points[i].arena, memory.arena);
      assert_int_equal(points[i].held, memory.held);
      assert_int_equal(points[i].bytes, memory.arena + memory.scratch);
      assert_int_equal(points[i].recomputed, counts.recomputed);
      quern_program_free(program);
      assert_true(points[i].seconds > 0 && points[i].seconds < 1);
      if (i == 0) continue;
      assert_true(points[i].bytes <= points[i].limit && points[i].bytes < points[0].bytes);
      assert_true(points[i].seconds > points[0].seconds && points[i].recomputed > points[0].recomputed);
    }
    step_close(&s);
  }
  /* what cannot do with less is one point */
  quern_tensor *y = quern_neg(quern_input(ctx, "x", QUERN_DTYPE_F32, QUERN_LIST(4)));
  quern_curve_point points[2] = {QUERN_INIT(quern_curve_point)};
  size_t n;
  EXPECT_OK(quern_program_curve(ctx, 1, &y, NULL, 2, points, &n));
  assert_int_equal(n, 1);
}

static void lack_of_memory(void **state) {
  (void)state;
  struct fault fault = {0};
  while (fault_next(&fault)) {
    quern_tensor *x = quern_input(ctx, "x", QUERN_DTYPE_F32, QUERN_LIST(8, 8)), *dx, *y = x;
    for (int i = 0; i < 4; i++) y = quern_checkpoint_activation(quern_sin(quern_matmul(y, x)));
    y = quern_sum(y, QUERN_ALL, false);
    EXPECT_OK(quern_grad(y, 1, &x, &dx));
    EXPECT_OK(quern_context_check(ctx));
    quern_program_options options = QUERN_INIT(quern_program_options);
    options.device = "null";
    options.gradient_checkpointing = true;
    quern_curve_point points[3] = {QUERN_INIT(quern_curve_point)};
    size_t n;
    fault_begin(&fault);
    quern_status status = quern_program_curve(ctx, 2, (quern_tensor *[]){y, dx}, &options, 3, points, &n);
    fault_end(&fault);
    EXPECT_FAULT(&fault, status);
    test_renew();
  }
  assert_true(fault.n > 20);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(same_bits), TEST(cut), TEST(limits), TEST(curve), TEST(lack_of_memory)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
