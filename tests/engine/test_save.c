/* tests/engine/test_save.c -- programs in files: the same bits without compiler and cache; cut and damaged files
** refused */
#include "engine/engine_test.h"

#include <fcntl.h>
#include <unistd.h>

#define PATH "build-test-save.qprg"

static void body(void *user, quern_tensor *const *args, quern_tensor **results) {
  (void)user;
  results[0] = quern_tanh(quern_add(args[1], args[2]));
  results[1] = quern_sum(args[1], QUERN_ALL, false);
}

/* Something of everything: a contraction, rows, a loop, a state, constants, several outputs. */
static void build(quern_tensor **roots, quern_update *update) {
  static float weights[6 * 5];
  for (int i = 0; i < 30; i++) weights[i] = (float)(i % 7) - 3;
  quern_tensor *x = F32_INPUT("x", 4, 6), *s = F32_STATE("s", 4, 5);
  quern_tensor *w = quern_tensor_wrap(ctx, QUERN_DTYPE_F32, QUERN_LIST(6, 5), weights), *results[2];
  quern_tensor *y = quern_softmax(quern_add(quern_matmul(x, w), s), 1);
  quern_tensor *rows = quern_broadcast_to(quern_reshape(y, QUERN_LIST(1, 4, 5)), QUERN_LIST(3, 4, 5));
  quern_loop_options options = {.size = sizeof options, .trip = 3, .n_carries = 1, .n_scanned = 1, .n_stacked = 1};
  EXPECT_OK(quern_loop(ctx, &options, (quern_tensor *[]){y, rows}, body, NULL, results));
  roots[0] = results[0];
  roots[1] = results[1];
  roots[2] = quern_argmax(y, 1, false);
  *update = (quern_update){s, y};
}

static void open_saved(void) {
  quern_tensor *roots[3];
  quern_update update;
  build(roots, &update);
  quern_program_options options = QUERN_PROGRAM_OPTIONS;
  options.device = "cpu";
  options.threads = 2;
  options.n_updates = 1;
  options.updates = &update;
  open_program(3, roots, &options);
  EXPECT_OK(quern_program_save(program, PATH));
}

static void saved_programs_run(void **state) {
  (void)state;
  static char want[2][3][MOST_BYTES];
  open_saved();
  quern_memory memory, again;
  EXPECT_OK(quern_program_memory(program, &memory));
  for (int time = 0; time < 2; time++) {
    run_program();
    for (int i = 0; i < 3; i++) memcpy(want[time][i], outputs.at[i], program->outputs[i].bytes);
  }
  close_program();
  quern_context_free(ctx);
  ctx = NULL;
  setenv("PATH", "/nowhere", 1); /* no compiler */
  EXPECT_OK(quern_program_load(&program, PATH));
  EXPECT_OK(quern_program_memory(program, &again));
  assert_memory_equal(&memory, &again, sizeof memory);
  EXPECT_OK(quern_instance_new(&instance, program));
  for (size_t i = 0; i < states.n; i++) EXPECT_OK(quern_instance_set_state(instance, i, states.at[i]));
  for (int time = 0; time < 2; time++) {
    run_program();
    for (int i = 0; i < 3; i++) assert_memory_equal(want[time][i], outputs.at[i], program->outputs[i].bytes);
  }
  quern_slot slot;
  EXPECT_OK(quern_program_input(program, 0, &slot));
  assert_string_equal(slot.name, "x");
  close_program();
  unlink(PATH);
}

static size_t read_file(char *bytes, size_t most) {
  FILE *file = fopen(PATH, "rb");
  assert_non_null(file);
  size_t n = fread(bytes, 1, most, file);
  fclose(file);
  return n;
}

static void write_file(const char *bytes, size_t n) {
  FILE *file = fopen(PATH, "wb");
  assert_non_null(file);
  assert_int_equal(fwrite(bytes, 1, n, file), n);
  fclose(file);
}

/* The same graph gives the same file, whatever was in memory before and however long it took; and so does what was loaded. */
static void files_repeat(void **state) {
  (void)state;
  enum { MOST = 1 << 20 };
  static char first[MOST], bytes[MOST];
  open_saved();
  close_program();
  size_t n = read_file(first, MOST);
  assert_true(n > 100 && n < MOST);
  test_renew();
  memory_fill = 0x3c;
  open_saved();
  memory_fill = 0xa5;
  assert_true(read_file(bytes, MOST) == n && memcmp(first, bytes, n) == 0);
  EXPECT_OK(quern_program_save(program, PATH));
  assert_true(read_file(bytes, MOST) == n && memcmp(first, bytes, n) == 0);
  close_program();
  EXPECT_OK(quern_program_load(&program, PATH));
  EXPECT_OK(quern_program_save(program, PATH));
  assert_true(read_file(bytes, MOST) == n && memcmp(first, bytes, n) == 0);
  close_program();
  unlink(PATH);
}

static void expect_refused(const char *bytes, size_t n) {
  quern_program *loaded = (quern_program *)bytes;
  write_file(bytes, n);
  quern_status status = quern_program_load(&loaded, PATH);
  assert_true(status == QUERN_STATUS_PARSE || status == QUERN_STATUS_UNSUPPORTED);
  assert_null(loaded);
}

static void damaged_files_are_refused(void **state) {
  (void)state;
  enum { MOST = 1 << 20 };
  static char bytes[MOST], other[MOST];
  open_saved();
  close_program();
  size_t n = read_file(bytes, MOST);
  assert_true(n > 100 && n < MOST);
  for (size_t cut = 0; cut < n; cut += cut < 256 ? 1 : 997) expect_refused(bytes, cut);
  for (size_t at = 0; at < n; at += at < 256 ? 1 : 499) {
    memcpy(other, bytes, n);
    other[at] = (char)(other[at] ^ 0x10);
    expect_refused(other, n);
  }
  unlink(PATH);
}

/* Past the checksum: every number of the program's own bytes changed, in turn; nothing is run. */
static void wrong_numbers_are_refused(void **state) {
  (void)state;
  open_saved();
  struct base_str str;
  base_str_init(&str, &program->heap);
  EXPECT_OK(engine_program_bytes(program, &str));
  for (size_t at = 0; at + 8 <= BASE_MIN(str.n, 6000); at++) {
    char kept[8];
    memcpy(kept, str.at + at, 8);
    memset(str.at + at, at % 2 == 0 ? 0x7f : 0xff, 8);
    quern_program *made;
    size_t used;
    EXPECT_OK(engine_program_empty(&made, NULL));
    (void)!engine_program_read(made, "bytes", str.at, BASE_MIN(str.n, 6000), &used);
    quern_program_free(made);
    memcpy(str.at + at, kept, 8);
  }
  base_str_fini(&str);
  close_program();
  unlink(PATH);
}

static void interpreted_programs_are_not_saved(void **state) {
  (void)state;
  open_program(TENSORS(quern_neg(F32_INPUT("x", 3))), NULL);
  assert_int_equal(quern_program_save(program, PATH), QUERN_STATUS_UNSUPPORTED);
  assert_int_not_equal(access(PATH, F_OK), 0);
  close_program();
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(interpreted_programs_are_not_saved), TEST(damaged_files_are_refused),
                                     TEST(wrong_numbers_are_refused), TEST(files_repeat), TEST(saved_programs_run)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
