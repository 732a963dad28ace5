/* tests/cli/test_info.c -- quern info: what it prints of files that were written here, and of damaged ones
** The program is the one two folders above this test's own (the build folder).
*/
#define _XOPEN_SOURCE 700 /* realpath */
#include <limits.h>
#include <sys/wait.h>

#include "io/folder.h"
#include "quern/quern.h"

#include "shell.h"

static const float values[64];
static const int64_t matrix[] = {4, 16}, three[] = {3};
static const quern_safetensor tensors[] = {
    {.name = "bias", .dtype = QUERN_DTYPE_BF16, .rank = 1, .dims = three, .data = values},
    {.name = "layer.weight", .dtype = QUERN_DTYPE_F32, .rank = 2, .dims = matrix, .data = values},
    {.name = "step\n", .dtype = QUERN_DTYPE_I64, .data = values},
};
static const quern_string_pair pairs[] = {{"format", "pt"}, {"made by", "a \"test\"\n"}};

static void safetensors(void **state) {
  (void)state;
  quern_safetensors_options options = QUERN_INIT(quern_safetensors_options);
  options.n_pairs = 2;
  options.pairs = pairs;
  EXPECT_OK(quern_safetensors_write(in_folder("x.safetensors"), 3, tensors, &options));
  expect("$Q info x.safetensors", 0,
         "x.safetensors: 3 tensors, 68 elements, 270 B\n"
         "metadata:\n  format = pt\n  made by = a \"test\"\\x0a\n"
         "tensors:\n"
         "  name          dtype   shape          bytes\n"
         "  layer.weight  f32     [4,16]           256\n"
         "  step\\x0a      i64     []                 8\n"
         "  bias          bf16    [3]                6\n");
  expect(
      "$Q info x.safetensors --json", 0,
      "{\"path\": \"x.safetensors\", \"kind\": \"safetensors\",\n \"elements\": 68, \"bytes\": 270,\n"
      " \"metadata\": {\"format\": \"pt\", \"made by\": \"a \\\"test\\\"\\u000a\"},\n"
      " \"files\": [{\"path\": \"x.safetensors\", \"bytes\": 526}],\n \"tensors\": [\n"
      "  {\"name\": \"layer.weight\", \"dtype\": \"f32\", \"shape\": [4,16], \"bytes\": 256, \"file\": 0, \"offset\": "
      "256},\n"
      "  {\"name\": \"step\\u000a\", \"dtype\": \"i64\", \"shape\": [], \"bytes\": 8, \"file\": 0, \"offset\": 512},\n"
      "  {\"name\": \"bias\", \"dtype\": \"bf16\", \"shape\": [3], \"bytes\": 6, \"file\": 0, \"offset\": 520}]}\n");
  expect("$Q info x.safetensors --json | /usr/bin/python3 -m json.tool >/dev/null && echo parsed", 0, "parsed\n");
  options.shard_bytes = 100;
  EXPECT_OK(quern_safetensors_write(in_folder("model.safetensors.index.json"), 3, tensors, &options));
  const char *sharded = "model.safetensors.index.json: 3 tensors, 68 elements, 270 B\nmetadata:\n...";
  expect("$Q info model.safetensors.index.json", 0, sharded);
  expect("$Q info . | grep -A3 files:", 0,
         "files:\n  ./model-00001-of-00003.safetensors: 134 bytes\n  ./model-00002-of-00003.safetensors: 448 bytes\n"
         "  ./model-00003-of-00003.safetensors: 136 bytes\n");
  expect("truncate -s 200 x.safetensors; $Q info x.safetensors", 1,
         "quern: x.safetensors: the header has 248 bytes, but 192 follow its length\n");
  expect("rm model-00002-of-00003.safetensors; $Q info .", 1,
         "quern: ./model-00002-of-00003.safetensors: cannot be opened: No such file or directory\n");
  folder_clear(folder);
}

static void save(uint64_t step) {
  quern_checkpoint_contents contents = QUERN_INIT(quern_checkpoint_contents);
  contents.step = step;
  contents.seed = 42;
  contents.cursor = 7;
  contents.n_tensors = 1;
  contents.tensors = tensors;
  contents.n_config = 2;
  contents.config = pairs;
  contents.state = "{\"lr\": 0.5}";
  EXPECT_OK(quern_checkpoint_save(in_folder("run"), &contents));
}

#define SHOWN(name)                                                                                                    \
  "run/" name ": 1 tensor, 3 elements, 6 B\n"                                                                          \
  "checkpoint: step 1, seed 0x000000000000002a, cursor 7; every digest is right\n"                                     \
  "config:\n  format = pt\n  made by = a \"test\"\\x0a\nstate: {\"lr\":0.5}\n"                                         \
  "tensors:\n  name  dtype   shape         bytes\n  bias  bf16    [3]               6\n"

static void checkpoints(void **state) {
  (void)state;
  save(1);
  expect("$Q info run", 0, SHOWN("step-00000001"));
  expect("$Q info run/step-00000001", 0, SHOWN("step-00000001"));
  expect("$Q info run --json", 0,
         "{\"path\": \"run/step-00000001\", \"kind\": \"checkpoint\",\n \"step\": 1, \"seed\": \"0x000000000000002a\", "
         "\"cursor\": 7, "
         "\"skipped\": 0,\n \"config\": {\"format\": \"pt\", \"made by\": \"a \\\"test\\\"\\u000a\"},\n \"state\": "
         "{\"lr\":0.5},\n...");
  expect("$Q info run --json | /usr/bin/python3 -m json.tool >/dev/null && echo parsed", 0, "parsed\n");
  save(2);
  expect("printf x | dd of=run/step-00000002/model.safetensors bs=1 seek=128 conv=notrunc 2>/dev/null; "
         "$Q info run/step-00000002",
         1, "quern: run/step-00000002/model.safetensors: tensor 'bias' is damaged: its digest is ...");
  expect("$Q info run 2>&1 >/dev/null | sed 's/ its digest.*//'", 0,
         "quern: warning: checkpoint run/step-00000002 is skipped: run/step-00000002/model.safetensors: tensor 'bias' "
         "is damaged:\n"
         "quern: run: 1 later checkpoint is damaged\n");
  expect("$Q info run 2>/dev/null", 1, SHOWN("step-00000001"));
  expect("rm run/step-00000001/model.safetensors; $Q info run 2>&1 | tail -1 | sed 's/digest is.*//'", 0,
         "quern: run: of 2 checkpoints none is whole; the newest: run/step-00000002/model.safetensors: tensor 'bias' "
         "is damaged: its \n");
  expect("$Q info run 2>/dev/null", 1, "");
  folder_clear(folder);
}

static void wrong_calls(void **state) {
  (void)state;
  expect("$Q info", 2, "quern info: takes 1 argument, got 0\n  HINT: quern help info\n");
  expect("$Q info a b", 2, "quern info: takes at most 1 argument, 'b' is one more\n...");
  expect("$Q info a --jsn", 2, "quern info: there is no option '--jsn'; did you mean '--json'?\n...");
  expect("$Q info none", 1, "quern: none: cannot be opened: No such file or directory\n");
  expect("$Q info .", 1, "quern: .: the folder has neither model.safetensors nor model.safetensors.index.json\n");
}

static int set_up(void **state) {
  (void)state;
  return folder_make() ? 0 : -1;
}

static int tear_down(void **state) {
  (void)state;
  folder_clear(folder);
  return rmdir(folder);
}

int main(int argc, char **argv) {
  if (argc < 1 || !find_program(argv[0])) return 1;
  const struct CMUnitTest tests[] = {cmocka_unit_test(safetensors), cmocka_unit_test(checkpoints),
                                     cmocka_unit_test(wrong_calls)};
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
