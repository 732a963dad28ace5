/* tests/zoo/test_zoo.c -- the networks of `quern bench zoo`, small: they compile, run and learn; GPU targets plan them */
#include "zoo.h"

#include <math.h>

#include "quern/optim.h"

#include "unit.h"

enum { STEPS = 6 };

static void built(struct zoo *z, const struct zoo_network *network, bool train) {
  *z = (struct zoo){.train = train};
  if (zoo_begin(z, network, &network->small) != QUERN_STATUS_OK) fail_msg("%s: %s", network->name, quern_last_error());
}

/* Integers below what is given, in some order; floats between -1 and 1. */
static void *filled(const struct zoo *z, const quern_slot *slot) {
  char *memory = malloc(slot->bytes + 1);
  assert_non_null(memory);
  memset(memory, 0, slot->bytes);
  int64_t below = 0;
  for (size_t i = 0; i < z->n_leaves; i++)
    if (strcmp(quern_tensor_name(z->leaves[i].tensor), slot->name) == 0) below = z->leaves[i].below;
  uint32_t x = 1;
  for (size_t i = 0; i < slot->bytes / 4; i++) {
    x = x * 1664525u + 1013904223u;
    if (below > 0) ((int32_t *)(void *)memory)[i] = (int32_t)((x >> 8) % (uint32_t)below);
    if (below == 0) ((float *)(void *)memory)[i] = (float)(x >> 8) * 0x1p-23f - 1;
  }
  if (strcmp(slot->name, "lr") == 0) *(float *)(void *)memory = 2e-3f;
  return memory;
}

/* Runs a program and gives the first number of its first output each time. */
static void run(const struct zoo *z, const quern_program *program, int n, double *first) {
  enum { MOST = 8 };
  void *inputs[MOST] = {0}, *outputs[2] = {0};
  quern_instance *instance;
  assert_int_equal(quern_instance_new(&instance, program), QUERN_STATUS_OK);
  assert_int_equal(quern_instance_init_states(instance, z->model), QUERN_STATUS_OK);
  size_t n_inputs = quern_program_input_count(program), n_outputs = quern_program_output_count(program);
  assert_true(n_inputs <= MOST && n_outputs <= 2);
  for (size_t i = 0; i < n_inputs + n_outputs; i++) {
    quern_slot slot = QUERN_INIT(quern_slot);
    bool in = i < n_inputs;
    assert_int_equal(in ? quern_program_input(program, i, &slot) : quern_program_output(program, i - n_inputs, &slot),
                     QUERN_STATUS_OK);
    if (in) inputs[i] = filled(z, &slot);
    if (!in) assert_non_null(outputs[i - n_inputs] = calloc(1, slot.bytes + 1));
  }
  for (int i = 0; i < n; i++) {
    assert_int_equal(quern_instance_run(instance, (const void *const *)inputs, outputs), QUERN_STATUS_OK);
    first[i] = *(float *)outputs[0];
  }
  for (size_t i = 0; i < MOST; i++) free(inputs[i]);
  free(outputs[0]), free(outputs[1]);
  quern_instance_free(instance);
}

static quern_program *compiled(const struct zoo *z, quern_step *step, quern_program_options *options) {
  quern_program *program = NULL;
  quern_tensor *outputs[2] = {z->y, step != NULL ? quern_step_norm(step) : NULL};
  options->threads = 2;
  if (step != NULL) options->n_updates = quern_step_updates(step, &options->updates);
  options->inference = step == NULL;
  if (quern_program_compile(&program, z->ctx, step != NULL ? 2 : 1, outputs, options) != QUERN_STATUS_OK)
    fail_msg("%s on %s: %s", z->params, options->target != NULL ? options->target : "cpu", quern_last_error());
  return program;
}

static quern_step *stepped(const struct zoo *z) {
  quern_optim_options how = QUERN_INIT(quern_optim_options);
  quern_step *step;
  how.clip_norm = 1;
  how.weight_decay = 0.01;
  assert_int_equal(quern_step_new(&step, z->model, z->y, &how), QUERN_STATUS_OK);
  return step;
}

static void training_on_cpu(void **state) {
  (void)state;
  for (const struct zoo_network *network = zoo_networks; network->name != NULL; network++) {
    struct zoo z;
    double losses[STEPS];
    quern_program_options options = QUERN_INIT(quern_program_options);
    built(&z, network, true);
    quern_step *step = stepped(&z);
    quern_program *program = compiled(&z, step, &options);
    run(&z, program, STEPS, losses);
    for (int i = 0; i < STEPS; i++)
      if (!isfinite(losses[i])) fail_msg("%s: step %d has the loss %g", network->name, i, losses[i]);
    bool plays = strcmp(network->name, "dcgan") == 0 || strcmp(network->name, "vae") == 0; /* a game; noise */
    if (!plays && losses[STEPS - 1] >= losses[0])
      fail_msg("%s: the loss went from %g to %g", network->name, losses[0], losses[STEPS - 1]);
    quern_program_free(program);
    quern_step_free(step);
    zoo_end(&z);
  }
}

static void answers_on_cpu(void **state) {
  (void)state;
  for (const struct zoo_network *network = zoo_networks; network->name != NULL; network++) {
    struct zoo z;
    double first;
    quern_program_options options = QUERN_INIT(quern_program_options);
    built(&z, network, false);
    quern_program *program = compiled(&z, NULL, &options);
    run(&z, program, 1, &first);
    if (!isfinite(first)) fail_msg("%s answers %g", network->name, first);
    quern_program_free(program);
    zoo_end(&z);
  }
}

/* What is trained in bf16 keeps its parameters; what answers in bf16 has them so. */
static void lowered(struct zoo *z, quern_tensor **y) {
  quern_autocast_options options = QUERN_INIT(quern_autocast_options);
  options.low = QUERN_DTYPE_BF16;
  if (quern_autocast(z->model, 1, &z->y, y, &options) != QUERN_STATUS_OK) fail_msg("%s", quern_last_error());
}

static void plans_for_gpus(void **state) {
  (void)state;
  static const char *const targets[] = {"sm_75",      "sm_80+mma",      "sm_86", "sm_89+blas", "sm_90+blas+dnn+mma",
                                        "sm_100+mma", "sm_120+blas+mma"};
  for (size_t t = 0; t < sizeof targets / sizeof *targets; t++) {
    for (const struct zoo_network *network = zoo_networks; network->name != NULL; network++) {
      struct zoo z;
      quern_program_options options = QUERN_INIT(quern_program_options);
      options.device = "null";
      options.target = targets[t];
      options.plan_only = true;
      built(&z, network, true);
      if (t % 2 == 1) lowered(&z, &z.y);
      quern_step *step = stepped(&z);
      quern_program_free(compiled(&z, step, &options));
      quern_step_free(step);
      zoo_end(&z);
    }
  }
}

static void answers_in_bf16_for_gpus(void **state) {
  (void)state;
  for (const struct zoo_network *network = zoo_networks; network->name != NULL; network++) {
    struct zoo z = {.dtype = QUERN_DTYPE_BF16, .resident = true};
    quern_program_options options = QUERN_INIT(quern_program_options);
    options.device = "null";
    options.target = "sm_90+blas+dnn+mma";
    options.plan_only = true;
    if (zoo_begin(&z, network, &network->small) != QUERN_STATUS_OK)
      fail_msg("%s: %s", network->name, quern_last_error());
    quern_program_free(compiled(&z, NULL, &options));
    zoo_end(&z);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(training_on_cpu),
      cmocka_unit_test(answers_on_cpu),
      cmocka_unit_test(plans_for_gpus),
      cmocka_unit_test(answers_in_bf16_for_gpus),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
