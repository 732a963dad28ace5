/* tests/prof/test_report.c -- what is made of recorded runs: floors, tables, traces that are JSON, stacks */
#include "prof/prof.h"
#include "unit.h"

/* A machine of round numbers. */
static const struct prof_limits machine = {.threads = 2,
                                           .flops_f32 = 100e9,
                                           .flops_f64 = 50e9,
                                           .bytes = {64 << 10, 2 << 20, 32 << 20, 64 << 20},
                                           .bandwidth = {400e9, 200e9, 100e9, 20e9},
                                           .copy = 20e9,
                                           .launch = 1e-6};

static struct prof_step steps[] = {
    {.kernel = "k_a", .kind = "dot", .ops = "dot+gelu", .cost = {2e9, 12e6}, .footprint = 12000000},
    {.kernel = "k_b", .kind = "map", .ops = "add", .cost = {1e6, 80e6}, .footprint = INT64_C(1) << 50},
    {.kernel = "k_a", .kind = "dot", .ops = "dot+gelu", .cost = {2e9, 12e6}, .footprint = 12000000},
    {.kernel = "copy", .kind = "copy", .ops = "copy", .cost = {0, 128}, .footprint = 128},
};
static struct prof_event events[] = {{0, 10, 10.030}, {1, 10.030, 10.035}, {2, 10.035, 10.065}, {3, 10.065, 10.065001}};

static struct base_heap heap;
static struct base_str str;

static int setup(void **state) {
  (void)state;
  base_heap_init(&heap, &memory_allocator);
  base_str_init(&str, &heap);
  for (size_t i = 0; i < BASE_COUNT(steps); i++) {
    steps[i].dtype = QUERN_DTYPE_F32;
    steps[i].count = 1;
    steps[i].seconds = events[i].end - events[i].begin;
  }
  prof_steps_floor(&machine, BASE_COUNT(steps), steps);
  return 0;
}

static int teardown(void **state) {
  (void)state;
  base_str_fini(&str);
  return memory_live == 0 ? 0 : -1;
}

static struct prof recorded(void) {
  return (struct prof){.program = "p \"1\"\\\n",
                       .limits = machine,
                       .n_steps = BASE_COUNT(steps),
                       .n_events = BASE_COUNT(events),
                       .steps = steps,
                       .events = events,
                       .runs = 1};
}

static void expect_text(const char *part) {
  if (str.at == NULL || strstr(str.at, part) == NULL) fail_msg("no \"%s\" in:\n%s", part, str.at);
}

/* ---- floors ---------------------------------------------------------------------------------------------- */

static void expect_floor(double flops, double bytes, quern_dtype dtype, int64_t footprint, double floor,
                         enum prof_bound bound) {
  enum prof_bound got;
  double seconds = prof_floor(&machine, &(struct kern_cost){flops, bytes}, dtype, (double)footprint, &got);
  if (seconds < floor * 0.999999 || seconds > floor * 1.000001 || got != bound)
    fail_msg("%g operations, %g bytes of %lld: %g s, %s; expected %g s, %s", flops, bytes, (long long)footprint,
             seconds, prof_bound_names[got], floor, prof_bound_names[bound]);
}

static void floors(void **state) {
  (void)state;
  expect_floor(1e9, 0, QUERN_DTYPE_F32, 0, 1e-2, PROF_COMPUTE);
  expect_floor(1e9, 0, QUERN_DTYPE_F64, 0, 2e-2, PROF_COMPUTE);
  expect_floor(0, 4e6, QUERN_DTYPE_F32, 64 << 10, 1e-5, PROF_MEMORY);
  expect_floor(0, 4e6, QUERN_DTYPE_F32, (64 << 10) + 1, 1e-5, PROF_MEMORY); /* as good as all of it is in L1 */
  expect_floor(0, 4e6, QUERN_DTYPE_F32, 256 << 10, 1.5e-5, PROF_MEMORY);    /* three quarters are not */
  expect_floor(0, 4e6, QUERN_DTYPE_F32, 2 << 20, 2e-5 * 31 / 32, PROF_MEMORY);
  expect_floor(0, 4e6, QUERN_DTYPE_F32, 32 << 20, 4e-5 * 15 / 16, PROF_MEMORY);
  expect_floor(0, 4e6, QUERN_DTYPE_F32, 64 << 20, 1e-4, PROF_MEMORY);
  expect_floor(0, 4e6, QUERN_DTYPE_F32, INT64_C(1) << 50, 2e-4, PROF_MEMORY);
  expect_floor(1e7, 4e6, QUERN_DTYPE_F32, INT64_C(1) << 50, 2e-4, PROF_MEMORY);
  expect_floor(1e8, 4e6, QUERN_DTYPE_F32, INT64_C(1) << 50, 1e-3, PROF_COMPUTE);
  expect_floor(10, 100, QUERN_DTYPE_F32, 100, 1e-6, PROF_LAUNCH);
}

static void nothing_known(void **state) {
  (void)state;
  struct prof_limits none = {0};
  enum prof_bound bound;
  assert_true(prof_floor(&none, &(struct kern_cost){1e9, 1e9}, QUERN_DTYPE_F32, 100, &bound) == 0);
  struct prof prof = recorded();
  prof.limits = none;
  prof_steps_floor(&none, BASE_COUNT(steps), steps);
  EXPECT_OK(prof_table(&str, &prof));
  assert_null(strstr(str.at, "inf"));
  assert_null(strstr(str.at, "nan"));
  expect_text("  -        k_a (dot+gelu)\n");
  base_str_fini(&str);
  base_str_init(&str, &heap);
  EXPECT_OK(prof_explain(&str, &prof)); /* what is not known is not 0 */
  expect_text("\n: what the device can do was not measured\n\n");
  expect_text("       2  2000.000     12.000           -   30.000 ms      -           -  -        k_a (dot+gelu)\n");
  expect_text("\nfloor           -, time   65.001 ms, over 1 runs\n");
  assert_null(strstr(str.at, "threads"));
}

/* ---- tables ---------------------------------------------------------------------------------------------- */

/* 60 ms of two launches of 2 GFLOP, which take 20 ms each at least; 5 ms of 80 MB, which take 4 ms. */
static void table(void **state) {
  (void)state;
  struct prof prof = recorded();
  EXPECT_OK(prof_table(&str, &prof));
  expect_text("1 runs, 4 steps, 3 kernels,   65.001 ms in kernels a run");
  expect_text("*        2   60.000 ms   30.000 ms   92.3%     66.7      0.4   66.7%  compute  k_a (dot+gelu)\n");
  expect_text("         1    5.000 ms    5.000 ms    7.7%      0.2     16.0   80.0%  memory   k_b (add)\n");
  expect_text("         1     1.00 us     1.00 us    0.0%      0.0      0.1  100.0%  launch   copy (copy)\n");
  expect_text("         2   60.000 ms   30.000 ms   92.3%  dot+gelu\n");
  expect_text("         2   60.000 ms   30.000 ms   92.3%  dot\n");
  expect_text("         1    5.000 ms    5.000 ms    7.7%  map\n");
}

/* The kernels up to 80 % of the time, with the one that passes it, are marked. */
static void eighty_percent(void **state) {
  (void)state;
  struct prof prof = recorded();
  steps[0].seconds = 0.5, steps[1].seconds = 0.3, steps[2].seconds = 0.1, steps[3].seconds = 0.2;
  EXPECT_OK(prof_table(&str, &prof));
  assert_non_null(strstr(str.at, "* "));
  const char *a = strstr(str.at, "k_a"), *b = strstr(str.at, "k_b"), *c = strstr(str.at, "copy (");
  assert_true(a != NULL && a < b && b < c);
  char line[3][160];
  for (int i = 0; i < 3; i++) {
    const char *at = i == 0 ? a : i == 1 ? b : c;
    while (at[-1] != '\n') at--;
    snprintf(line[i], sizeof line[i], "%.150s", at);
  }
  assert_true(line[0][0] == '*' && line[1][0] == '*' && line[2][0] == ' ');
}

static void explanation(void **state) {
  (void)state;
  struct prof prof = recorded();
  EXPECT_OK(prof_explain(&str, &prof));
  expect_text("on 2 threads: f32 100 GFLOP/s, L1 400 GB/s, L2 200 GB/s, L3 100 GB/s, DRAM 20 GB/s\n");
  expect_text("       2  2000.000     12.000   20.000 ms   30.000 ms   1.50   20.000 ms  compute  k_a (dot+gelu)\n");
  expect_text("       1     1.000     80.000    4.000 ms    5.000 ms   1.25    1.000 ms  memory   k_b (add)\n");
  expect_text("\nfloor   44.001 ms, time   65.001 ms, ratio 1.48, over 1 runs\n");
  assert_true(strstr(str.at, "k_a") < strstr(str.at, "k_b")); /* the most lost first */
}

static void explanation_without_runs(void **state) {
  (void)state;
  struct prof prof = recorded();
  prof.n_events = prof.runs = 0;
  for (size_t i = 0; i < BASE_COUNT(steps); i++) steps[i].count = 0, steps[i].seconds = 0;
  EXPECT_OK(prof_explain(&str, &prof));
  expect_text("       2  2000.000     12.000   20.000 ms           -      -           -  compute  k_a (dot+gelu)\n");
  expect_text("\nfloor   44.001 ms\n");
  base_str_fini(&str);
  base_str_init(&str, &heap);
  EXPECT_OK(prof_table(&str, &prof));
  assert_null(strstr(str.at, "nan"));
}

static void no_steps(void **state) {
  (void)state;
  struct prof prof = {.program = "empty", .limits = machine};
  EXPECT_OK(prof_table(&str, &prof));
  EXPECT_OK(prof_explain(&str, &prof));
  EXPECT_OK(prof_trace(&str, &prof));
  EXPECT_OK(prof_folded(&str, &prof));
  assert_null(strstr(str.at, "nan"));
}

/* ---- JSON: a reader that accepts nothing else ------------------------------------------------------------- */

static const char *after_space(const char *at) { return at + strspn(at, " \t\r\n"); }

static const char *read_string(const char *at) {
  if (*at++ != '"') return NULL;
  for (; *at != '"'; at++) {
    if ((unsigned char)*at < 0x20) return NULL;
    if (*at != '\\') continue;
    at++;
    if (*at == 'u' && strspn(at + 1, "0123456789abcdefABCDEF") >= 4)
      at += 4;
    else if (*at == 0 || strchr("\"\\/bfnrt", *at) == NULL)
      return NULL;
  }
  return at + 1;
}

static const char *read_value(const char *at, int depth) {
  at = after_space(at);
  if (strncmp(at, "null", 4) == 0) return at + 4;
  if (*at == '"') return read_string(at);
  if (*at != '{' && *at != '[') {
    char *end;
    (void)strtod(at, &end);
    return end > at && (*at == '-' || (*at >= '0' && *at <= '9')) ? end : NULL;
  }
  char close = *at == '{' ? '}' : ']';
  at = after_space(at + 1);
  if (*at == close) return at + 1;
  for (; depth < 100; at++) {
    if (close == '}') {
      at = read_string(after_space(at));
      if (at == NULL || *(at = after_space(at)) != ':') return NULL;
      at++;
    }
    at = read_value(at, depth + 1);
    if (at == NULL) return NULL;
    at = after_space(at);
    if (*at == close) return at + 1;
    if (*at != ',') return NULL;
  }
  return NULL;
}

static bool is_json(const char *text) {
  const char *end = read_value(text, 0);
  return end != NULL && *after_space(end) == 0;
}

static void reader(void **state) {
  (void)state;
  static const char *const good[] = {"{}", "[null]", " [1, -2.5e3, \"a\\u00e9\\n\"] ",
                                     "{\"a\": {\"b\": []}, \"c\": 0}"};
  static const char *const bad[] = {"",       "{",         "[1,]",     "{\"a\" 1}", "{a: 1}", "[nan]", "[1 2]",
                                    "\"\n\"", "[\"\\x\"]", "{\"a\":}", "[] []",     "[inf]",  "\"a"};
  for (size_t i = 0; i < BASE_COUNT(good); i++)
    if (!is_json(good[i])) fail_msg("%s is refused", good[i]);
  for (size_t i = 0; i < BASE_COUNT(bad); i++)
    if (is_json(bad[i])) fail_msg("%s is accepted", bad[i]);
}

static void trace(void **state) {
  (void)state;
  struct prof prof = recorded();
  EXPECT_OK(prof_trace(&str, &prof));
  if (!is_json(str.at)) fail_msg("no JSON:\n%s", str.at);
  expect_text("\"traceEvents\": [");
  expect_text("\"args\": {\"name\": \"p \\\"1\\\"\\\\\\u000a\"}");
  expect_text("{\"name\": \"k_a\", \"cat\": \"dot\", \"ph\": \"X\", \"pid\": 1, \"tid\": 1, \"ts\": 0.000, \"dur\": "
              "30000.000, \"args\": {\"ops\": \"dot+gelu\", \"step\": 0, \"gflops\": 66.667, \"gbs\": 0.400, "
              "\"limit_pct\": 66.7, \"bound\": \"compute\"}}");
  expect_text("{\"name\": \"k_b\", \"cat\": \"map\", \"ph\": \"X\", \"pid\": 1, \"tid\": 1, \"ts\": 30000.000, ");
  size_t n = 0;
  for (const char *at = str.at; (at = strstr(at, "\"ph\": \"X\"")) != NULL; at++) n++;
  assert_int_equal(n, 4);
}

/* The table for machines; what is not known is null: limits of a device that was not measured, rates of what did not run. */
static void rows(void **state) {
  (void)state;
  struct prof prof = recorded();
  EXPECT_OK(prof_rows(&str, &prof));
  expect_text(
      "[{\"name\":\"k_a\",\"kind\":\"dot\",\"ops\":\"dot+gelu\",\"layers\":\"\",\"count\":2,\"total_ms\":60.000000,"
      "\"share\":0.923063,\"gflops\":66.667,\"gbs\":0.400,\"limit_pct\":66.667,\"lost_ms\":20.000000},");
  assert_true(is_json(str.at) && strstr(str.at, "null") == NULL);
  struct prof_limits none = {0};
  prof_steps_floor(&none, BASE_COUNT(steps), steps);
  base_str_fini(&str);
  base_str_init(&str, &heap);
  EXPECT_OK(prof_rows(&str, &prof));
  assert_true(is_json(str.at));
  expect_text("\"share\":0.923063,\"gflops\":66.667,\"gbs\":0.400,\"limit_pct\":null,\"lost_ms\":null},");
  for (size_t i = 0; i < BASE_COUNT(steps); i++) steps[i].count = 0, steps[i].seconds = 0;
  base_str_fini(&str);
  base_str_init(&str, &heap);
  EXPECT_OK(prof_rows(&str, &prof));
  assert_true(is_json(str.at));
  expect_text("\"total_ms\":0.000000,\"share\":null,\"gflops\":null,\"gbs\":null,\"limit_pct\":null,\"lost_ms\":null}");
}

static void trace_without_limits(void **state) {
  (void)state;
  struct prof prof = recorded();
  struct prof_limits none = {0};
  prof_steps_floor(&none, BASE_COUNT(steps), steps);
  EXPECT_OK(prof_trace(&str, &prof));
  assert_true(is_json(str.at));
  expect_text("\"step\": 0, \"gflops\": 66.667, \"gbs\": 0.400}}");
}

static void trace_of_no_time(void **state) {
  (void)state;
  struct prof prof = recorded();
  struct prof_event event = {1, 5, 5};
  prof.events = &event;
  prof.n_events = 1;
  EXPECT_OK(prof_trace(&str, &prof));
  assert_true(is_json(str.at));
}

static void folded(void **state) {
  (void)state;
  struct prof prof = recorded();
  prof.program = "p";
  steps[1].count = 0;
  EXPECT_OK(prof_folded(&str, &prof));
  assert_string_equal(str.at, "p;dot;k_a 30000\np;dot;k_a 30000\np;copy;copy 1\n");
}

/* ---- no memory --------------------------------------------------------------------------------------------- */

static void no_memory(void **state) {
  (void)state;
  quern_status (*const reports[])(struct base_str *, const struct prof *) = {prof_table, prof_explain, prof_trace,
                                                                             prof_folded, prof_rows};
  struct prof prof = recorded();
  for (size_t i = 0; i < BASE_COUNT(reports); i++) {
    struct fault fault = {0};
    while (fault_next(&fault)) {
      struct base_str text;
      base_str_init(&text, &heap);
      fault_begin(&fault);
      quern_status status = reports[i](&text, &prof);
      fault_end(&fault);
      EXPECT_FAULT(&fault, status);
      base_str_fini(&text);
      assert_int_equal(memory_live, 0);
    }
    assert_true(fault.n > 1);
  }
}

#define CASE(function) cmocka_unit_test_setup_teardown(function, setup, teardown)

/* The layers of a kernel in few words: numbers become a star where that makes several of them one. */
static void layers(void **state) {
  (void)state;
  char text[PROF_LAYERS], small[8];
  static const struct {
    const char *layers[6], *expected;
  } cases[] = {{{"h.0.mlp"}, "h.0.mlp"},
               {{""}, ""},
               {{NULL}, ""},
               {{"h.0.mlp", "h.1.mlp", "h.10.mlp"}, "h.*.mlp (3)"},
               {{"h.0.mlp", "h.0.mlp", ""}, "h.0.mlp"},
               {{"h.0.mlp", "", "h.1.mlp", "wte"}, "h.*.mlp (2), wte"},
               {{"grad(h.3)", "grad(h.4)", "h.4"}, "grad(h.*) (2), h.4"},
               {{"7", "conv2d", "conv1d"}, "7, conv2d, conv1d"},
               {{"a", "b", "c", "d", "a.1", "e"}, "a, b, c, ..."}};
  for (size_t i = 0; i < BASE_COUNT(cases); i++) {
    struct prof_step these[7] = {{.kernel = "other", .layer = "another"}};
    struct prof profile = {.n_steps = 7, .steps = these};
    for (int k = 0; k < 6; k++) these[k + 1] = (struct prof_step){.kernel = "k", .layer = cases[i].layers[k]};
    prof_layers(&profile, "k", text, sizeof text);
    assert_string_equal(text, cases[i].expected);
    prof_layers(&profile, "k", small, sizeof small); /* as much as there is room for */
    assert_int_equal(strncmp(small, cases[i].expected, sizeof small - 1), 0);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {CASE(floors),         CASE(nothing_known), CASE(table),
                                     CASE(eighty_percent), CASE(explanation),   CASE(explanation_without_runs),
                                     CASE(no_steps),       CASE(rows),          CASE(trace_without_limits),
                                     CASE(reader),         CASE(trace),         CASE(trace_of_no_time),
                                     CASE(folded),         CASE(no_memory),     CASE(layers)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
