/* tests/engine/test_layer_names.c -- the layers that the steps of a program come from, through compiling, saving, the cache
** and profiles
*/
#include <unistd.h>

#include "engine/engine_test.h"
#include "quern/profile.h"

enum { WIDTH = 16, LAYERS = 3 };

static char file[128];

/* A stack of blocks; names: those of the scopes, or all in the outermost one. */
static quern_tensor *build(quern_model *model, const char *names, quern_tensor *x) {
  for (int i = 0; i < LAYERS; i++) {
    quern_scope *block = quern_scope_at(quern_model_scope(model), names, i);
    quern_tensor *h = quern_nn_layer_norm(quern_scope_in(block, "norm"), x, NULL);
    h = quern_nn_linear(quern_scope_in(block, "mlp"), h, WIDTH, NULL);
    x = quern_nn_dropout(block, quern_add(x, quern_tanh(h)), 0);
  }
  return x;
}

static quern_status compile(const char *names, bool train) {
  quern_model *model;
  quern_tensor *x = F32_INPUT("x", 4, WIDTH);
  quern_program_options options = QUERN_INIT(quern_program_options);
  options.device = "cpu";
  options.threads = 1;
  EXPECT_OK(quern_model_new(&model, ctx, NULL));
  quern_tensor *y = build(model, names, x), *outs[2] = {y};
  assert_int_equal(ctx->label, 0);
  if (train) {
    quern_tensor *weight = quern_model_find(model, "h.0.mlp.weight")->tensor;
    outs[0] = quern_mean(quern_mul(y, y), QUERN_ALL, false);
    EXPECT_OK(quern_grad(outs[0], 1, &weight, &outs[1]));
  }
  quern_status status = quern_program_compile(&program, ctx, train ? 2 : 1, outs, &options);
  quern_model_free(model);
  return status;
}

/* How many steps have a layer. */
static int steps_of(const char *layer) {
  int n = 0;
  for (int i = 0; i < program->subprograms[0].n_steps; i++)
    n += strcmp(program->subprograms[0].steps[i].layer, layer) == 0;
  return n;
}

static void expect_text(quern_explain_form form, const char *words) {
  char *text;
  EXPECT_OK(quern_program_explain(program, NULL, form, &text));
  if (strstr(text, words) == NULL) fail_msg("'%s' is not in:\n%s", words, text);
  quern_free_text(text);
}

static void expect_profile(quern_profile_form form, const char *words) {
  char *text;
  EXPECT_OK(quern_program_profile(program, instance, form, &text));
  if (strstr(text, words) == NULL) fail_msg("'%s' is not in:\n%s", words, text);
  quern_free_text(text);
}

static void steps_have_layers(void **state) {
  (void)state;
  EXPECT_OK(compile("h", true));
  assert_true(steps_of("h.0.mlp") >= 1 && steps_of("h.1.mlp") >= 1 && steps_of("h.2.mlp") >= 1);
  assert_true(steps_of("grad(h.0.mlp)") >= 1 && steps_of("grad(h.2.mlp)") >= 1);
  expect_text(QUERN_EXPLAIN_ROOFLINE, "  h.*.mlp (2)\n");
  expect_text(QUERN_EXPLAIN_PLAN, ") h.1.mlp:");
  expect_text(QUERN_EXPLAIN_FUSION, ") h.1.mlp\n");
  fill_program();
  EXPECT_OK(quern_instance_record(instance, true));
  run_program();
  expect_profile(QUERN_PROFILE_TABLE, "  h.*.mlp (2)\n");
  expect_profile(QUERN_PROFILE_ROWS, "\"layers\":\"h.*.mlp (2)\"");
  expect_profile(QUERN_PROFILE_TRACE, "\"layer\": \"h.2.mlp\"");
  close_program();
}

/* Layers share kernels, whatever they are called. */
static void kernels_do_not_depend_on_names(void **state) {
  (void)state;
  char names[64][64];
  int n = 0;
  EXPECT_OK(compile("h", false));
  assert_true(program->n_kernels < 64 && program->n_kernels < program->subprograms[0].n_steps);
  for (n = 0; n < program->n_kernels; n++) snprintf(names[n], sizeof names[n], "%s", program->kernels[n]->name);
  close_program();
  test_renew();
  EXPECT_OK(compile("block", false));
  assert_int_equal(program->n_kernels, n);
  for (int i = 0; i < n; i++) assert_string_equal(program->kernels[i]->name, names[i]);
  close_program();
}

/* A program that the cache had, or a file, has its layers; one with other names is another in the cache. */
static void layers_are_kept(void **state) {
  (void)state;
  for (int time = 0; time < 2; time++) {
    test_renew();
    EXPECT_OK(compile("h", false));
    if (time == 1) assert_int_equal(program->counts.compiled, 0);
    assert_true(steps_of("h.2.mlp") >= 1);
    EXPECT_OK(quern_program_save(program, file));
    close_program();
  }
  EXPECT_OK(quern_program_load(&program, file));
  assert_true(steps_of("h.2.mlp") >= 1 && steps_of("h.0.norm") >= 1);
  close_program();
  test_renew();
  EXPECT_OK(compile("block", false));
  assert_true(steps_of("block.2.mlp") >= 1 && steps_of("h.2.mlp") == 0);
  close_program();
}

/* A graph that was read has no layers, but names of states. */
static void names_of_states_serve_as_well(void **state) {
  (void)state;
  quern_tensor *x = F32_INPUT("x", 4, 8), *w = F32_STATE("encoder.3.weight", 8, 8), *v = F32_STATE("plain", 8, 8);
  quern_tensor *ys[] = {quern_matmul(x, w), quern_tanh(quern_matmul(x, v))};
  quern_program_options options = QUERN_INIT(quern_program_options);
  options.device = "interp";
  EXPECT_OK(quern_program_compile(&program, ctx, 2, ys, &options));
  assert_int_equal(steps_of("encoder.3"), 1);
  assert_int_equal(steps_of(""), program->subprograms[0].n_steps - 1);
  close_program();
}

/* A layer that fails is left as well, at the latest when its error is reported. */
static void after_a_failure(void **state) {
  (void)state;
  quern_model *model;
  EXPECT_OK(quern_model_new(&model, ctx, NULL));
  quern_scope *scope = quern_scope_in(quern_model_scope(model), "bad");
  assert_true(quern_tensor_is_poison(quern_nn_linear(scope, F32_INPUT("x", 4, 8), -1, NULL)));
  assert_int_not_equal(quern_context_check(ctx), QUERN_STATUS_OK);
  assert_int_equal(quern_neg(F32_INPUT("y", 4))->node->label, 0);
  quern_model_free(model);
}

int main(void) {
  char folder[] = "/tmp/quern-test-layers-XXXXXX", command[64];
  if (mkdtemp(folder) == NULL) return 1;
  setenv("QUERN_CACHE", folder, 1);
  snprintf(file, sizeof file, "%s/program", folder);
  const struct CMUnitTest tests[] = {TEST(steps_have_layers), TEST(kernels_do_not_depend_on_names),
                                     TEST(layers_are_kept), TEST(names_of_states_serve_as_well), TEST(after_a_failure)};
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  snprintf(command, sizeof command, "rm -rf %s", folder);
  return system(command) == 0 ? failed : 1;
}
