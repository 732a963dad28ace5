/* tests/api/test_wrong_train.c -- wrong calls of train.h */
#include "api/wrong.h"

static quern_config *config;
static quern_trainer *trainer;
static quern_train_record record = QUERN_INIT(quern_train_record);
static quern_eval_record eval = QUERN_INIT(quern_eval_record);
static quern_train_end end_left;
static quern_status during;
static bool held;
static const quern_train_callbacks small_callbacks = {.size = 3};

static void drop_note(void *user, const char *text) { (void)user, (void)text; }

static void open_config(void) { assert_int_equal(quern_train_config(&config, &memory_allocator), QUERN_STATUS_OK); }
static void close_config(void) { quern_config_free(config); }

/* A call with a configuration of training, and with one of another table. */
#define WITH(call) (open_config(), during = (call), close_config(), during)
static const quern_config_key keys[] = {{"a", QUERN_CONFIG_INT, "1", NULL, 0, 0, "a number"}};
static void open_other(void) {
  assert_int_equal(quern_config_new(&config, 1, keys, &memory_allocator), QUERN_STATUS_OK);
}
#define OTHER(call) (open_other(), during = (call), close_config(), during)

/* A call with a trainer of the smallest adder. */
static void open_adder(void) {
  static const char *const words[] = {"layers=1", "width=4", "heads=1",   "hidden=4",  "batch=2",   "device=interp",
                                      "out=",     "steps=1", "threads=1", "workers=0", "prefetch=0"};
  open_config();
  assert_int_equal(quern_train_preset(config, "adder"), QUERN_STATUS_OK);
  for (size_t i = 0; i < BASE_COUNT(words); i++) assert_int_equal(quern_config_word(config, words[i]), QUERN_STATUS_OK);
  assert_int_equal(quern_trainer_new(&trainer, config, NULL), QUERN_STATUS_OK);
}
static void close_adder(void) {
  quern_trainer_free(trainer);
  close_config();
}
#define ADDER(condition) (open_adder(), held = (condition), close_adder(), held)
#define ADDER_FAILS(call) (open_adder(), during = (call), close_adder(), during)

/* A call with a task of one's own, whose loss is none. */
static quern_source *source;
static quern_train_task task;
static quern_tensor *no_loss(quern_train_graph *graph, void *user) { return (void)graph, (void)user, NULL; }
static void open_own(void) {
  static const quern_field field = {.name = "x"};
  static const double elements[32];
  open_config();
  const void *arrays[] = {elements};
  assert_int_equal(quern_config_word(config, "out="), QUERN_STATUS_OK);
  assert_int_equal(quern_source_memory(&source, 32, 1, &field, arrays, &memory_allocator), QUERN_STATUS_OK);
  task = (quern_train_task){.size = sizeof task, .name = "own", .loss = no_loss, .data = source};
}
static void close_own(void) {
  quern_source_free(source);
  close_config();
}
#define OWN(call) (open_own(), during = (call), close_own(), during)
#define OWN_OF(member, value) OWN((task.member = (value), quern_train_with(&task, config, NULL, NULL)))

#define ROWS "api/wrong_train.def"
#include "api/rows.h"
