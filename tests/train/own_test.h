/* tests/train/own_test.h -- a small network of a test's own: points in the plane and whether they lie in a ring */
#ifndef TESTS_TRAIN_OWN_TEST_H
#define TESTS_TRAIN_OWN_TEST_H
#include "train/train_test.h"

enum { RING_SAMPLES = 72, RING_HIDDEN = 8 };
static float ring_x[RING_SAMPLES][2];
static int32_t ring_label[RING_SAMPLES];
static const quern_field ring_fields[] = {{"x", QUERN_DTYPE_F32, 1, {2}, 0}, {"label", QUERN_DTYPE_I32, 0, {0}, 0}};
static const void *const ring_arrays[] = {ring_x, ring_label};

static inline void make_ring(void) {
  for (int i = 0; i < RING_SAMPLES; i++) {
    float a = (float)(i * 7 % RING_SAMPLES) / 11.0F, b = (float)(i * 5 % 13) / 4.0F;
    ring_x[i][0] = a - 3;
    ring_x[i][1] = b - 1.5F;
    float r = ring_x[i][0] * ring_x[i][0] + ring_x[i][1] * ring_x[i][1];
    ring_label[i] = r > 1 && r < 5;
  }
}

/* A quern_source_read of the same samples. */
static inline quern_status read_ring(void *self, int64_t index, void *const *fields) {
  (void)self;
  memcpy(fields[0], ring_x[index], sizeof ring_x[index]);
  memcpy(fields[1], &ring_label[index], sizeof ring_label[index]);
  return QUERN_STATUS_OK;
}

static inline quern_tensor *ring_logits(quern_scope *scope, quern_tensor *x) {
  for (int i = 0; i < 2; i++) {
    x = quern_nn_linear(quern_scope_at(scope, "layers", i), x, RING_HIDDEN, NULL);
    x = quern_nn_dropout(quern_scope_at(scope, "drop", i), quern_tanh(x), 0.1);
  }
  return quern_nn_linear(quern_scope_in(scope, "head"), x, 2, NULL);
}

static inline quern_tensor *ring_loss_of(quern_tensor *logits, quern_tensor *labels) {
  quern_cross_entropy_options counted = {.size = sizeof counted, .ignore = true, .ignore_index = -1};
  return quern_cross_entropy(logits, labels, &counted);
}

/* A quern_train_loss. */
static inline quern_tensor *ring_loss(quern_train_graph *graph, void *user) {
  (void)user;
  quern_tensor *labels = quern_train_graph_input(graph, "label");
  quern_tensor *logits = ring_logits(quern_train_graph_scope(graph), quern_train_graph_input(graph, "x"));
  quern_tensor *right = quern_eq(quern_argmax(logits, 1, false), quern_cast(labels, QUERN_DTYPE_I64));
  quern_train_graph_report(graph, "accuracy", right);
  quern_train_graph_report(graph, "entropy", quern_mean(quern_square(logits), QUERN_LIST(1), false));
  return ring_loss_of(logits, labels);
}

static inline quern_source *ring_source(void) {
  quern_source *source;
  make_ring();
  EXPECT_OK(quern_source_memory(&source, RING_SAMPLES, 2, ring_fields, ring_arrays, &memory_allocator));
  return source;
}

static inline quern_train_task ring_task(const quern_source *data) {
  return (quern_train_task){
      .size = sizeof(quern_train_task), .name = "ring", .loss = ring_loss, .data = data, .labels = "label"};
}

/* On the interpreter, without threads of the loader; out is a folder in the test's. */
static inline quern_config *ring_config(const char *out) {
  static const char *const settings[][2] = {
      {"batch", "8"},        {"steps", "6"},       {"lr", "1e-2"},      {"device", "interp"}, {"threads", "1"},
      {"workers", "0"},      {"prefetch", "0"},    {"eval_every", "0"}, {"save_every", "0"},  {"report", "false"},
      {"eval_batches", "0"}, {"eval_part", "0.1"}, {"profile", "0"},    {"seed", "7"}};
  quern_config *config;
  EXPECT_OK(quern_train_config(&config, &memory_allocator));
  for (size_t i = 0; i < BASE_COUNT(settings); i++) set(config, settings[i][0], settings[i][1]);
  set(config, "out", out[0] != 0 ? in_folder(out) : "");
  return config;
}

static inline quern_trainer *own_trainer(const quern_train_task *task, const quern_config *config) {
  quern_trainer *trainer;
  EXPECT_OK(quern_trainer_new_with(&trainer, task, config, NULL));
  return trainer;
}

#endif
