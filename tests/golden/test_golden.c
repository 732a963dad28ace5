/* tests/golden/test_golden.c -- kernels as they were when someone last looked at them
** For a few graphs and two processors, the kernels and their C are compared with tests/golden/<graph>.<target>.txt.
** Nothing here depends on the machine. With the argument --update (make golden) the files are written instead: what a
** change of a pass, a schedule or the C does to kernels is then in the diff of these files.
*/
#include "codegen/codegen.h"
#include "quern/quern.h"
#include "sched/sched.h"
#include "unit.h"

enum { KEPT_LINES = 90, PATH = 128, LINE = 400 };

static bool update;

/* ---- the graphs ------------------------------------------------------------------------------------------------ */

#define IN(NAME, DTYPE, ...) quern_input(ctx, NAME, QUERN_DTYPE_##DTYPE, QUERN_LIST(__VA_ARGS__))

static quern_tensor *softmax(void) { return quern_softmax(IN("x", F32, 128, 1000), 1); }
static quern_tensor *layer_norm(void) {
  quern_tensor *x = IN("x", F32, 64, 768), *w = IN("w", F32, 768), *b = IN("b", F32, 768);
  return quern_layer_norm(x, 1, w, b, 1e-5);
}
static quern_tensor *gelu(void) { return quern_gelu(IN("x", F32, 1000, 512)); }
static quern_tensor *column_sum(void) { return quern_sum(IN("x", F32, 500, 768), QUERN_LIST(0), false); }
static quern_tensor *linear_relu(void) {
  quern_tensor *x = IN("x", F32, 192, 256), *w = IN("w", F32, 512, 256), *b = IN("b", F32, 512);
  return quern_relu(quern_linear(x, w, b));
}
static quern_tensor *transpose(void) { return quern_transpose(IN("x", F32, 256, 512), 0, 1); }
static quern_tensor *attention(void) {
  quern_attention_options causal = {.size = sizeof causal, .causal = true};
  quern_tensor *q = IN("q", F32, 1, 2, 256, 64), *k = IN("k", F32, 1, 2, 256, 64), *v = IN("v", F32, 1, 2, 256, 64);
  return quern_attention(q, k, v, NULL, &causal, NULL);
}
static quern_tensor *scatter_add(void) {
  quern_tensor *x = IN("x", F32, 100, 32), *at = IN("at", I32, 50), *u = IN("u", F32, 50, 32);
  return quern_scatter(x, at, u, 0, QUERN_SCATTER_ADD);
}
static quern_tensor *cumsum(void) { return quern_cumsum(IN("x", F32, 16, 1000), 1); }
static quern_tensor *sort(void) { return quern_sort(IN("x", F32, 8, 20), 1, false, NULL); }
static quern_tensor *dropout(void) {
  quern_random from = {.seed = quern_scalar(ctx, QUERN_DTYPE_U64, 7)};
  quern_tensor *x = IN("x", F32, 4096);
  return quern_mul(x, quern_random_uniform(ctx, QUERN_DTYPE_F32, QUERN_LIST(4096), 0, 1, &from));
}
static quern_tensor *cast_bf16(void) { return quern_cast(IN("x", F32, 4099), QUERN_DTYPE_BF16); }

static const struct golden {
  const char *name, *target;
  quern_tensor *(*make)(void);
} goldens[] = {
#define BOTH(NAME)                                                                                                     \
  {#NAME, "avx512", NAME}, { #NAME, "avx2", NAME }
    BOTH(softmax),
    BOTH(layer_norm),
    BOTH(gelu),
    BOTH(column_sum),
    BOTH(linear_relu),
    BOTH(transpose),
    BOTH(attention),
    BOTH(scatter_add),
    BOTH(cumsum),
    BOTH(sort),
    BOTH(dropout),
    BOTH(cast_bf16),
#undef BOTH
    {"softmax", "sm_90", softmax},
    {"gelu", "sm_90", gelu},
    {"linear_relu", "opencl", linear_relu},
    {"cast_bf16", "opencl", cast_bf16},
};

/* ---- their text ------------------------------------------------------------------------------------------------ */

/* Adds the first lines of a text, and of the others how many there are and their hash. */
static void add_lines(struct base_str *str, const char *text) {
  const char *end = text;
  for (int i = 0; i < KEPT_LINES && *end != 0; i++) end += strcspn(end, "\n") + (strchr(end, '\n') != NULL);
  base_str_add_n(str, text, (size_t)(end - text));
  int left = 0;
  for (const char *at = end; *at != 0; at++) left += *at == '\n';
  uint64_t hash = base_hash_bytes(BASE_HASH_SEED, end, strlen(end));
  if (*end != 0) base_str_printf(str, "... %d more lines of hash %016llx\n", left, (unsigned long long)hash);
}

static void add_kernel(struct base_str *str, const struct kern *kern, const struct cg_target *target) {
  struct base_str text;
  struct cg_unit unit;
  base_str_init(&text, &ctx->heap);
  EXPECT_OK(kern_print(&text, kern));
  base_str_printf(str, "\n==== kernel %s\n", kern->name);
  add_lines(str, text.at);
  base_str_fini(&text);
  cg_unit_init(&unit, &ctx->heap, target);
  EXPECT_OK(cg_unit_add(&unit, kern));
  base_str_add(str, "\n==== C: what it needs\n");
  add_lines(str, unit.prelude.at);
  base_str_add(str, "\n==== C\n");
  add_lines(str, unit.body.at);
  cg_unit_fini(&unit);
}

/* The kernels of a graph as the compiler makes them for a target. */
static void add_graph(struct base_str *str, const struct golden *golden, const struct cg_target *target) {
  struct pass_options options = {0};
  struct pass_report reports[PASS_COUNT];
  struct pass_groups groups;
  quern_tensor *root = golden->make();
  struct pass_graph graph = {ctx, 1, &root};
  EXPECT_OK(quern_context_check(ctx));
  EXPECT_OK(pass_options_parse(&options, 1, NULL));
  options.target = &target->base;
  options.supports = sched_supports;
  EXPECT_OK(pass_run(&graph, &options, reports));
  EXPECT_OK(pass_fuse(&groups, &graph, &options));
  for (size_t i = 0; i < groups.groups.n; i++) {
    const struct pass_group *group = groups.groups.at[i];
    struct sched sched;
    struct kern *kern;
    if (group->kind == PASS_KIND_VIEW) continue;
    sched_choose(&sched, group, &target->base, 1);
    EXPECT_OK(sched_lower(&kern, &ctx->heap, ctx, group, &target->base, &sched));
    EXPECT_OK(kern_verify(kern, NULL));
    add_kernel(str, kern, target);
    kern_free(kern);
  }
  pass_groups_fini(&groups);
}

/* ---- comparing ------------------------------------------------------------------------------------------------- */

static char *read_file(const char *path) {
  FILE *file = fopen(path, "rb");
  if (file == NULL) return NULL;
  assert_int_equal(fseek(file, 0, SEEK_END), 0);
  long n = ftell(file);
  assert_true(n >= 0);
  rewind(file);
  char *text = malloc((size_t)n + 1);
  assert_non_null(text);
  assert_int_equal(fread(text, 1, (size_t)n, file), n);
  text[n] = 0;
  fclose(file);
  return text;
}

static void write_file(const char *path, const struct base_str *str) {
  FILE *file = fopen(path, "wb");
  assert_non_null(file);
  assert_int_equal(fwrite(str->at, 1, str->n, file), str->n);
  assert_int_equal(fclose(file), 0);
}

/* The first lines that differ. */
static void show_difference(const char *path, const char *want, const char *got) {
  int line = 1;
  while (*want != 0 && *want == *got) {
    size_t n = strcspn(want, "\n") + 1;
    if (strncmp(want, got, n) != 0) break;
    want += n;
    got += n;
    line++;
  }
  print_error("%s:%d: this kernel is another one now:\n", path, line);
  for (int i = 0; i < 3; i++, want += strcspn(want, "\n"), want += *want != 0)
    print_error("  - %.*s\n", (int)BASE_MIN(strcspn(want, "\n"), LINE), want);
  for (int i = 0; i < 3; i++, got += strcspn(got, "\n"), got += *got != 0)
    print_error("  + %.*s\n", (int)BASE_MIN(strcspn(got, "\n"), LINE), got);
  print_error("If that is meant: make golden, and look at the difference.\n");
}

/* Whether the file has this text; it is written instead when that is wanted. */
static bool matches(const char *path, const struct base_str *str) {
  if (update) {
    write_file(path, str);
    return true;
  }
  char *want = read_file(path);
  if (want == NULL) print_error("%s is missing: make golden\n", path);
  bool same = want != NULL && strcmp(want, str->at) == 0;
  if (want != NULL && !same) show_difference(path, want, str->at);
  free(want);
  return same;
}

static void compare(void **state) {
  const struct golden *golden = *state;
  char path[PATH];
  struct base_str str;
  struct cg_target target = *cg_target_find(golden->target);
  target.base.threads = 2;
  snprintf(path, sizeof path, "tests/golden/%s.%s.txt", golden->name, golden->target);
  base_str_init(&str, &ctx->heap);
  base_str_printf(&str, "%s for %s (made by: make golden)\n", golden->name, golden->target);
  add_graph(&str, golden, &target);
  EXPECT_OK(base_str_status(&str));
  bool same = matches(path, &str);
  base_str_fini(&str);
  assert_true(same);
}

int main(int argc, char **argv) {
  static struct CMUnitTest tests[BASE_COUNT(goldens)];
  static char names[BASE_COUNT(goldens)][64];
  update = argc > 1 && strcmp(argv[1], "--update") == 0;
  for (size_t i = 0; i < BASE_COUNT(goldens); i++) {
    snprintf(names[i], sizeof names[i], "%s for %s", goldens[i].name, goldens[i].target);
    tests[i] = (struct CMUnitTest)TEST(compare);
    tests[i].name = names[i];
    tests[i].initial_state = (void *)(uintptr_t)&goldens[i];
  }
  return cmocka_run_group_tests(tests, NULL, NULL);
}
