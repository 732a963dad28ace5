/* tests/io/test_checkpoint.c -- checkpoints: saved, found, loaded; damaged, cut, without memory, on a full disk */
#define _DEFAULT_SOURCE /* mount */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "base/base.h"
#include "io/folder.h"
#include "io/io.h"
#include "io/json_memory.h"
#include "quern/quern.h"
#include "unit.h"

/* ---- a small run ---------------------------------------------------------------------------------------- */

enum { WEIGHTS = 30 };

struct run {
  float weights[WEIGHTS], moment[WEIGHTS];
  double scale;
  unsigned char mask[3];
};

/* The state of a run after so many steps. */
static void run_to(struct run *run, uint64_t step) {
  for (int i = 0; i < WEIGHTS; i++) {
    run->weights[i] = (float)step + (float)i / 7;
    run->moment[i] = (float)i / (float)(step + 1);
  }
  run->scale = 65536.0 / (double)(step + 1);
  memset(run->mask, (int)(step % 2), sizeof run->mask);
}

static const int64_t weights_dims[] = {5, 6}, mask_dims[] = {3}, none_dims[] = {0, 4};

/* Tensors that are given when they are written: where they are, and which of them cannot be; SIZE_MAX: all can. */
struct given {
  const quern_safetensor *tensors;
  size_t bytes[5], fails, asked;
};

static quern_status give(void *user, size_t i, void *dst) {
  struct given *given = user;
  given->asked++;
  if (i == given->fails) return base_error(QUERN_STATUS_STATE, "tensor %zu is gone", i);
  memcpy(dst, given->tensors[i].data, given->bytes[i]);
  return QUERN_STATUS_OK;
}

/* given: all but the second one come from there. */
static quern_status save_given(const char *dir, uint64_t step, size_t keep, struct given *given) {
  struct run run;
  run_to(&run, step);
  const quern_safetensor tensors[] = {
      {.name = "layer.weight", .dtype = QUERN_DTYPE_F32, .rank = 2, .dims = weights_dims, .data = run.weights},
      {.name = "optim.layer.weight.m", .dtype = QUERN_DTYPE_F32, .rank = 2, .dims = weights_dims, .data = run.moment},
      {.name = "scaler.scale", .dtype = QUERN_DTYPE_F64, .data = &run.scale},
      {.name = "mask", .dtype = QUERN_DTYPE_BOOL, .rank = 1, .dims = mask_dims, .data = run.mask},
      {.name = "nothing", .dtype = QUERN_DTYPE_I64, .rank = 2, .dims = none_dims},
  };
  const quern_string_pair config[] = {{"model", "mlp:5x6"}, {"note", "\"\xc3\xa4\"\n"}};
  quern_checkpoint_contents contents = QUERN_INIT(quern_checkpoint_contents);
  contents.step = step;
  contents.seed = UINT64_MAX - step;
  contents.cursor = 64 * step;
  contents.n_tensors = BASE_COUNT(tensors);
  contents.tensors = tensors;
  contents.n_config = BASE_COUNT(config);
  contents.config = config;
  contents.state = " { \"optim\" : {\"name\":\"adamw\", \"beta\":[0.5, 0.75]}, \"loss\":0.1 } ";
  contents.keep = keep;
  contents.allocator = memory_allocator;
  if (given == NULL) return quern_checkpoint_save(dir, &contents);
  quern_safetensor empty[BASE_COUNT(tensors)];
  const size_t bytes[] = {sizeof run.weights, sizeof run.moment, sizeof run.scale, sizeof run.mask, 0};
  memcpy(empty, tensors, sizeof empty);
  memcpy(given->bytes, bytes, sizeof bytes);
  given->tensors = tensors;
  for (size_t i = 0; i < BASE_COUNT(empty); i++)
    if (i != 1) empty[i].data = NULL;
  contents.tensors = empty;
  contents.read = give;
  contents.user = given;
  return quern_checkpoint_save(dir, &contents);
}

static quern_status save_to(const char *dir, uint64_t step, size_t keep) { return save_given(dir, step, keep, NULL); }

static quern_status save(uint64_t step, size_t keep) { return save_to(folder, step, keep); }

/* Everything of a checkpoint is as it was saved at that step. */
static void expect_run(quern_checkpoint *checkpoint, uint64_t step) {
  struct run run, got;
  quern_checkpoint_info info = QUERN_INIT(quern_checkpoint_info);
  assert_non_null(checkpoint);
  EXPECT_OK(quern_checkpoint_get_info(checkpoint, &info));
  assert_true(info.step == step && info.seed == UINT64_MAX - step && info.cursor == 64 * step);
  assert_int_equal(info.n_config, 2);
  assert_string_equal(info.config[0].key, "model");
  assert_string_equal(quern_checkpoint_config(checkpoint, "model"), "mlp:5x6");
  assert_string_equal(quern_checkpoint_config(checkpoint, "note"), "\"\xc3\xa4\"\n");
  assert_null(quern_checkpoint_config(checkpoint, "none"));
  assert_string_equal(info.state, "{\"optim\":{\"name\":\"adamw\",\"beta\":[0.5,0.75]},\"loss\":0.10000000000000001}");
  assert_int_equal(quern_safetensors_count(quern_checkpoint_tensors(checkpoint)), 5);
  run_to(&run, step);
  EXPECT_OK(quern_checkpoint_load(checkpoint, "layer.weight", QUERN_DTYPE_F32, QUERN_LIST(5, 6), got.weights));
  EXPECT_OK(quern_checkpoint_load(checkpoint, "optim.layer.weight.m", QUERN_DTYPE_F32, QUERN_LIST(5, 6), got.moment));
  EXPECT_OK(quern_checkpoint_load(checkpoint, "scaler.scale", QUERN_DTYPE_F64, 0, NULL, &got.scale));
  EXPECT_OK(quern_checkpoint_load(checkpoint, "mask", QUERN_DTYPE_BOOL, QUERN_LIST(3), got.mask));
  EXPECT_OK(quern_checkpoint_load(checkpoint, "nothing", QUERN_DTYPE_I64, QUERN_LIST(0, 4), NULL));
  assert_memory_equal(got.weights, run.weights, sizeof run.weights);
  assert_memory_equal(got.moment, run.moment, sizeof run.moment);
  assert_true(got.scale == run.scale && memcmp(got.mask, run.mask, sizeof run.mask) == 0);
}

/* The newest whole one is that of the step; so many later ones are damaged. */
static void expect_found(uint64_t step, size_t skipped) {
  quern_checkpoint *checkpoint;
  quern_checkpoint_info info = QUERN_INIT(quern_checkpoint_info);
  EXPECT_OK(quern_checkpoint_find(&checkpoint, folder, &memory_allocator));
  expect_run(checkpoint, step);
  EXPECT_OK(quern_checkpoint_get_info(checkpoint, &info));
  assert_int_equal(info.skipped, skipped);
  quern_checkpoint_close(checkpoint);
}

static bool is_there(const char *name) { return access(in_folder(name), F_OK) == 0; }

/* ---- saving and finding --------------------------------------------------------------------------------- */

/* What is given when it is written makes the same files; what cannot be given leaves none. */
static void given_when_written(void **state) {
  (void)state;
  struct given given = {.fails = SIZE_MAX};
  static const char *const files[] = {"step-00000003/model.safetensors", "step-00000003/checkpoint.json"};
  void *before[2], *after[2];
  size_t n[2], m[2];
  struct base_heap heap;
  base_heap_init(&heap, NULL);
  EXPECT_OK(save(3, 0));
  for (int i = 0; i < 2; i++) EXPECT_OK(io_file_read(in_folder(files[i]), &heap, 1 << 20, &before[i], &n[i]));
  folder_clear(folder);
  EXPECT_OK(save_given(folder, 3, 0, &given));
  assert_int_equal(given.asked, 3);
  expect_found(3, 0);
  for (int i = 0; i < 2; i++) {
    EXPECT_OK(io_file_read(in_folder(files[i]), &heap, 1 << 20, &after[i], &m[i]));
    assert_int_equal(n[i], m[i]);
    assert_memory_equal(before[i], after[i], n[i]);
    base_free(&heap, before[i], n[i]);
    base_free(&heap, after[i], m[i]);
  }
  for (given.fails = 0; given.fails < 4; given.fails++)
    if (given.fails != 1) EXPECT_ERROR(save_given(folder, 4, 0, &given), STATE, "is gone");
  assert_int_equal(folder_count(folder), 1);
  expect_found(3, 0);
  folder_clear(folder);
}

static void round_trip(void **state) {
  (void)state;
  quern_checkpoint *checkpoint;
  EXPECT_OK(save(7, 0));
  assert_int_equal(folder_count(folder), 1);
  assert_int_equal(folder_count(in_folder("step-00000007")), 2);
  EXPECT_OK(quern_checkpoint_open(&checkpoint, in_folder("step-00000007"), &memory_allocator));
  EXPECT_OK(quern_checkpoint_verify(checkpoint));
  expect_run(checkpoint, 7);
  quern_checkpoint_close(checkpoint);
  EXPECT_OK(save(INT64_MAX / 64, 0)); /* more than eight digits */
  EXPECT_OK(save(100000000, 0));
  expect_found(INT64_MAX / 64, 0);
  folder_clear(folder);
}

static void nothing_there(void **state) {
  (void)state;
  quern_checkpoint *checkpoint;
  EXPECT_OK(quern_checkpoint_find(&checkpoint, folder, &memory_allocator));
  assert_null(checkpoint);
  EXPECT_OK(quern_checkpoint_find(&checkpoint, in_folder("none"), &memory_allocator));
  assert_null(checkpoint);
  static const char *const others[] = {"step-",    "step-x",         "step-1x", "step-1.",
                                       "step-1.x", ".step-00000003", "steps-1", "step-99999999999999999999"};
  for (size_t i = 0; i < BASE_COUNT(others); i++) assert_int_equal(mkdir(in_folder(others[i]), 0777), 0);
  EXPECT_OK(quern_checkpoint_find(&checkpoint, folder, &memory_allocator));
  assert_null(checkpoint);
  file_store(in_folder("file"), "x", 1);
  EXPECT_ERROR(quern_checkpoint_find(&checkpoint, in_folder("file"), &memory_allocator), IO,
               "file: cannot be listed: Not a directory");
  EXPECT_ERROR(save_to(in_folder("file"), 1, 0), IO, "file: cannot be opened: Not a directory");
  EXPECT_ERROR(save_to(in_folder("none/none"), 1, 0), IO, "none/none: cannot be made: No such file");
  EXPECT_ERROR(quern_checkpoint_open(&checkpoint, in_folder("none"), &memory_allocator), IO,
               "none/checkpoint.json: cannot be opened: No such file");
  folder_clear(folder);
}

static void keeps_the_last(void **state) {
  (void)state;
  for (uint64_t step = 1; step <= 5; step++) EXPECT_OK(save(step, 0));
  assert_int_equal(folder_count(folder), 5);
  EXPECT_OK(save(6, 3));
  assert_int_equal(folder_count(folder), 3);
  assert_true(is_there("step-00000004") && is_there("step-00000005") && is_there("step-00000006"));
  EXPECT_OK(save(5, 1)); /* back to an earlier step: later ones stay */
  assert_true(is_there("step-00000006") && is_there("step-00000005.1") && folder_count(folder) == 2);
  EXPECT_OK(save(7, 1));
  assert_int_equal(folder_count(folder), 1);
  expect_found(7, 0);
  folder_clear(folder);
}

/* Damaged ones do not count among those that are kept, and go when they are older than all of these. */
static void keeps_whole_ones(void **state) {
  (void)state;
  for (uint64_t step = 1; step <= 4; step++) EXPECT_OK(save(step, 0));
  assert_int_equal(truncate(in_folder("step-00000004/model.safetensors"), 100), 0);
  assert_int_equal(unlink(in_folder("step-00000001/checkpoint.json")), 0);
  EXPECT_OK(save(5, 2));
  assert_true(is_there("step-00000005") && is_there("step-00000004") && is_there("step-00000003"));
  assert_int_equal(folder_count(folder), 3);
  folder_clear(folder);
}

static void replaces(void **state) {
  (void)state;
  EXPECT_OK(save(3, 0));
  EXPECT_OK(save(3, 0));
  assert_true(is_there("step-00000003.1") && folder_count(folder) == 1);
  EXPECT_OK(save(3, 0));
  assert_true(is_there("step-00000003.2") && folder_count(folder) == 1);
  expect_found(3, 0);
  folder_clear(folder);
}

/* What links lead to is neither emptied nor removed, whatever they are called. */
static void links(void **state) {
  (void)state;
  static const char *const names[] = {".step-00000009.0.tmp", ".step-00000001.gone", "step-00000001", "step-00000002"};
  char outside[128];
  snprintf(outside, sizeof outside, "%s.outside", folder);
  for (size_t i = 0; i < BASE_COUNT(names); i++) {
    char inside[160];
    snprintf(inside, sizeof inside, "%s/model.safetensors", outside);
    assert_int_equal(mkdir(outside, 0777), 0);
    file_store(inside, "precious", 8);
    assert_int_equal(symlink(outside, in_folder(names[i])), 0);
    EXPECT_OK(save(2, 1)); /* in place of a link of its step; older ones go */
    EXPECT_OK(save(3, 1));
    expect_found(3, 0);
    assert_int_equal(folder_count(folder), 1);
    assert_int_equal(folder_count(outside), 1);
    folder_clear(folder);
    folder_clear(outside);
    assert_int_equal(rmdir(outside), 0);
  }
}

/* A reader always finds one that is whole, while another process keeps only the newest. */
static void beside_a_saver(void **state) {
  (void)state;
  enum { STEPS = 400 };
  EXPECT_OK(save(1, 1));
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    quern_status status = QUERN_STATUS_OK;
    for (uint64_t step = 2; step <= STEPS && status == QUERN_STATUS_OK; step++) status = save(step / 2, 1);
    _exit(status == QUERN_STATUS_OK ? 0 : 1);
  }
  int status = 0, found = 0;
  for (; waitpid(child, &status, WNOHANG) == 0; found++) {
    quern_checkpoint *checkpoint;
    EXPECT_OK(quern_checkpoint_find(&checkpoint, folder, NULL));
    assert_non_null(checkpoint);
    quern_checkpoint_info info = QUERN_INIT(quern_checkpoint_info);
    EXPECT_OK(quern_checkpoint_get_info(checkpoint, &info));
    assert_int_equal(info.skipped, 0);
    quern_checkpoint_close(checkpoint);
  }
  assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  assert_true(found > 0);
  folder_clear(folder);
}

/* Of one step the one with the highest number is the newest. */
static void numbers(void **state) {
  (void)state;
  quern_checkpoint *checkpoint;
  quern_checkpoint_info info = QUERN_INIT(quern_checkpoint_info);
  EXPECT_OK(save(3, 0));
  assert_int_equal(rename(in_folder("step-00000003"), in_folder("aside")), 0);
  EXPECT_OK(save(3, 0));
  assert_int_equal(rename(in_folder("aside"), in_folder("step-00000003.1")), 0);
  EXPECT_OK(quern_checkpoint_find(&checkpoint, folder, &memory_allocator));
  EXPECT_OK(quern_checkpoint_get_info(checkpoint, &info));
  assert_string_equal(info.path, in_folder("step-00000003.1"));
  quern_checkpoint_close(checkpoint);
  EXPECT_OK(save(3, 0));
  assert_true(is_there("step-00000003.2") && folder_count(folder) == 1);
  folder_clear(folder);
}

/* A killed process leaves names that nobody takes for a checkpoint; the next save removes them. */
static void leftovers(void **state) {
  (void)state;
  EXPECT_OK(save(1, 0));
  assert_int_equal(rename(in_folder("step-00000001"), in_folder(".step-00000001.gone")), 0);
  assert_int_equal(mkdir(in_folder(".step-00000002.1.tmp"), 0777), 0);
  file_store(in_folder(".step-00000002.1.tmp/model.safetensors"), "half", 4);
  quern_checkpoint *checkpoint;
  EXPECT_OK(quern_checkpoint_find(&checkpoint, folder, &memory_allocator));
  assert_null(checkpoint);
  EXPECT_OK(save(2, 0));
  assert_int_equal(folder_count(folder), 1);
  expect_found(2, 0);
  folder_clear(folder);
}

static void one_at_a_time(void **state) {
  (void)state;
  int fd = open(folder, O_RDONLY);
  assert_int_equal(flock(fd, LOCK_EX), 0);
  EXPECT_ERROR(save(1, 0), STATE, "checkpoint_save: another process saves into ");
  close(fd);
  EXPECT_OK(save(1, 0));
  folder_clear(folder);
}

static void wrong_contents(void **state) {
  (void)state;
  static const char *const states[] = {"", "1", "[]", "{", "{\"a\":1,\"a\":1}", "{}}", "{\"\xff\":1}"};
  quern_checkpoint_contents contents = QUERN_INIT(quern_checkpoint_contents);
  for (size_t i = 0; i < BASE_COUNT(states); i++) {
    contents.state = states[i];
    EXPECT_ERROR(quern_checkpoint_save(folder, &contents), INVALID, "checkpoint_save: state: ");
  }
  contents.state = NULL;
  contents.n_config = 1;
  contents.config = &(quern_string_pair){"\xff", "a"};
  EXPECT_ERROR(quern_checkpoint_save(folder, &contents), INVALID, "checkpoint_save: \"?\" is no UTF-8");
  contents.n_config = 0;
  contents.n_tensors = 1;
  contents.tensors = &(quern_safetensor){.name = "\xc3", .dtype = QUERN_DTYPE_U8, .data = "x"};
  EXPECT_ERROR(quern_checkpoint_save(folder, &contents), INVALID, "checkpoint_save: \"?\" is no UTF-8");
  assert_int_equal(folder_count(folder), 0);
}

/* Values of the configuration may be any bytes: paths are. */
static void any_bytes(void **state) {
  (void)state;
  static const char value[] = "/data/\xff\xc3(\xef\x9e\x80\xef\x9f\xbf/\xc3\xa9\n\"\\\x7f";
  quern_checkpoint_contents contents = QUERN_INIT(quern_checkpoint_contents);
  quern_checkpoint *c;
  contents.n_config = 1;
  contents.config = &(quern_string_pair){"data", value};
  EXPECT_OK(quern_checkpoint_save(folder, &contents));
  EXPECT_OK(quern_checkpoint_find(&c, folder, &memory_allocator));
  assert_string_equal(quern_checkpoint_config(c, "data"), value);
  quern_checkpoint_close(c);
  folder_clear(folder);
}

static void loads_what_fits(void **state) {
  (void)state;
  float weights[WEIGHTS];
  quern_checkpoint *c;
  EXPECT_OK(save(1, 0));
  EXPECT_OK(quern_checkpoint_find(&c, folder, &memory_allocator));
  EXPECT_ERROR(quern_checkpoint_load(c, "layer.bias", QUERN_DTYPE_F32, QUERN_LIST(5, 6), weights), INVALID,
               "step-00000001 has no tensor 'layer.bias' among its 5");
  EXPECT_ERROR(quern_checkpoint_load(c, "layer.weight", QUERN_DTYPE_F16, QUERN_LIST(5, 6), weights), DTYPE,
               "tensor 'layer.weight' is f32, wanted is f16");
  EXPECT_ERROR(quern_checkpoint_load(c, "layer.weight", QUERN_DTYPE_F32, QUERN_LIST(6, 5), weights), SHAPE,
               "tensor 'layer.weight' is (5, 6), wanted is (6, 5)");
  EXPECT_ERROR(quern_checkpoint_load(c, "layer.weight", QUERN_DTYPE_F32, QUERN_LIST(30), weights), SHAPE,
               "wanted is (30,)");
  EXPECT_ERROR(quern_checkpoint_load(c, "layer.weight", QUERN_DTYPE_F32, QUERN_LIST(5, 6), NULL), INVALID,
               "the memory for 120 bytes is null");
  quern_checkpoint_close(c);
  folder_clear(folder);
}

/* ---- damage --------------------------------------------------------------------------------------------- */

/* The checkpoint of step 2 is found to be damaged by what reads it. */
static void expect_damaged(void) {
  quern_checkpoint *checkpoint;
  quern_status status = quern_checkpoint_open(&checkpoint, in_folder("step-00000002"), &memory_allocator);
  if (status == QUERN_STATUS_OK) status = quern_checkpoint_verify(checkpoint);
  assert_true(status == QUERN_STATUS_PARSE || status == QUERN_STATUS_OVERFLOW || status == QUERN_STATUS_IO);
  assert_non_null(strstr(quern_last_error(), "step-00000002/"));
  quern_checkpoint_close(checkpoint);
}

static const char *const files[] = {"step-00000002/checkpoint.json", "step-00000002/model.safetensors"};

/* No bit of either file changes unnoticed. */
static void flipped(void **state) {
  (void)state;
  static unsigned char bytes[65536];
  EXPECT_OK(save(2, 0));
  for (size_t f = 0; f < BASE_COUNT(files); f++) {
    size_t n = file_load(in_folder(files[f]), bytes, sizeof bytes);
    assert_in_range(n, 500, sizeof bytes - 1);
    for (size_t i = 0; i < n; i++) {
      bytes[i] ^= (unsigned char)(1u << i % 8);
      file_store(in_folder(files[f]), bytes, n);
      expect_damaged();
      bytes[i] ^= (unsigned char)(1u << i % 8);
    }
    file_store(in_folder(files[f]), bytes, n);
    expect_found(2, 0);
  }
  folder_clear(folder);
}

/* A text of a file replaced by another as long: damage that no rule of the format notices. */
static void changed(void **state) {
  (void)state;
  static char bytes[65536];
  EXPECT_OK(save(2, 0));
  size_t n = file_load(in_folder(files[1]), (unsigned char *)bytes, sizeof bytes - 1);
  char *shape = strstr(bytes + 8, "[5,6]");
  assert_non_null(shape);
  memcpy(shape, "[6,5]", 5);
  file_store(in_folder(files[1]), bytes, n);
  expect_damaged();
  assert_non_null(strstr(quern_last_error(), "the digest of its header is "));
  folder_clear(folder);
}

/* Writes checkpoint.json of step 2 with a text replaced and the right digest. */
static void rewrite(const char *old, const char *new) {
  static char text[65536], made[65536];
  size_t n = file_load(in_folder(files[0]), (unsigned char *)text, sizeof text - 1);
  text[n] = 0;
  char *body = strchr(text, '\n') + 1, *at = strstr(body, old);
  assert_non_null(at);
  int head = snprintf(made, sizeof made, "%.*s%s%s", (int)(at - body), body, new, at + strlen(old));
  int whole =
      snprintf(text, sizeof text, "{\"quern_checkpoint\":1,\"hash\":\"xxh64\",\"digest\":\"%016" PRIx64 "\",\n%s",
               io_digest_of(made, (size_t)head), made);
  file_store(in_folder(files[0]), text, (size_t)whole);
}

/* Digests of fewer tensors than there are, of more, of others. */
static void other_digests(void **state) {
  (void)state;
  static const struct {
    const char *old, *new, *message;
  } rows[] = {
      {"\"nothing\":\"ef46db3751d8e999\",\n", "", "has 5 tensors, the checkpoint has digests of 4"},
      {"\"nothing\":", "\"more\":\"0123456789abcdef\",\"nothing\":", "has 5 tensors, the checkpoint has digests of 6"},
      {"\"nothing\":", "\"something\":", "the checkpoint has no digest of tensor 'nothing'"},
      {"\"mask\":\"", "\"nothing.\":\"", "the checkpoint has no digest of tensor 'mask'"},
  };
  for (size_t i = 0; i < BASE_COUNT(rows); i++) {
    quern_checkpoint *checkpoint;
    EXPECT_OK(save(2, 0));
    rewrite("\"step\":2,", "\"step\":2,"); /* which changes nothing */
    expect_found(2, 0);
    rewrite(rows[i].old, rows[i].new);
    EXPECT_ERROR(quern_checkpoint_open(&checkpoint, in_folder("step-00000002"), &memory_allocator), PARSE,
                 rows[i].message);
    folder_clear(folder);
  }
}

/* Neither is a cut, nor a byte more, nor a file that is missing; an older one is found instead. */
static void cut(void **state) {
  (void)state;
  static unsigned char bytes[65536];
  EXPECT_OK(save(1, 0));
  EXPECT_OK(save(2, 0));
  for (size_t f = 0; f < BASE_COUNT(files); f++) {
    size_t n = file_load(in_folder(files[f]), bytes, sizeof bytes);
    for (size_t length = 0; length < n; length++) {
      file_store(in_folder(files[f]), bytes, length);
      expect_damaged();
      if (length % 512 == 0) expect_found(1, 1);
    }
    bytes[n] = ' ';
    file_store(in_folder(files[f]), bytes, n + 1);
    expect_found(1, 1);
    unlink(in_folder(files[f]));
    expect_found(1, 1);
    file_store(in_folder(files[f]), bytes, n);
    expect_found(2, 0);
  }
  folder_clear(folder);
}

/* The model of one in the folder of another. */
static void exchanged(void **state) {
  (void)state;
  EXPECT_OK(save(1, 0));
  EXPECT_OK(save(2, 0));
  EXPECT_OK(save(3, 0));
  assert_int_equal(rename(in_folder("step-00000001/model.safetensors"), in_folder("step-00000003/model.safetensors")),
                   0);
  expect_found(2, 1);
  unlink(in_folder("step-00000002/model.safetensors"));
  quern_checkpoint *checkpoint;
  EXPECT_ERROR(quern_checkpoint_find(&checkpoint, folder, &memory_allocator), PARSE,
               "of 3 checkpoints none is whole; the newest: ");
  assert_non_null(strstr(quern_last_error(), "step-00000003/model.safetensors: tensor "));
  assert_null(checkpoint);
  folder_clear(folder);
}

#define MODEL "\"model\":{\"file\":\"model.safetensors\",\"bytes\":64,\"header\":\"0123456789abcdef\"}"
#define FRONT "\"step\":1,\"cursor\":0,\"seed\":\"0x0000000000000000\","

/* Texts with the right digest, but not what is expected. */
static void malformed(void **state) {
  (void)state;
  static const struct {
    const char *text, *message;
  } rows[] = {
      {"", "of the JSON"},
      {"\"step\":1}}", "of the JSON"},
      {"\"digest\":1}", "duplicate object key"},
      {"\"cursor\":1}", "has no step that is a number"},
      {"\"step\":-1}", "has no step that is a number"},
      {"\"step\":1.0}", "has no step that is a number"},
      {"\"step\":99999999999999999999}", "too big integer"},
      {"\"step\":1}", "has no cursor that is a number"},
      {"\"step\":1,\"cursor\":1}", "has no seed that is 0x and 16 digits"},
      {"\"step\":1,\"cursor\":1,\"seed\":\"0x1\"}", "has no seed that is 0x and 16 digits"},
      {"\"step\":1,\"cursor\":1,\"seed\":\"0x000000000000000G\"}", "has no seed that is 0x and 16 digits"},
      {FRONT "\"state\":{}}", "has no config that is an object"},
      {FRONT "\"config\":{\"a\":1}}", "'a' of config is no string"},
      {FRONT "\"config\":{\"a\":\"b\"}}", "has no state that is an object"},
      {FRONT "\"config\":{},\"state\":[]}", "has no state that is an object"},
      {FRONT "\"config\":{},\"state\":{}}", "has no model with the file model.safetensors"},
      {FRONT "\"config\":{},\"state\":{},\"model\":{\"file\":\"../model.safetensors\"}}", "has no model with the file"},
      {FRONT "\"config\":{},\"state\":{},\"model\":{\"file\":\"model.safetensors\"}}", "has no bytes that is a number"},
      {FRONT "\"config\":{},\"state\":{},\"model\":{\"file\":\"model.safetensors\",\"bytes\":1,\"header\":\"01\"}}",
       "the model has no header's digest"},
      {FRONT "\"config\":{},\"state\":{}," MODEL "}", "has no tensors that are an object"},
      {FRONT "\"config\":{},\"state\":{}," MODEL ",\"tensors\":{\"a\":\"0\"}}",
       "tensor 'a' has no digest of 16 digits"},
      {FRONT "\"config\":{},\"state\":{}," MODEL ",\"tensors\":{}}", "the checkpoint was saved with 64"},
      {FRONT "\"config\":{},\"state\":{\"a\":[[[[\"\xff\"]]]]}," MODEL ",\"tensors\":{}}",
       "unable to decode byte 0xff"},
  };
  EXPECT_OK(save(2, 0));
  for (size_t i = 0; i < BASE_COUNT(rows); i++) {
    char text[1024];
    quern_checkpoint *checkpoint;
    int n = snprintf(text, sizeof text, "{\"quern_checkpoint\":1,\"hash\":\"xxh64\",\"digest\":\"%016" PRIx64 "\",\n%s",
                     io_digest_of(rows[i].text, strlen(rows[i].text)), rows[i].text);
    file_store(in_folder(files[0]), text, (size_t)n);
    quern_status status = quern_checkpoint_open(&checkpoint, in_folder("step-00000002"), &memory_allocator);
    test_expect_error(status, QUERN_STATUS_PARSE, rows[i].message, rows[i].text, (int)i);
    assert_null(checkpoint);
  }
  static const char later[] = "{\"quern_checkpoint\":2,\"hash\":\"xxh64\",\"digest\":\"0123456789abcdef\",\n";
  quern_checkpoint *checkpoint;
  file_store(in_folder(files[0]), later, strlen(later));
  EXPECT_ERROR(quern_checkpoint_open(&checkpoint, in_folder("step-00000002"), &memory_allocator), PARSE,
               "does not begin as a checkpoint of format 1 does");
  folder_clear(folder);
}

/* ---- failures ------------------------------------------------------------------------------------------- */

/* Without memory a save fails and leaves nothing, or has saved all the same: what was there is there. */
static void saving_without_memory(void **state) {
  (void)state;
  struct fault fault = {0};
  int failed = 0;
  while (fault_next(&fault)) {
    folder_clear(folder);
    EXPECT_OK(save(1, 0));
    EXPECT_OK(save(2, 0));
    fault_begin(&fault);
    quern_status status = save(3, 2);
    fault_end(&fault);
    if (status != QUERN_STATUS_OK) EXPECT_FAULT(&fault, status);
    assert_true(status == QUERN_STATUS_OK || !is_there("step-00000003"));
    assert_int_equal(json_live, 0);
    expect_found(status == QUERN_STATUS_OK ? 3 : 2, 0);
    if (status != QUERN_STATUS_OK) assert_int_equal(folder_count(folder), 2);
    failed += status != QUERN_STATUS_OK;
  }
  assert_true(fault.n > 60 && failed > 60);
  folder_clear(folder);
}

static void finding_without_memory(void **state) {
  (void)state;
  struct fault fault = {0};
  EXPECT_OK(save(1, 0));
  EXPECT_OK(save(2, 0));
  while (fault_next(&fault)) {
    quern_checkpoint *checkpoint;
    fault_begin(&fault);
    quern_status status = quern_checkpoint_find(&checkpoint, folder, &memory_allocator);
    fault_end(&fault);
    EXPECT_FAULT(&fault, status); /* never the older one, never "damaged" */
    if (status == QUERN_STATUS_OK) expect_run(checkpoint, 2);
    quern_checkpoint_close(checkpoint);
    assert_int_equal(json_live, 0);
    assert_int_equal(memory_live, context_stats(ctx).live_bytes);
  }
  assert_true(fault.n > 60);
  folder_clear(folder);
}

/* A file that cannot grow any further: the older checkpoint stays, and nothing else. */
static void too_large(void **state) {
  (void)state;
  struct rlimit limit, small;
  EXPECT_OK(save(1, 0));
  assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
  signal(SIGXFSZ, SIG_IGN);
  for (rlim_t most = 0; most < 1600; most += 100) {
    small = limit;
    small.rlim_cur = most;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    quern_status status = save(2, 1);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    if (status == QUERN_STATUS_OK) break;
    EXPECT_ERROR(status, IO, "cannot be written: File too large");
    assert_int_equal(folder_count(folder), 1);
    expect_found(1, 0);
  }
  assert_true(is_there("step-00000002"));
  folder_clear(folder);
}

/* A file system of a few pages, which only root can make. */
static void full_disk(void **state) {
  (void)state;
  int saved = 0;
  assert_int_equal(mkdir(in_folder("small"), 0777), 0);
  const char *small = in_folder("small");
  if (mount("quern", small, "tmpfs", 0, "size=128k,nr_inodes=40") != 0) {
    print_message("full_disk: a small tmpfs cannot be mounted: %s\n", strerror(errno));
    rmdir(small);
    skip();
  }
  char dir[128];
  snprintf(dir, sizeof dir, "%s", small);
  quern_status status = QUERN_STATUS_OK;
  for (uint64_t step = 1; step < 100 && status == QUERN_STATUS_OK; step++) {
    status = save_to(dir, step, 0);
    saved += status == QUERN_STATUS_OK;
    if (status == QUERN_STATUS_OK) continue;
    bool full = strstr(quern_last_error(), "No space left on device") != NULL;
    quern_checkpoint *checkpoint;
    assert_int_equal(status, QUERN_STATUS_IO);
    assert_true(full);
    assert_int_equal(folder_count(dir), saved); /* whole ones and nothing else */
    EXPECT_OK(quern_checkpoint_find(&checkpoint, dir, &memory_allocator));
    expect_run(checkpoint, step - 1);
    quern_checkpoint_close(checkpoint);
  }
  assert_true(status != QUERN_STATUS_OK && saved > 3);
  assert_int_equal(umount(dir), 0);
  folder_clear(folder);
}

/* ---- the whole ------------------------------------------------------------------------------------------ */

static int make_folder(void **state) {
  (void)state;
  return folder_make() ? 0 : -1;
}

static int remove_folder(void **state) {
  (void)state;
  (void)umount(in_folder("small")); /* left by a test that failed */
  folder_clear(folder);
  return rmdir(folder);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      JSON_TEST(round_trip),
      JSON_TEST(given_when_written),
      JSON_TEST(nothing_there),
      JSON_TEST(keeps_the_last),
      JSON_TEST(replaces),
      JSON_TEST(keeps_whole_ones),
      JSON_TEST(leftovers),
      JSON_TEST(links),
      cmocka_unit_test(beside_a_saver),
      JSON_TEST(numbers),
      JSON_TEST(changed),
      JSON_TEST(other_digests),
      JSON_TEST(one_at_a_time),
      JSON_TEST(wrong_contents),
      JSON_TEST(any_bytes),
      JSON_TEST(loads_what_fits),
      JSON_TEST(flipped),
      JSON_TEST(cut),
      JSON_TEST(exchanged),
      JSON_TEST(malformed),
      JSON_TEST(saving_without_memory),
      JSON_TEST(finding_without_memory),
      JSON_TEST(too_large),
      JSON_TEST(full_disk),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
