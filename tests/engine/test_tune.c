/* tests/engine/test_tune.c -- the search for schedules: what it writes, and what it leaves */
#define _DEFAULT_SOURCE /* symlink */
#include <sys/stat.h>
#include <unistd.h>

#include "engine/engine_test.h"

static char path[] = "tune-test.wisdom";
static const char temporary[] = "tune-test.wisdom.0.tmp", other[] = "tune-test.other";

struct told {
  int kernels, lines;
  bool go_on;
};

static bool on_kernel(void *user, const char *kernel, double before, double after, const char *line) {
  struct told *told = user;
  told->kernels++;
  told->lines += line[0] != 0;
  assert_true(strlen(kernel) > 2 && before > 0 && after > 0 && after <= before);
  assert_true(line[0] == 0 || strchr(line, '=') != NULL);
  return told->go_on;
}

static quern_tensor *two_kernels(void) {
  quern_tensor *x = F32_INPUT("x", 16, 24);
  return quern_softmax(quern_transpose(quern_softmax(x, 1), 0, 1), 1);
}

static size_t read_file_at(const char *at, char *text, size_t room) {
  FILE *file = fopen(at, "r");
  assert_non_null(file);
  size_t n = fread(text, 1, room - 1, file);
  text[n] = 0;
  fclose(file);
  return n;
}

static size_t read_file(char *text, size_t room) { return read_file_at(path, text, room); }

static quern_status tune(struct told *told, int kernels) {
  quern_program_options options = QUERN_INIT(quern_program_options);
  quern_tune_options how = QUERN_INIT(quern_tune_options);
  quern_tensor *root = two_kernels();
  options.device = "interp";
  options.target = "avx2";
  how.path = path;
  how.kernels = kernels;
  how.progress = on_kernel;
  how.user = told;
  return quern_program_tune(ctx, 1, &root, &options, &how);
}

static void writes_lines(void **state) {
  (void)state;
  struct told told = {.go_on = true};
  char text[4096];
  (void)unlink(path);
  EXPECT_OK(tune(&told, 1));
  assert_int_equal(told.kernels, 1);
  assert_true(read_file(text, sizeof text) >= strlen("quern wisdom 1\n"));
  struct sched_wisdom wisdom; /* what is written can be read */
  EXPECT_OK(sched_wisdom_read(&wisdom, &ctx->heap, path));
  assert_int_equal(wisdom.entries.n, told.lines);
  sched_wisdom_fini(&wisdom);
  assert_int_not_equal(access(temporary, F_OK), 0);
  (void)unlink(path);
}

static void keeps_other_lines(void **state) {
  (void)state;
  struct told told = {.go_on = false}; /* the first kernel, and no more */
  char text[4096];
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  fputs("quern wisdom 1\n# mine\n4c1d0e5a93b7f210 avx512 grain=32", file);
  fclose(file);
  EXPECT_OK(tune(&told, 8));
  assert_int_equal(told.kernels, 1);
  (void)read_file(text, sizeof text);
  assert_non_null(strstr(text, "quern wisdom 1\n# mine\n4c1d0e5a93b7f210 avx512 grain=32\n"));
  (void)unlink(path);
}

static void refuses_a_damaged_file(void **state) {
  (void)state;
  struct told told = {.go_on = true};
  char text[64];
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  fputs("nonsense\n", file);
  fclose(file);
  EXPECT_ERROR(tune(&told, 1), PARSE, "expected 'quern wisdom 1'");
  (void)read_file(text, sizeof text);
  assert_string_equal(text, "nonsense\n");
  (void)unlink(path);
}

/* What has a name beside the file's is neither followed nor replaced: only what a killed search left is. */
static void leaves_other_files(void **state) {
  (void)state;
  struct told told = {.go_on = false};
  char text[64];
  static const char new_name[] = "tune-test.wisdom.new";
  FILE *file = fopen(other, "w");
  assert_non_null(file);
  fputs("precious\n", file);
  fclose(file);
  (void)unlink(new_name);
  assert_int_equal(symlink(other, temporary), 0);
  assert_int_equal(symlink(other, new_name), 0);
  EXPECT_OK(tune(&told, 1));
  (void)read_file_at(other, text, sizeof text);
  assert_string_equal(text, "precious\n");
  assert_int_equal(unlink(temporary), 0);
  assert_int_equal(unlink(new_name), 0);
  assert_int_not_equal(access("tune-test.wisdom.1.tmp", F_OK), 0);
  file = fopen(temporary, "w"); /* of a search that was killed */
  assert_non_null(file);
  fclose(file);
  EXPECT_OK(tune(&told, 1));
  assert_int_not_equal(access(temporary, F_OK), 0);
  (void)unlink(path);
  (void)unlink(other);
}

/* A pipe would be waited for. */
static void refuses_what_is_no_file(void **state) {
  (void)state;
  struct told told = {.go_on = false};
  (void)unlink(path);
  assert_int_equal(mkfifo(path, 0600), 0);
  EXPECT_ERROR(tune(&told, 1), IO, "is no regular file");
  assert_int_equal(unlink(path), 0);
}

/* Whatever allocation fails, the file is as it was or new: never half. */
static void allocations_may_fail(void **state) {
  (void)state;
  struct fault fault = {0};
  while (fault_next(&fault)) {
    struct told told = {.go_on = false};
    (void)unlink(path);
    fault_begin(&fault);
    quern_status status = tune(&told, 1);
    fault_end(&fault);
    EXPECT_FAULT(&fault, status);
    assert_int_not_equal(access(temporary, F_OK), 0);
    assert_int_equal(access(path, F_OK) == 0, status == QUERN_STATUS_OK);
    fault.n += 97; /* there are thousands: some of them */
  }
  assert_true(fault.n > 1000);
  (void)unlink(path);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(writes_lines),       TEST(keeps_other_lines),       TEST(refuses_a_damaged_file),
      TEST(leaves_other_files), TEST(refuses_what_is_no_file), TEST(allocations_may_fail)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
