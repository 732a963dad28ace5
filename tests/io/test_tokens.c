/* tests/io/test_tokens.c -- token files: written and read, raw and with a header, cut and damaged */
#include <dirent.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/data.h"
#include "quern/quern.h"
#include "unit.h"

static char folder[] = "/tmp/quern_tokens_XXXXXX";
static char path[256];

static quern_tokens_options options_of(bool raw, quern_dtype dtype) {
  quern_tokens_options options = QUERN_INIT(quern_tokens_options);
  options.raw = raw;
  options.dtype = dtype;
  options.allocator = memory_allocator;
  return options;
}

static void write_file(const char *name, const quern_tokens_options *options, size_t n, const uint32_t *ids) {
  quern_tokens_writer *writer;
  EXPECT_OK(quern_tokens_writer_new(&writer, name, options));
  for (size_t i = 0; i < n; i += 7000) EXPECT_OK(quern_tokens_writer_add(writer, BASE_MIN(n - i, 7000), ids + i));
  EXPECT_OK(quern_tokens_writer_end(writer));
  quern_tokens_writer_free(writer);
}

static size_t files_in_folder(void) {
  size_t n = 0;
  DIR *dir = opendir(folder);
  for (struct dirent *entry; (entry = readdir(dir)) != NULL;) n += entry->d_name[0] != '.' ? 1 : 0;
  closedir(dir);
  return n;
}

/* ---- there and back ------------------------------------------------------------------------------------ */

static void there_and_back(void **state) {
  (void)state;
  enum { N = 20001 };
  static uint32_t ids[N], got[N];
  static const quern_dtype dtypes[] = {QUERN_DTYPE_U16, QUERN_DTYPE_U32};
  for (size_t k = 0; k < 4; k++) {
    quern_tokens_options options = options_of(k / 2 == 1, dtypes[k % 2]);
    quern_tokens *tokens;
    for (size_t i = 0; i < N; i++) ids[i] = (uint32_t)base_hash_u64(k, i) & (k % 2 == 0 ? 0xffffu : UINT32_MAX);
    write_file(path, &options, N, ids);
    options.dtype = options.raw ? options.dtype : QUERN_DTYPE_U16; /* the header knows better */
    EXPECT_OK(quern_tokens_open(&tokens, path, &options));
    assert_int_equal(quern_tokens_count(tokens), N);
    assert_int_equal(quern_tokens_dtype(tokens), dtypes[k % 2]);
    EXPECT_OK(quern_tokens_get(tokens, 0, N, got));
    assert_memory_equal(got, ids, sizeof ids);
    EXPECT_OK(quern_tokens_get(tokens, 17, 3, got));
    assert_memory_equal(got, ids + 17, 3 * sizeof *ids);
    EXPECT_OK(quern_tokens_get(tokens, N, 0, NULL));
    EXPECT_ERROR(quern_tokens_get(tokens, N - 1, 2, got), INVALID, "2 ids from 20000 on, there are 20001");
    EXPECT_ERROR(quern_tokens_get(tokens, -1, 1, got), INVALID, "1 ids from -1 on");
    EXPECT_ERROR(quern_tokens_get(tokens, 0, SIZE_MAX, got), INVALID, "there are 20001");
    quern_tokens_free(tokens);
  }
  assert_int_equal(files_in_folder(), 1);
}

/* The bytes, as llm.c and nanoGPT have them. */
static void as_bytes(void **state) {
  (void)state;
  unsigned char bytes[2048];
  quern_tokens_options options = options_of(false, QUERN_DTYPE_U16);
  options.vocab = 50257;
  write_file(path, &options, 3, (uint32_t[]){1, 0x1234, 50256});
  FILE *file = fopen(path, "rb");
  assert_int_equal(fread(bytes, 1, sizeof bytes, file), 1024 + 6);
  fclose(file);
  static const unsigned char head[20] = {0x88, 0xd8, 0x34, 0x01, 1, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0x51, 0xc4, 0, 0};
  assert_memory_equal(bytes, head, sizeof head);
  for (size_t i = sizeof head; i < 1024; i++) assert_int_equal(bytes[i], 0);
  assert_memory_equal(bytes + 1024, ((unsigned char[]){1, 0, 0x34, 0x12, 0x50, 0xc4}), 6);
  quern_tokens *tokens;
  EXPECT_OK(quern_tokens_open(&tokens, path, NULL));
  assert_int_equal(quern_tokens_vocab(tokens), 50257);
  quern_tokens_free(tokens);
  options = options_of(true, QUERN_DTYPE_U32);
  write_file(path, &options, 1, (uint32_t[]){0x01020304});
  file = fopen(path, "rb");
  assert_int_equal(fread(bytes, 1, sizeof bytes, file), 4);
  fclose(file);
  assert_memory_equal(bytes, ((unsigned char[]){4, 3, 2, 1}), 4);
}

static void empty(void **state) {
  (void)state;
  quern_tokens *tokens;
  for (int raw = 0; raw < 2; raw++) {
    quern_tokens_options options = options_of(raw != 0, QUERN_DTYPE_U16);
    write_file(path, &options, 0, NULL);
    EXPECT_OK(quern_tokens_open(&tokens, path, &options));
    assert_int_equal(quern_tokens_count(tokens), 0);
    quern_tokens_free(tokens);
  }
}

static void in_memory(void **state) {
  (void)state;
  static const uint16_t ids[] = {5, 6, 7};
  quern_tokens_options options = options_of(true, QUERN_DTYPE_U16);
  quern_tokens *tokens;
  uint32_t got[3];
  EXPECT_OK(quern_tokens_wrap(&tokens, ids, sizeof ids, &options));
  EXPECT_OK(quern_tokens_get(tokens, 0, 3, got));
  assert_true(got[0] == 5 && got[1] == 6 && got[2] == 7);
  quern_tokens_free(tokens);
}

/* ---- what is wrong ------------------------------------------------------------------------------------- */

static void damaged(void **state) {
  (void)state;
  static unsigned char bytes[1024 + 8];
  quern_tokens *tokens;
  const struct {
    size_t n;
    uint32_t words[4];
    const char *message;
  } rows[] = {
      {0, {0}, "tokens: has 0 bytes, a header takes 1024"},
      {1023, {20240520, 1, 0}, "has 1023 bytes"},
      {1032, {20240520, 1, 4}, NULL},
      {1032, {20240801, 7, 2}, NULL},
      {1032, {20240520, 7, 4}, "begins with 20240520 and 7, a token file with"},
      {1032, {20240521, 1, 4}, "begins with 20240521 and 1"},
      {1032, {20240520, 1, 3}, "the header speaks of 3 ids of 2 bytes, but 8 bytes follow it"},
      {1032, {20240801, 7, 4}, "the header speaks of 4 ids of 4 bytes, but 8 bytes follow it"},
      {1031, {20240520, 1, 3}, "but 7 bytes follow it"},
      {1032, {20240520, 1, 4, 1}, "the header speaks of 4294967300 ids"},
  };
  for (size_t i = 0; i < BASE_COUNT(rows); i++) {
    memcpy(bytes, rows[i].words, sizeof rows[i].words);
    quern_status status = quern_tokens_wrap(&tokens, bytes, rows[i].n, NULL);
    if (rows[i].message == NULL)
      EXPECT_OK(status);
    else
      EXPECT_ERROR(status, PARSE, rows[i].message);
    quern_tokens_free(tokens);
  }
  quern_tokens_options options = options_of(true, QUERN_DTYPE_U32);
  EXPECT_ERROR(quern_tokens_wrap(&tokens, bytes, 7, &options), PARSE,
               "has 7 bytes, which is no whole number of ids of 4");
  EXPECT_ERROR(quern_tokens_open(&tokens, "/nowhere/t.bin", NULL), IO, "/nowhere/t.bin: cannot be opened");
  EXPECT_ERROR(quern_tokens_open(&tokens, folder, NULL), IO, "is no regular file");
}

/* A file cut at every 512th byte, and around them, is refused. */
static void cut_files(void **state) {
  (void)state;
  static uint32_t ids[2000];
  quern_tokens_options options = options_of(false, QUERN_DTYPE_U16);
  write_file(path, &options, 2000, ids);
  for (off_t cut = 1024 + 4000 - 1; cut >= 0; cut -= cut % 512 == 0 ? 1 : cut % 512) {
    quern_tokens *tokens;
    assert_int_equal(truncate(path, cut), 0);
    EXPECT_ERROR(quern_tokens_open(&tokens, path, &options), PARSE, path);
    assert_null(tokens);
  }
}

static void became_shorter(void **state) {
  (void)state;
  uint32_t ids[3000] = {0};
  quern_tokens *tokens;
  write_file(path, NULL, 3000, ids);
  EXPECT_OK(quern_tokens_open(&tokens, path, NULL));
  assert_int_equal(truncate(path, 100), 0);
  EXPECT_ERROR(quern_tokens_get(tokens, 2999, 1, ids), IO, "has become shorter than the 7024 bytes it had");
  quern_tokens_free(tokens);
}

static void wrong_ids(void **state) {
  (void)state;
  quern_tokens_writer *writer;
  quern_tokens_options options = options_of(false, QUERN_DTYPE_U16);
  (void)unlink(path);
  EXPECT_OK(quern_tokens_writer_new(&writer, path, &options));
  EXPECT_ERROR(quern_tokens_writer_add(writer, 2, (uint32_t[]){65535, 65536}), INVALID,
               "id 1 is 65536, the largest is 65535");
  quern_tokens_writer_free(writer); /* without an end: nothing is left */
  assert_int_equal(files_in_folder(), 0);
  options.vocab = 10;
  EXPECT_OK(quern_tokens_writer_new(&writer, path, &options));
  EXPECT_ERROR(quern_tokens_writer_add(writer, 1, (uint32_t[]){10}), INVALID, "id 0 is 10, the largest is 9");
  EXPECT_OK(quern_tokens_writer_end(writer));
  EXPECT_ERROR(quern_tokens_writer_add(writer, 0, NULL), STATE, "has ended");
  EXPECT_ERROR(quern_tokens_writer_end(writer), STATE, "has ended");
  quern_tokens_writer_free(writer);
}

/* A limit on the size of files stands for a full disk: the file that was there stays. */
static void full_disk(void **state) {
  (void)state;
  static uint32_t ids[50000];
  struct rlimit before, small = {4096, 4096};
  quern_tokens *tokens;
  quern_tokens_writer *writer;
  write_file(path, NULL, 5, ids);
  getrlimit(RLIMIT_FSIZE, &before);
  small.rlim_max = before.rlim_max;
  void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &small);
  EXPECT_OK(quern_tokens_writer_new(&writer, path, NULL));
  quern_status status = quern_tokens_writer_add(writer, 50000, ids);
  if (status == QUERN_STATUS_OK) status = quern_tokens_writer_end(writer);
  EXPECT_ERROR(status, IO, "cannot be written");
  quern_tokens_writer_free(writer);
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, handler);
  EXPECT_OK(quern_tokens_open(&tokens, path, NULL));
  assert_int_equal(quern_tokens_count(tokens), 5);
  quern_tokens_free(tokens);
  assert_int_equal(files_in_folder(), 1);
}

static void faults(void **state) {
  (void)state;
  struct fault fault = {0};
  quern_tokens_options options = options_of(false, QUERN_DTYPE_U16);
  (void)unlink(path);
  while (fault_next(&fault)) {
    quern_tokens_writer *writer;
    quern_tokens *tokens = NULL;
    fault_begin(&fault);
    quern_status status = quern_tokens_writer_new(&writer, path, &options);
    if (status == QUERN_STATUS_OK) status = quern_tokens_writer_add(writer, 1, (uint32_t[]){1});
    if (status == QUERN_STATUS_OK) status = quern_tokens_writer_end(writer);
    if (status == QUERN_STATUS_OK) status = quern_tokens_open(&tokens, path, &options);
    fault_end(&fault);
    EXPECT_FAULT(&fault, status);
    quern_tokens_free(tokens);
    quern_tokens_writer_free(writer);
    assert_true(files_in_folder() <= 1);
  }
  assert_true(fault.n > 3);
}

static int make_folder(void **state) {
  (void)state;
  if (mkdtemp(folder) == NULL) return -1;
  snprintf(path, sizeof path, "%s/t.bin", folder);
  return 0;
}

static int remove_folder(void **state) {
  (void)state;
  char line[128];
  snprintf(line, sizeof line, "rm -r %s", folder);
  return system(line);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(there_and_back), TEST(as_bytes),       TEST(empty),     TEST(in_memory), TEST(damaged),
      TEST(cut_files),      TEST(became_shorter), TEST(wrong_ids), TEST(full_disk), TEST(faults),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
