/* tests/engine/test_profile.c -- devices, recorded runs and reports on programs */
/* tests/engine/test_profile.c -- devices, recorded runs and reports on programs */
#include "engine/engine_test.h"
#include "prof/prof.h"
#include "quern/profile.h"

static char *text;

static void drop_text(void) {
  quern_free_text(text);
  text = NULL;
}

static void expect_text(const char *part) {
  if (text == NULL || strstr(text, part) == NULL) fail_msg("no \"%s\" in:\n%s", part, text);
}

static size_t count(const char *part) {
  size_t n = 0;
  for (const char *at = text; (at = strstr(at, part)) != NULL; at++) n++;
  return n;
}

/* sum(tanh(x w) + 1), x with one more use: several steps. */
static void open_sample(const char *device) {
  quern_program_options options = QUERN_INIT(quern_program_options);
  options.device = device;
  options.threads = 1;
  quern_tensor *x = F32_INPUT("x", 4, 8), *w = F32_INPUT("w", 8, 16);
  quern_tensor *y = quern_add_scalar(quern_tanh(quern_matmul(x, w)), 1);
  open_program(TENSORS(quern_sum(y, QUERN_ALL, false), quern_exp(x)), &options);
}

/* ---- limits ------------------------------------------------------------------------------------------------ */

static void limits(void **state) {
  (void)state;
  quern_limits one = QUERN_INIT(quern_limits), same = QUERN_INIT(quern_limits), own = QUERN_INIT(quern_limits);
  EXPECT_OK(quern_device_limits(&one, 1, false));
  assert_true(one.threads == 1 && one.flops_f32 > 0 && one.launch > 0 && one.copy > 0);
  for (int i = 0; i < QUERN_LEVELS; i++) assert_true(one.bandwidth[i] > 0 && one.bytes[i] > 0);
  EXPECT_OK(quern_device_limits(&same, 1, false));
  assert_true(fabs(same.flops_f32 / one.flops_f32 - 1) < 1e-4);
  EXPECT_OK(quern_device_limits(&own, 0, false));
  assert_int_equal(own.threads, rt_default_threads());
}

/* ---- recording ------------------------------------------------------------------------------------------------ */

static void tables(void **state) {
  (void)state;
  open_sample("interp");
  EXPECT_OK(quern_instance_record(instance, true));
  for (int i = 0; i < 3; i++) run_program();
  EXPECT_OK(quern_program_profile(program, instance, QUERN_PROFILE_TABLE, &text));
  char head[64];
  snprintf(head, sizeof head, "program: 3 runs, %d steps, ", program->subprograms[0].n_steps);
  assert_memory_equal(text, head, strlen(head));
  for (int i = 0; i < program->n_kernels; i++) expect_text(program->kernels[i]->name);
  expect_text("operations\n");
  drop_text();
  EXPECT_OK(quern_program_profile(program, instance, QUERN_PROFILE_TRACE, &text));
  assert_int_equal(count("\"ph\": \"X\""), 3 * program->subprograms[0].n_steps);
  drop_text();
  EXPECT_OK(quern_program_profile(program, instance, QUERN_PROFILE_FOLDED, &text));
  assert_int_equal(count("\n"), program->subprograms[0].n_steps);
  assert_memory_equal(text, "program;", 8);
  drop_text();
  close_program();
}

/* Switching on begins anew; without it nothing is recorded. */
static void on_and_off(void **state) {
  (void)state;
  open_sample("interp");
  run_program();
  EXPECT_ERROR(quern_program_profile(program, instance, QUERN_PROFILE_TABLE, &text), STATE, "nothing was recorded");
  EXPECT_OK(quern_instance_record(instance, true));
  run_program();
  run_program();
  EXPECT_OK(quern_instance_record(instance, true));
  run_program();
  EXPECT_OK(quern_program_profile(program, instance, QUERN_PROFILE_TABLE, &text));
  expect_text("program: 1 runs");
  drop_text();
  EXPECT_OK(quern_instance_record(instance, false));
  run_program();
  EXPECT_ERROR(quern_program_profile(program, instance, QUERN_PROFILE_TABLE, &text), STATE, "nothing was recorded");
  EXPECT_OK(quern_instance_record(instance, true)); /* freed with the instance */
  close_program();
}

/* More events than are kept: the last ones are, in order. */
static void many_events(void **state) {
  (void)state;
  open_sample("cpu");
  int n = program->subprograms[0].n_steps;
  EXPECT_OK(quern_instance_record(instance, true));
  for (int i = 0; i < 65536 / n + 10; i++) run_program();
  EXPECT_OK(quern_program_profile(program, instance, QUERN_PROFILE_TRACE, &text));
  double last = -1;
  int events = 0;
  for (char *line = text, *next; (next = strchr(line, '\n')) != NULL; line = next + 1) {
    *next = 0; /* a search in all of the text for each event would take long */
    const char *at = strstr(line, "\"ts\": ");
    double ts = at != NULL ? strtod(at + 6, NULL) : last;
    assert_true(ts >= last);
    last = ts;
    events += at != NULL;
    *next = '\n';
  }
  assert_int_equal(events, 65536);
  drop_text();
  close_program();
}

/* A run that is recorded allocates nothing either. */
static void no_allocation(void **state) {
  (void)state;
  open_sample("cpu");
  EXPECT_OK(quern_instance_record(instance, true));
  uint64_t before = instance->heap.count;
  run_program();
  run_program();
  assert_int_equal(instance->heap.count, before);
  close_program();
}

static void body(void *user, quern_tensor *const *args, quern_tensor **results) {
  (void)user;
  results[0] = quern_matmul(args[1], args[2]); /* args: turn, carry, capture */
}

/* What the bodies of a loop take counts for their steps, not again for the loop. */
static void loops(void **state) {
  (void)state;
  quern_tensor *x = F32_INPUT("x", 16, 16), *w = F32_INPUT("w", 16, 16), *y;
  quern_loop_options loop = {.size = sizeof loop, .trip = 50, .n_carries = 1, .n_captures = 1};
  EXPECT_OK(quern_loop(ctx, &loop, (quern_tensor *[]){x, w}, body, NULL, &y));
  open_program(TENSORS(y), NULL);
  EXPECT_OK(quern_instance_record(instance, true));
  double start = base_clock();
  run_program();
  run_program();
  double all = (base_clock() - start) * 1e6, sum = 0, turns = 0;
  EXPECT_OK(quern_program_profile(program, instance, QUERN_PROFILE_FOLDED, &text));
  for (const char *at = text; *at != 0; at = strchr(at, '\n') + 1) {
    double us = strtod(strchr(at, ' '), NULL);
    assert_true(us >= 0);
    sum += us;
    if (strncmp(at, "program;loop", 12) != 0) turns += us;
  }
  assert_true(sum <= all + 10);
  assert_true(turns > 0.5 * sum);
  drop_text();
  EXPECT_OK(quern_program_profile(program, instance, QUERN_PROFILE_TABLE, &text));
  expect_text("     100 "); /* turns of both runs */
  drop_text();
  close_program();
}

/* ---- explaining --------------------------------------------------------------------------------------------- */

static void explanations(void **state) {
  (void)state;
  open_sample("null");
  EXPECT_OK(quern_program_explain(program, NULL, QUERN_EXPLAIN_ROOFLINE, &text));
  expect_text("program on 1 thread: f32 ");
  expect_text("MFLOP");
  for (int i = 0; i < program->n_kernels; i++) expect_text(program->kernels[i]->name);
  drop_text();
  EXPECT_OK(quern_program_explain(program, NULL, QUERN_EXPLAIN_PLAN, &text));
  expect_text(" nodes, ");
  expect_text("device null");
  expect_text("memory\n  arena ");
  expect_text("steps\n     0 ");
  expect_text(" input+0:128");
  expect_text(" output+0:4");
  drop_text();
  EXPECT_OK(quern_program_explain(program, instance, QUERN_EXPLAIN_FUSION, &text));
  expect_text("estimate  threshold");
  expect_text("x  k_");
  drop_text();
  EXPECT_OK(quern_program_explain(program, NULL, QUERN_EXPLAIN_GRAPHVIZ, &text));
  assert_memory_equal(text, "digraph program {\n", 18);
  assert_string_equal(text + strlen(text) - 2, "}\n");
  expect_text("in1 -> s");
  assert_int_equal(count("[shape=ellipse"), 2);
  for (int i = 0; i < program->subprograms[0].n_steps; i++) {
    char box[32];
    snprintf(box, sizeof box, "\n  s%d [label=\"", i);
    expect_text(box);
  }
  drop_text();
  EXPECT_OK(quern_program_explain(program, NULL, QUERN_EXPLAIN_SOURCE, &text));
  for (int i = 0; i < program->n_kernels; i++) expect_text(program->kernels[i]->name);
  drop_text();
  close_program();
}

static void explanation_of_runs(void **state) {
  (void)state;
  open_sample("interp");
  EXPECT_OK(quern_instance_record(instance, true));
  run_program();
  EXPECT_OK(quern_program_explain(program, instance, QUERN_EXPLAIN_ROOFLINE, &text));
  expect_text(", over 1 runs\n");
  drop_text();
  close_program();
}

/* Every node that the fused program computes has its time before; the sums of both are what was recorded. */
static void comparison(void **state) {
  (void)state;
  quern_program_options options = QUERN_INIT(quern_program_options);
  quern_tensor *x = F32_INPUT("x", 8, 16), *y = quern_softmax(quern_tanh(x), 1);
  quern_program *unfused;
  quern_instance *of_unfused;
  options.device = "interp";
  open_program(TENSORS(y), &options);
  options.passes = "-fuse";
  EXPECT_OK(quern_program_compile(&unfused, ctx, 1, &y, &options));
  EXPECT_OK(quern_instance_new(&of_unfused, unfused));
  assert_true(unfused->subprograms[0].n_steps > program->subprograms[0].n_steps);
  EXPECT_ERROR(quern_program_compare(program, instance, unfused, of_unfused, &text), STATE, "nothing was recorded");
  EXPECT_OK(quern_instance_record(instance, true));
  EXPECT_OK(quern_instance_record(of_unfused, true));
  EXPECT_ERROR(quern_program_compare(program, instance, unfused, of_unfused, &text), STATE, "nothing was recorded");
  for (int i = 0; i < 20; i++) {
    run_program();
    EXPECT_OK(quern_instance_run(of_unfused, (const void *const *)inputs.at, outputs.at));
  }
  EXPECT_OK(quern_program_compare(program, instance, unfused, of_unfused, &text));
  expect_text(" measured ");
  double after, before, times, sum = 0;
  assert_int_equal(sscanf(strstr(text, "\nall "), "\nall %lf us, before %lf us: %lfx", &after, &before, &times), 3);
  for (const char *at = strchr(text, '\n') + 1; strncmp(at, "all ", 4) != 0; at = strchr(at, '\n') + 1) {
    double of_step;
    assert_int_equal(sscanf(at, "%*d %*s %*x %*fx %*fx %*fx %lf", &of_step), 1);
    sum += of_step;
  }
  assert_true(after > 0 && before > 0 && fabs(times - before / after) < 0.1 * times);
  assert_true(sum > 0.99 * before - 1 && sum < 1.01 * before + 1); /* nothing is left over */
  drop_text();
  struct fault fault = {0};
  while (fault_next(&fault)) {
    fault_begin(&fault);
    quern_status status = quern_program_compare(program, instance, unfused, of_unfused, &text);
    fault_end(&fault);
    EXPECT_FAULT(&fault, status);
    drop_text();
  }
  quern_instance_free(of_unfused);
  quern_program_free(unfused);
  close_program();
}

/* The sums in the counts are those of the kernels. */
static void counts(void **state) {
  (void)state;
  quern_program_stats c = QUERN_INIT(quern_program_stats);
  double flops = 0, bytes = 0;
  open_sample("null");
  EXPECT_OK(quern_program_get_stats(program, &c));
  for (int i = 0; i < program->subprograms[0].n_steps; i++) {
    int kernel = program->subprograms[0].steps[i].kernel;
    flops += kernel >= 0 ? program->kernels[kernel]->cost.flops : 0;
    bytes += kernel >= 0 ? program->kernels[kernel]->cost.bytes : 0;
  }
  assert_true(c.flops == flops && c.bytes == bytes && flops >= 2 * 4 * 8 * 16 && bytes > 0);
  close_program();
}

/* ---- no memory ------------------------------------------------------------------------------------------------- */

static void no_memory(void **state) {
  (void)state;
  open_sample("interp");
  EXPECT_OK(quern_instance_record(instance, true));
  run_program();
  for (int form = 0; form <= QUERN_PROFILE_FOLDED + QUERN_EXPLAIN_SOURCE + 1; form++) {
    struct fault fault = {0};
    int explain = form - QUERN_PROFILE_FOLDED - 1;
    while (fault_next(&fault)) {
      fault_begin(&fault);
      quern_status status = explain < 0 ? quern_program_profile(program, instance, (quern_profile_form)form, &text)
                                        : quern_program_explain(program, instance, (quern_explain_form)explain, &text);
      fault_end(&fault);
      /* the cache is read with the same allocator, and does without it */
      if (status != QUERN_STATUS_OK) EXPECT_FAULT(&fault, status);
      assert_true((status == QUERN_STATUS_OK) == (text != NULL));
      drop_text();
    }
    assert_true(fault.n > 1);
  }
  struct fault fault = {0};
  while (fault_next(&fault)) {
    fault_begin(&fault);
    quern_status status = quern_instance_record(instance, true);
    fault_end(&fault);
    EXPECT_FAULT(&fault, status);
    run_program();
  }
  close_program();
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(limits),        TEST(tables), TEST(on_and_off),   TEST(many_events),
                                     TEST(no_allocation), TEST(loops),  TEST(explanations), TEST(explanation_of_runs),
                                     TEST(comparison),    TEST(counts), TEST(no_memory)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
