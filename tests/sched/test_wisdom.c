/* tests/sched/test_wisdom.c -- schedules from a file: read, refused, applied; bits stay the same */
#include "run.h"

#include <unistd.h>

static char path[64];

static void write_file(const char *text) {
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  assert_true(fputs(text, file) >= 0);
  fclose(file);
}

static void test_refused(void **state) {
  (void)state;
  static const struct {
    const char *text, *says;
  } rows[] = {
      {"", "expected 'quern wisdom 1'"},
      {"quern wisdom 2\n", "expected 'quern wisdom 1'"},
      {"quern wisdom 1\nabc avx512 grain=1\n", ":2: expected the 16 hex digits"},
      {"quern wisdom 1\n0123456789abcdef\n", ":2: expected the name of a target"},
      {"quern wisdom 1\n\n0123456789abcdef avx512 grain\n", ":3: expected name=number"},
      {"quern wisdom 1\n0123456789abcdef avx512 grian=1\n", "did you mean 'grain'?"},
      {"quern wisdom 1\n0123456789abcdef avx512 grain=0\n", "grain takes a number from 1"},
      {"quern wisdom 1\n0123456789abcdef avx512 lanes=3\n", "power of two"},
      {"quern wisdom 1\n0123456789abcdef avx512 unroll=2x\n", "unroll takes a number"},
  };
  struct sched_wisdom wisdom;
  for (size_t i = 0; i < BASE_COUNT(rows); i++) {
    write_file(rows[i].text);
    assert_int_equal(sched_wisdom_read(&wisdom, &ctx->heap, path), QUERN_STATUS_PARSE);
    if (strstr(quern_last_error(), rows[i].says) == NULL) fail_msg("row %zu: %s", i, quern_last_error());
  }
  assert_int_equal(sched_wisdom_read(&wisdom, &ctx->heap, "/nowhere/wisdom"), QUERN_STATUS_IO);
  EXPECT_OK(sched_wisdom_read(&wisdom, &ctx->heap, ""));
  sched_wisdom_fini(&wisdom);
}

static void test_applied(void **state) {
  (void)state;
  struct base_target target = run_target(&run_ways[2]);
  struct pass_group group = {.kind = PASS_KIND_MAP, .hash = UINT64_C(0x00ff00ff12345678)};
  struct sched_wisdom wisdom;
  struct sched sched = {.lanes = 16, .unroll = 4, .grain = 100}, kept = sched;
  struct base_str line;
  write_file("quern wisdom 1\n# two\n00ff00ff12345678 test grain=7 unroll=2\n00ff00ff12345678 other grain=9\n");
  EXPECT_OK(sched_wisdom_read(&wisdom, &ctx->heap, path));
  assert_true(wisdom.hash != 0);
  assert_true(sched_wisdom_apply(&wisdom, &group, &target, &sched));
  assert_true(sched.lanes == 16 && sched.unroll == 2 && sched.grain == 7);
  base_str_init(&line, &ctx->heap);
  sched_wisdom_print(&line, group.hash, &target, &sched);
  assert_string_equal(line.at, "00ff00ff12345678 test lanes=16 unroll=2 grain=7\n");
  base_str_fini(&line);
  sched = kept;
  group.hash++;
  assert_false(sched_wisdom_apply(&wisdom, &group, &target, &sched));
  assert_memory_equal(&sched, &kept, sizeof sched);
  group.hash--;
  group.kind = PASS_KIND_COMPOSITE;
  assert_false(sched_wisdom_apply(&wisdom, &group, &target, &sched));
  sched_wisdom_fini(&wisdom);
}

static quern_status read_once(void) {
  struct sched_wisdom wisdom;
  quern_status status = sched_wisdom_read(&wisdom, &ctx->heap, path);
  if (status == QUERN_STATUS_OK) sched_wisdom_fini(&wisdom);
  return status;
}

static void test_no_memory(void **state) {
  (void)state;
  write_file("quern wisdom 1\n00ff00ff12345678 test grain=7\n");
  memory_fault.left = 1;
  memory_fault.met = false;
  assert_int_equal(read_once(), QUERN_STATUS_MEMORY);
  memory_fault.left = 0;
  EXPECT_OK(read_once());
}

int main(void) {
  snprintf(path, sizeof path, "quern-test-wisdom-%ld", (long)getpid());
  const struct CMUnitTest tests[] = {TEST(test_refused), TEST(test_applied), TEST(test_no_memory)};
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  unlink(path);
  return failed;
}
