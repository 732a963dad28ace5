/* tests/engine/test_attention_memory.c -- attention and its gradient on GPUs are planned without anything of queries x keys */
#include "engine/engine_test.h"

/* Bytes of the arena of attention and its gradient, (b, h, s, 64) in f32, for that target. */
static int64_t arena_of(const char *target, int64_t b, int64_t h, int64_t s) {
  quern_tensor *in[4], *dx[3];
  static const char *const names[] = {"q", "k", "v", "dy"};
  for (int i = 0; i < 4; i++) in[i] = F32_INPUT(names[i], b, h, s, 64);
  quern_attention_options causal = {.size = sizeof causal, .causal = true};
  quern_tensor *y = quern_attention(in[0], in[1], in[2], NULL, &causal, NULL);
  EXPECT_OK(quern_vjp(1, &y, &in[3], 3, in, dx));
  quern_program_options options = QUERN_INIT(quern_program_options);
  quern_memory_plan memory = QUERN_INIT(quern_memory_plan);
  options.device = "interp";
  options.target = target;
  EXPECT_OK(quern_program_compile(&program, ctx, TENSORS(y, dx[0], dx[1], dx[2]), &options));
  EXPECT_OK(quern_program_get_memory(program, &memory));
  quern_program_free(program);
  return memory.arena + memory.scratch;
}

/* Scores of all heads would be 1.6 GB: a hundredth of them is not taken, with libraries and without. It grows with s. */
static void test_memory(void **state) {
  (void)state;
  static const char *const targets[] = {"sm_90", "sm_90+blas+dnn", "sm_75", "sm_86"};
  for (size_t i = 0; i < BASE_COUNT(targets); i++) {
    const int64_t b = 8, h = 12, s = 2048, scores = b * h * s * s * 4;
    int64_t arena = arena_of(targets[i], b, h, s);
    if (arena > scores / 100) fail_msg("%s: %lld bytes", targets[i], (long long)arena);
    assert_true(arena_of(targets[i], b, h, 2 * s) <= 2 * arena);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(test_memory)};
  return cmocka_run_group_tests_name("engine/attention_memory", tests, NULL, NULL);
}
