/* tests/train/test_data.c -- what is trained on and what is held out; texts, folders, token files; the adder's texts */
#include "train/train_test.h"

static struct base_heap heap;
static struct train_data data;
static struct train_spec spec;

static void open_data(const quern_config *config) {
  base_heap_init(&heap, &memory_allocator);
  EXPECT_OK(train_spec_read(&spec, config));
  EXPECT_OK(train_data_open(&data, &heap, config, &spec, NULL));
}

static void get(const quern_source *source, int64_t i, int32_t *inputs, int32_t *labels) {
  EXPECT_OK(quern_source_get(source, i, (void *[]){inputs, labels}));
}

/* ---- what is held out ----------------------------------------------------------------------------------- */

/* Samples of a text whose ids are their places: each place is trained on or held out, but not both. */
static void check_apart(const char *stride, const char *part, int64_t train, int64_t held) {
  enum { N = 1000, LENGTH = 10 };
  uint16_t ids[N];
  for (int i = 0; i < N; i++) ids[i] = (uint16_t)i;
  const char *path = in_folder("places.bin");
  quern_tokens_writer *writer;
  quern_tokens_options options = QUERN_INIT(quern_tokens_options);
  options.vocab = N;
  EXPECT_OK(quern_tokens_writer_new(&writer, path, &options));
  for (uint32_t i = 0; i < N; i++) EXPECT_OK(quern_tokens_writer_add(writer, 1, &(uint32_t){ids[i]}));
  EXPECT_OK(quern_tokens_writer_end(writer));
  quern_tokens_writer_free(writer);
  quern_config *config = tiny_config("");
  set(config, "data", path);
  set(config, "length", "10");
  set(config, "stride", stride);
  set(config, "eval_part", part);
  open_data(config);
  assert_int_equal(spec.lm.vocabulary, N);
  assert_int_equal(quern_source_sample_count(data.train), train);
  assert_int_equal(data.eval != NULL ? quern_source_sample_count(data.eval) : 0, held);
  bool trained[N + 1] = {false};
  int32_t inputs[LENGTH], labels[LENGTH];
  for (int64_t i = 0; i < train; i++) {
    get(data.train, i, inputs, labels);
    for (int k = 0; k < LENGTH; k++) assert_int_equal(labels[k], inputs[k] + 1);
    for (int k = 0; k < LENGTH; k++) trained[inputs[k]] = true;
  }
  for (int64_t i = 0; i < held; i++) {
    get(data.eval, i, inputs, labels);
    for (int k = 0; k < LENGTH; k++) assert_false(trained[inputs[k]]);
  }
  train_data_close(&data);
  quern_config_free(config);
}

static void held_out(void **state) {
  (void)state;
  check_apart("length", "0.1", 90, 9);
  check_apart("length", "0.5", 50, 49);
  check_apart("length", "0.001", 98, 1);
  check_apart("length", "0", 99, 0);
  check_apart("3", "0.1", 330 - 33 - 4, 33);
  check_apart("20", "0.25", 38, 12);
}

static void own_evaluation_data(void **state) {
  (void)state;
  quern_config *config = tiny_config("");
  set(config, "eval_data", make_text("eval.txt", 100));
  open_data(config);
  assert_int_equal(quern_source_sample_count(data.train), 250);
  assert_int_equal(quern_source_sample_count(data.eval), 12);
  train_data_close(&data);
  quern_config_free(config);
}

/* ---- files ---------------------------------------------------------------------------------------------- */

static void write_file(const char *path, const char *bytes, size_t n) {
  FILE *file = fopen(path, "wb");
  assert_non_null(file);
  assert_int_equal(fwrite(bytes, 1, n, file), n);
  assert_int_equal(fclose(file), 0);
}

/* Files of a folder come by name, with the end of a document after each; what is no text is left out. */
static void folders(void **state) {
  (void)state;
  char path[512], inner[1024];
  snprintf(path, sizeof path, "%s", in_folder("texts"));
  assert_int_equal(mkdir(path, 0700), 0);
  snprintf(inner, sizeof inner, "%s/b", path);
  assert_int_equal(mkdir(inner, 0700), 0);
  snprintf(inner, sizeof inner, "%s/b/inner", path);
  write_file(inner, "BBBB", 4);
  snprintf(inner, sizeof inner, "%s/c.txt", path);
  write_file(inner, "CC", 2);
  snprintf(inner, sizeof inner, "%s/a.txt", path);
  write_file(inner, "AAA", 3);
  snprintf(inner, sizeof inner, "%s/aa.o", path);
  write_file(inner, "x\0y", 3);
  snprintf(inner, sizeof inner, "%s/.hidden", path);
  write_file(inner, "HHHH", 4);
  snprintf(inner, sizeof inner, "%s/empty", path);
  write_file(inner, "", 0);
  quern_config *config = tiny_config("");
  set(config, "data", path);
  set(config, "length", "11");
  set(config, "eval_part", "0");
  static const int32_t want[] = {'A', 'A', 'A', 256, 'B', 'B', 'B', 'B', 256, 'C', 'C', 256};
  uint64_t digests[2];
  for (int large = 0; large < 2; large++) { /* in memory, and in a file of the run's folder */
    size_t before = train_large_text;
    if (large) {
      train_large_text = 1;
      set(config, "out", in_folder("large"));
    }
    open_data(config);
    train_large_text = before;
    int32_t inputs[11], labels[11];
    assert_int_equal(quern_source_sample_count(data.train), 1);
    get(data.train, 0, inputs, labels);
    assert_memory_equal(inputs, want, sizeof inputs);
    assert_memory_equal(labels, want + 1, sizeof labels);
    assert_int_equal(data.bytes, large ? 0 : 24);
    assert_int_not_equal(access(in_folder("large"), F_OK), 0); /* nothing has a name */
    digests[large] = data.digest;
    train_data_close(&data);
  }
  assert_true(digests[0] == digests[1]);
  quern_config_free(config);
}

/* Under a limit of memory a text of some MiB goes to a file, where one can be made. */
static void limited(void **state) {
  (void)state;
  static const char *const outs[] = {"limited", "text.txt/limited"};
  for (size_t i = 0; i < sizeof outs / sizeof *outs; i++) {
    quern_config *config = tiny_config("");
    set(config, "data", make_text("long.txt", (4 << 20) + 1));
    set(config, "memory", "1GiB");
    set(config, "out", in_folder(outs[i]));
    open_data(config);
    assert_int_equal(data.bytes, i == 0 ? 0 : 2 * ((4 << 20) + 2));
    train_data_close(&data);
    quern_config_free(config);
  }
}

/* Nobody may ever write into a pipe: it is not waited for. */
static void pipes(void **state) {
  (void)state;
  static const struct {
    const char *name, *why;
  } rows[] = {{"pipe.bin", "pipe.bin: is no regular file"}, {"pipe.txt", "pipe.txt: is neither a file nor a folder"}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    quern_config *config = tiny_config("");
    set(config, "data", in_folder(rows[i].name));
    assert_int_equal(mkfifo(in_folder(rows[i].name), 0600), 0);
    base_heap_init(&heap, &memory_allocator);
    EXPECT_OK(train_spec_read(&spec, config));
    EXPECT_ERROR(train_data_open(&data, &heap, config, &spec, NULL), IO, rows[i].why);
    train_data_close(&data);
    quern_config_free(config);
  }
}

/* ---- the adder ------------------------------------------------------------------------------------------ */

static void adder(void **state) {
  (void)state;
  char text[TRAIN_ADDER_LENGTH + 2];
  train_adder_text(123456, text);
  assert_string_equal(text, "123+456=9750\n");
  train_adder_text(999999, text);
  assert_string_equal(text, "999+999=8991\n");
  train_adder_text(7, text);
  assert_string_equal(text, "000+007=7000\n");
  quern_config *config;
  EXPECT_OK(quern_train_config(&config, &memory_allocator));
  EXPECT_OK(quern_train_preset(config, "adder"));
  open_data(config);
  const quern_source *sources[] = {data.train, data.eval};
  int64_t sums = 0;
  for (int held = 0; held < 2; held++)
    for (int64_t i = 0; i < 2000; i++) {
      int32_t inputs[TRAIN_ADDER_LENGTH], labels[TRAIN_ADDER_LENGTH];
      get(sources[held], i, inputs, labels);
      int64_t a = 0, b = 0;
      for (int k = 0; k < 3; k++) {
        a = 10 * a + inputs[k] - '0';
        b = 10 * b + inputs[4 + k] - '0';
      }
      assert_int_equal(train_adder_held(a * 1000 + b), held);
      train_adder_text(a * 1000 + b, text);
      for (int k = 0; k < TRAIN_ADDER_LENGTH; k++) {
        assert_int_equal(inputs[k], text[k]);
        assert_int_equal(labels[k], k < 7 ? -1 : text[k + 1]);
      }
      sums += a + b;
    }
  assert_true(sums > 4000 * 900 && sums < 4000 * 1100); /* pairs are all over the square */
  train_data_close(&data);
  quern_config_free(config);
}

static void presets(void **state) {
  (void)state;
  quern_config *config;
  EXPECT_OK(quern_train_config(&config, &memory_allocator));
  EXPECT_OK(quern_train_preset(config, "chars"));
  EXPECT_ERROR(quern_train_preset(config, "ader"), INVALID,
               "there is no task 'ader'; there are adder, chars; did you mean 'adder'?");
  EXPECT_ERROR(quern_config_word(config, "bacth=3"), INVALID, "did you mean 'batch'?");
  EXPECT_ERROR(quern_config_word(config, "precision=f8"), INVALID, "must be auto, f32, f64, bf16, f16");
  quern_config_free(config);
}

/* docs/train.md has every key with its default and whether it must stay. */
static void documented(void **state) {
  (void)state;
  static char text[1 << 16];
  text[file_load("docs/train.md", (unsigned char *)text, sizeof text - 1)] = 0;
  for (size_t i = 0; i < train_n_keys; i++) {
    const quern_config_key *key = &train_keys[i];
    char row[256];
    snprintf(row, sizeof row, "| `%s` | %s%s%s | %s |", key->name, key->value[0] != 0 ? "`" : "", key->value,
             key->value[0] != 0 ? "`" : "", train_key_is_same(i) ? "=" : "");
    if (strstr(text, row) == NULL) fail_msg("docs/train.md: there is no row '%s'", row);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(held_out), TEST(own_evaluation_data), TEST(folders), TEST(limited), TEST(pipes), TEST(adder),
      TEST(presets),  TEST(documented)};
  return cmocka_run_group_tests_name("train/data", tests, setup_folder, remove_folder);
}
