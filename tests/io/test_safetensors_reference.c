/* tests/io/test_safetensors_reference.c -- an outside reference, tests/oracle/compare_safetensors.py, reads what Quern wrote, and Quern what it wrote */
#include "base/base.h"
#include "io/folder.h"
#include "quern/quern.h"
#include "unit.h"

enum { KINDS = 4, TENSORS = QUERN_DTYPE_COUNT * KINDS };
#define PYTHON "/usr/bin/python3"
#define REFERENCE PYTHON " tests/oracle/compare_safetensors.py "

static quern_safetensor tensors[TENSORS];
static char names[TENSORS][32];
static unsigned char data[TENSORS][512];
static const quern_string_pair pairs[] = {{"format", "pt"},
                                          {"note", "a \"quoted\" line\nand \xc3\xbc \xf0\x9f\x8c\xbe"}};

/* The tensors of the reference's function expected(): the dtypes in its order, four shapes of each. */
static void make_tensors(void) {
  static const char *const dtypes[QUERN_DTYPE_COUNT] = {"F32", "F64", "F16", "BF16", "F8_E4M3", "F8_E5M2", "I8",  "I16",
                                                        "I32", "I64", "U8",  "U16",  "U32",     "U64",     "BOOL"};
  static const int64_t dims[KINDS][3] = {{0}, {2, 0}, {3, 1, 5}, {4, 16}};
  static const int ranks[KINDS] = {0, 2, 3, 2};
  for (size_t i = 0; i < TENSORS; i++) {
    quern_dtype dtype = (quern_dtype)(i / KINDS);
    snprintf(names[i], sizeof names[i], "%s.%zu", dtypes[dtype], i % KINDS);
    for (size_t j = 0; j < sizeof data[i]; j++)
      data[i][j] = (unsigned char)((37 * j + 11 * i) % 256 % (dtype == QUERN_DTYPE_BOOL ? 2 : 256));
    tensors[i] = (quern_safetensor){
        .name = names[i], .dtype = dtype, .rank = ranks[i % KINDS], .dims = dims[i % KINDS], .data = data[i]};
  }
}

static void expect_tensors(const quern_safetensors *file) {
  assert_int_equal(quern_safetensors_count(file), TENSORS);
  for (size_t i = 0; i < TENSORS; i++) {
    quern_safetensor got;
    EXPECT_OK(quern_safetensors_find(file, names[i], &got));
    assert_int_equal(got.dtype, tensors[i].dtype);
    assert_int_equal(got.rank, tensors[i].rank);
    for (int k = 0; k < got.rank; k++) assert_int_equal(got.dims[k], tensors[i].dims[k]);
    assert_memory_equal(got.data, data[i], got.bytes);
  }
}

static void expect_pairs(size_t n, const quern_string_pair *got) {
  assert_int_equal(n, BASE_COUNT(pairs));
  for (size_t i = 0; i < n; i++) {
    assert_string_equal(got[i].key, pairs[i].key);
    assert_string_equal(got[i].value, pairs[i].value);
  }
}

static void expect_metadata(const quern_safetensors *file) {
  quern_string_pair got[BASE_COUNT(pairs)];
  assert_int_equal(quern_safetensors_pair_count(file), BASE_COUNT(pairs));
  for (size_t i = 0; i < BASE_COUNT(pairs); i++) EXPECT_OK(quern_safetensors_pair(file, i, &got[i]));
  expect_pairs(BASE_COUNT(pairs), got);
}

/* Runs the reference on the folder. */
static void reference(const char *what) {
  char line[256];
  if (system(PYTHON " -c 'import numpy' 2>/dev/null") != 0) {
    print_message("test_safetensors_reference: " PYTHON " has no numpy\n");
    folder_clear(folder);
    skip();
  }
  snprintf(line, sizeof line, REFERENCE "%s %s", what, folder);
  assert_int_equal(system(line), 0);
}

static void reads_ours(void **state) {
  (void)state;
  quern_safetensors_options options = QUERN_INIT(quern_safetensors_options);
  quern_checkpoint_contents contents = QUERN_INIT(quern_checkpoint_contents);
  options.n_pairs = BASE_COUNT(pairs);
  options.pairs = pairs;
  EXPECT_OK(quern_safetensors_write(in_folder("ours.safetensors"), TENSORS, tensors, &options));
  options.shard_bytes = 1000;
  EXPECT_OK(quern_safetensors_write(in_folder("model.safetensors.index.json"), TENSORS, tensors, &options));
  contents.step = 1234;
  contents.seed = UINT64_C(0xfedcba9876543210);
  contents.cursor = 78976;
  contents.n_tensors = TENSORS;
  contents.tensors = tensors;
  contents.n_config = BASE_COUNT(pairs);
  contents.config = pairs;
  contents.state = "{\"lr\":0.1,\"list\":[1,-2,true,null]}";
  EXPECT_OK(quern_checkpoint_save(folder, &contents));
  reference("read");
  folder_clear(folder);
}

static void writes_for_us(void **state) {
  (void)state;
  quern_safetensors *file;
  quern_checkpoint *checkpoint;
  quern_checkpoint_info info = QUERN_INIT(quern_checkpoint_info);
  reference("write");
  EXPECT_OK(quern_safetensors_open(&file, in_folder("theirs.safetensors"), NULL));
  expect_tensors(file);
  expect_metadata(file);
  quern_safetensors_close(file);
  EXPECT_OK(quern_safetensors_open(&file, in_folder("theirs.index.json"), NULL));
  assert_int_equal(quern_safetensors_shard_count(file), 3);
  expect_tensors(file);
  expect_metadata(file);
  quern_safetensors_close(file);
  EXPECT_OK(quern_checkpoint_find(&checkpoint, in_folder("theirs"), NULL));
  assert_non_null(checkpoint);
  expect_tensors(quern_checkpoint_tensors(checkpoint));
  EXPECT_OK(quern_checkpoint_get_info(checkpoint, &info));
  assert_true(info.step == 1234 && info.seed == UINT64_C(0xfedcba9876543210) && info.cursor == 78976);
  expect_pairs(info.n_config, info.config);
  assert_string_equal(info.state, "{\"lr\":0.10000000000000001,\"list\":[1,-2,true,null]}");
  quern_checkpoint_close(checkpoint);
  folder_clear(folder);
}

static int make_folder(void **state) {
  (void)state;
  make_tensors();
  return folder_make() ? 0 : -1;
}

static int remove_folder(void **state) {
  (void)state;
  folder_clear(folder);
  return rmdir(folder);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(reads_ours), cmocka_unit_test(writes_for_us)};
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
